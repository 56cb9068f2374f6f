//! The check that the token of a request may enqueue its jobs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::input::webhook_field;
use super::state::JobsState;
use crate::api::http::caller::Caller;
use crate::api::http::fields::Errors;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::postgres;
use crate::jobs::{NewJob, WEBHOOKS};
use crate::notify::ALERTS;
use crate::notify::args::PRIORITIES;
use crate::notify::recipient::KIND as NOTIFICATION;

/// The kind of the jobs that call webhooks.
const HTTP: &str = "http";

/// The most tokens that a message costs which no administrator enqueues: a text of ten segments. The
/// limits of a tenant count its messages, and not what they take from the pool that others share.
const MESSAGE_COST_MAX: f64 = 10.0;

/// The end of the name of a pool's throttle whose keys are its accounts.
const ACCOUNTS: &str = ":accounts";

/// Accepts the jobs, or lists each that the token may not enqueue; with `is_batch` the pointers
/// hold the index of the job.
pub async fn check(
    state: &JobsState,
    caller: &Caller,
    jobs: &[NewJob],
    is_batch: bool,
) -> Result<(), Problem> {
    let at = |index| {
        if is_batch {
            format!("/{index}")
        } else {
            String::new()
        }
    };
    check_at(state, caller, jobs, at).await
}

/// Accepts the jobs as [`check`] does; `at` returns the pointer to the job of an index.
pub async fn check_at(
    state: &JobsState,
    caller: &Caller,
    jobs: &[NewJob],
    at: impl Fn(usize) -> String,
) -> Result<(), Problem> {
    refused(errors_of(state, caller, jobs, true, at).await?)
}

async fn errors_of(
    state: &JobsState,
    caller: &Caller,
    jobs: &[NewJob],
    names_throttle: bool,
    at: impl Fn(usize) -> String,
) -> Result<Errors, Problem> {
    let leave = &caller.leave;
    let mut errors = Errors::default();
    if let Some(tenant) = &caller.tenant {
        for (index, job) in jobs.iter().enumerate() {
            refuse_to_tenant(state, tenant, job, &at(index), &mut errors);
        }
    }
    if leave.is_admin() {
        return Ok(errors);
    }
    let public = match leave.kinds {
        Some(_) => BTreeSet::new(),
        None => public_kinds(state, jobs).await?,
    };
    for (index, job) in jobs.iter().enumerate() {
        let mut check = JobCheck {
            caller,
            job,
            kinds: leave.kinds.as_ref().unwrap_or(&public),
            at: at(index),
            errors: &mut errors,
        };
        check.check_kind();
        check.check_webhooks();
        if names_throttle {
            check.check_throttle(state);
        }
    }
    Ok(errors)
}

/// The check of one job; its errors are at the fields below `at`.
struct JobCheck<'a> {
    caller: &'a Caller,
    job: &'a NewJob,
    /// The kinds that the token may enqueue.
    kinds: &'a BTreeSet<String>,
    at: String,
    errors: &'a mut Errors,
}

impl JobCheck<'_> {
    fn refuse(&mut self, field: &str, message: String) {
        self.errors.body(format!("{}/{field}", self.at), message);
    }

    fn check_kind(&mut self) {
        let (token, job) = (self.caller.token_name(), self.job);
        if job.kind == NOTIFICATION {
            return self.check_message();
        }
        if self.kinds.contains(&job.kind) {
            return;
        }
        let allowed = match &self.caller.leave.kinds {
            Some(kinds) => kinds
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
            None => "kinds that are public".to_owned(),
        };
        let message = format!(
            "token {token} may not enqueue kind {:?}; allowed: {allowed}",
            job.kind
        );
        self.refuse("kind", message);
    }

    fn check_message(&mut self) {
        let (token, job) = (self.caller.token_name(), self.job);
        if let Some((field, scope)) = missing_scope(self.caller, job) {
            let message = format!(
                "token {token} may not send this message without the scope {}; it has {}",
                scope.as_str(),
                self.caller.leave.scopes_reported()
            );
            self.refuse(field, message);
        }
        if job.cost > MESSAGE_COST_MAX {
            let message = format!(
                "is {}; token {token} may enqueue messages of at most {MESSAGE_COST_MAX} tokens",
                job.cost
            );
            self.refuse("cost", message);
        }
    }

    /// Checks that the token might enqueue the calls of the job's webhooks itself.
    fn check_webhooks(&mut self) {
        if !self.job.has_webhooks() {
            return;
        }
        let (name, token) = (webhook_field(self.job), self.caller.token_name());
        if !self.kinds.contains(HTTP) {
            let message = format!(
                "token {token} may not name webhooks, because it may not enqueue jobs of the kind {HTTP}, which call them"
            );
            self.refuse(name, message);
        } else if !self.caller.may_enqueue_to(WEBHOOKS) {
            let allowed = self.caller.leave.throttles_reported();
            let message = format!(
                "token {token} may not name webhooks, because it may not enqueue jobs to the throttle {WEBHOOKS}, through which they are called; allowed: {allowed}"
            );
            self.refuse(name, message);
        }
    }

    fn check_throttle(&mut self, state: &JobsState) {
        let (token, job) = (self.caller.token_name(), self.job);
        let throttle = &job.throttle;
        if self.caller.is_foreign(throttle) {
            let message = format!(
                "token {token} may not enqueue jobs to throttle {throttle}, which belongs to another tenant; name one of your own, or one that no tenant owns"
            );
            self.refuse("throttle", message);
        } else if !self.caller.may_enqueue_to(throttle) {
            let allowed = self.caller.leave.throttles_reported();
            let message = format!(
                "token {token} may not enqueue jobs to throttle {throttle}; allowed: {allowed}"
            );
            self.refuse("throttle", message);
        } else if let Some(reason) = reserved(state, job) {
            let message = format!(
                "token {token} may not enqueue this job to throttle {throttle}, which {reason}; that needs the scope admin"
            );
            self.refuse("throttle", message);
        }
        // The calls of webhooks have lanes by tenant or host.
        if *throttle == WEBHOOKS
            && !job.key.is_empty()
            && self.caller.tenant.as_deref() != Some(&*job.key)
        {
            let message = format!(
                "names the calls of others in throttle {WEBHOOKS}; leave it out, or name a throttle of your own"
            );
            self.refuse("key", message);
        }
    }
}

/// Returns the use for which the throttle of a job is reserved, if the job is not for that: a refusal
/// by the server of such a job would pause messages of others, an account, or alerts. The function
/// `flyball.check_job` tells the same to SQL.
fn reserved(state: &JobsState, job: &NewJob) -> Option<&'static str> {
    if job.throttle == ALERTS {
        return Some("sends the alerts of Flyball itself");
    }
    state.account_pools.iter().find_map(|pool| {
        match job.throttle.strip_prefix(pool.pool().name.as_str())? {
            "" if job.kind != NOTIFICATION => {
                Some("belongs to a pool and takes its messages alone")
            }
            ACCOUNTS => Some("belongs to a pool and limits its accounts"),
            _ => None,
        }
    })
}

/// Accepts a change of a job of a kind that the token may enqueue; new arguments are those that it
/// may give to such a job, and a new throttle is one to which it may enqueue jobs.
pub async fn check_update(
    state: &JobsState,
    caller: &Caller,
    kind: &str,
    args: Option<&Value>,
    throttle: Option<&str>,
) -> Result<(), Problem> {
    let mut job = NewJob::new(kind, args.cloned().unwrap_or_default());
    if let Some(throttle) = throttle {
        job.throttle = throttle.to_owned();
    }
    let at = |_| String::new();
    refused(errors_of(state, caller, &[job], throttle.is_some(), at).await?)
}

/// Adds what jobs of a tenant may not name, as far as the handlers of this process know. Workers ask
/// again.
fn refuse_to_tenant(state: &JobsState, tenant: &str, job: &NewJob, at: &str, errors: &mut Errors) {
    let problem = |kind: &str, args: &Value| {
        let rule = state.kinds.get(kind)?.tenants(args)?;
        rule.problem(tenant).cloned()
    };
    if let Some(issue) = problem(&job.kind, &job.args) {
        errors.body(format!("{at}/args{}", issue.pointer), issue.message);
    }
    if let Some(secret) = &job.webhook_secret
        && let Some(issue) = problem(HTTP, &json!({"secret": secret}))
    {
        errors.body(format!("{at}/webhook_secret"), issue.message);
    }
}

fn refused(errors: Errors) -> Result<(), Problem> {
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Problem::fields(Code::NotAllowed, errors))
    }
}

/// Returns the scope that the token lacks for a message, whatever route the message came by, and
/// the field that needs the scope.
fn missing_scope(caller: &Caller, job: &NewJob) -> Option<(&'static str, TokenScope)> {
    let critical = PRIORITIES.first();
    let is_critical = critical.is_some_and(|(word, number)| {
        job.args.get("priority").and_then(|given| given.as_str()) == Some(*word)
            || job.priority == *number
    });
    [
        (true, "kind", TokenScope::NotifySend),
        (is_critical, "priority", TokenScope::NotifyCritical),
    ]
    .into_iter()
    .find(|(is_needed, _, scope)| *is_needed && !caller.leave.has(*scope))
    .map(|(_, field, scope)| (field, scope))
}

/// Returns those kinds of the jobs that are public, as the handlers of this process and, for other
/// kinds, the announcements of other processes declare.
async fn public_kinds(state: &JobsState, jobs: &[NewJob]) -> Result<BTreeSet<String>, Problem> {
    let here = &state.kinds;
    let http = HTTP.to_owned();
    let called = jobs.iter().any(NewJob::has_webhooks).then_some(&http);
    let named: BTreeSet<&String> = jobs.iter().map(|job| &job.kind).chain(called).collect();
    let mut public: BTreeSet<String> = named
        .iter()
        .filter(|kind| here.get(kind).is_some_and(|handler| handler.public()))
        .map(|kind| (*kind).clone())
        .collect();
    if named.iter().any(|kind| here.get(kind).is_none()) {
        let elsewhere =
            with_timeout(ROW_TIMEOUT, postgres::read_public_kinds(&state.queue.pool)).await?;
        public.extend(
            elsewhere
                .into_iter()
                .filter(|kind| here.get(kind).is_none()),
        );
    }
    Ok(public)
}
