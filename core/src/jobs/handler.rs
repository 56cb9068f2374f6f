//! The handler of a kind of jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::retry::Policy;
use super::serving::SharedSettings;
use super::{Context, IntoOutcome, Issue, Job, Outcome};
use crate::input::patterns::allows;

/// The timeout of an attempt, unless the handler, the kind's settings or the job set another.
pub(super) const DEFAULT_TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));

/// A job whose arguments were read, ready to run once.
pub struct PreparedJob<'a>(Box<dyn FnOnce(Job, Context) -> BoxFuture<'a, Outcome> + Send + 'a>);

impl<'a> PreparedJob<'a> {
    /// Creates a job from the function that runs it, and that should stop soon after
    /// `context.cancelled` fires. It must not block its thread, as in [`TypedHandler::run`].
    ///
    /// [`TypedHandler::run`]: super::TypedHandler::run
    pub fn new<F, R>(run: F) -> Self
    where
        F: FnOnce(Job, Context) -> R + Send + 'a,
        R: Future<Output: IntoOutcome> + Send + 'a,
    {
        Self(Box::new(|job, context| {
            let work = run(job, context);
            Box::pin(async move { work.await.into_outcome() })
        }))
    }

    /// Runs the attempt.
    pub fn run(self, job: Job, context: Context) -> BoxFuture<'a, Outcome> {
        (self.0)(job, context)
    }
}

impl fmt::Debug for PreparedJob<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PreparedJob").finish_non_exhaustive()
    }
}

/// The tenants whose jobs may have certain arguments. Jobs without a tenant always may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantRule {
    /// The tenants, by name or by a prefix followed by `*`.
    pub tenants: Vec<String>,
    /// The problem with the arguments of a job of another tenant.
    pub issue: Issue,
}

impl TenantRule {
    /// Returns the problem with a job of this tenant, empty for none.
    pub fn problem(&self, tenant: &str) -> Option<&Issue> {
        (!tenant.is_empty() && !allows(&self.tenants, tenant)).then_some(&self.issue)
    }
}

/// A handler, which runs the jobs of one kind.
///
/// [`TypedHandler`] is more convenient for arguments with their own type.
pub trait Handler: Send + Sync + 'static {
    /// Reads the arguments of a job, or returns every problem with them; called before a job is
    /// accepted over HTTP or the CLI, and again for each attempt, which is what it returns.
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>>;

    /// Returns the capabilities that a process needs for a job with such arguments, like
    /// `channel sms`, whether or not this process has them.
    ///
    /// Workers that lack one of them leave the job to those that have it; until there is one it
    /// waits, without using an attempt.
    fn needs(&self, args: &Value) -> Vec<String> {
        let _ = args;
        Vec::new()
    }

    /// Returns the tenants whose jobs may have such arguments; `None` for all.
    ///
    /// It is asked before a job is accepted over HTTP, and again before each attempt, because other
    /// entry points do not ask. Workers elsewhere may know of limits that this process does not.
    fn tenants(&self, args: &Value) -> Option<TenantRule> {
        let _ = args;
        None
    }

    /// Returns the capabilities that this process has for the kind, named as in
    /// [`Handler::needs`], each with a digest of the settings behind it.
    ///
    /// The digests reveal processes whose settings differ.
    fn capabilities(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    /// Returns the settings that all processes must share, each with a digest of its value, by
    /// subject and field.
    ///
    /// A worker that differs from a live one is refused at its start. Leave out credentials, and
    /// whatever may differ between machines.
    fn settings(&self) -> SharedSettings {
        SharedSettings::new()
    }

    /// Returns the timeout of an attempt; `None` for no bound.
    ///
    /// A job's own timeout and the setting of the kind take precedence.
    fn timeout(&self) -> Option<Duration> {
        DEFAULT_TIMEOUT
    }

    /// Returns the retry policy for failed attempts.
    ///
    /// Settings of the kind take precedence.
    fn retry(&self) -> Policy {
        Policy::default()
    }

    /// Returns true if every SQL role and every API token that may enqueue may enqueue this kind.
    ///
    /// Return false if the arguments reach further than their author may: into files, databases or
    /// other people's data. Settings of the kind take precedence.
    fn public(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_concerns_jobs_of_other_tenants_alone() {
        let rule = TenantRule {
            tenants: vec!["acme".to_owned()],
            issue: Issue::new("/secret", "is not theirs"),
        };
        assert_eq!(rule.problem(""), None);
        assert_eq!(rule.problem("acme"), None);
        assert_eq!(rule.problem("acme-2"), Some(&rule.issue));
    }
}
