//! The handlers of a process, by kind, and the settings that override them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::handler::{Handler, PreparedJob, TenantRule};
use super::retry::Policy;
use super::serving::{SharedSettings, is_served};
use super::typed::{Typed, TypedFn};
use super::{Context, IntoOutcome, Issue, Job, TypedHandler, secret};

/// The operator's settings for a kind; `None` keeps the value of the handler.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tuning {
    /// Overrides [`Handler::timeout`].
    pub timeout: Option<Duration>,
    /// Overrides [`Policy::max_attempts`].
    pub max_attempts: Option<i32>,
    /// Overrides [`Policy::base`].
    pub retry_base: Option<Duration>,
    /// Overrides [`Policy::factor`].
    pub retry_factor: Option<f64>,
    /// Overrides [`Policy::max`].
    pub retry_max: Option<Duration>,
    /// Overrides [`Handler::public`].
    pub public: Option<bool>,
}

/// The handlers of a process, by kind.
#[derive(Clone, Default)]
pub struct Kinds(BTreeMap<String, Arc<dyn Handler>>);

impl Kinds {
    /// Registers a handler; the later of two for one kind wins.
    pub fn register(&mut self, kind: impl Into<String>, handler: impl Handler) {
        self.0.insert(kind.into(), Arc::new(handler));
    }

    /// Registers an async function as a handler, for kinds that need no check of their arguments
    /// and no timeout of their own.
    pub fn register_fn<F, R>(&mut self, kind: impl Into<String>, run: F)
    where
        F: Fn(Job, Context) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.register(kind, FromFn(run));
    }

    /// Registers an async function of typed arguments as a handler.
    ///
    /// ```
    /// # use flyball_core as flyball;
    /// use flyball::jobs::{Context, HandlerError, Kinds};
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Greeting {
    ///     name: String,
    /// }
    ///
    /// async fn greet(greeting: Greeting, _: Context) -> Result<(), HandlerError> {
    ///     println!("hello, {}", greeting.name);
    ///     Ok(())
    /// }
    ///
    /// let mut kinds = Kinds::default();
    /// kinds.register_typed("greet", greet);
    /// ```
    pub fn register_typed<A, F, R>(&mut self, kind: impl Into<String>, run: F)
    where
        A: DeserializeOwned + Send + 'static,
        F: Fn(A, Context) -> R + Send + Sync + 'static,
        R: Future<Output: IntoOutcome> + Send + 'static,
    {
        self.register(kind, TypedFn(run, PhantomData));
    }

    /// Registers a typed handler under its own kind.
    pub fn add<H: TypedHandler>(&mut self, handler: H) {
        self.register(H::KIND, Typed(handler));
    }

    /// Registers every handler of `others`; the later of two for one kind wins.
    pub fn extend(&mut self, others: Kinds) {
        self.0.extend(others.0);
    }

    /// Overrides the handler of a kind with settings; returns false if the kind is unknown.
    pub fn tune(&mut self, kind: &str, tuning: &Tuning) -> bool {
        let Some(handler) = self.0.get(kind).cloned() else {
            return false;
        };
        self.0.insert(
            kind.to_owned(),
            Arc::new(TunedHandler {
                handler,
                tuning: tuning.clone(),
            }),
        );
        true
    }

    /// Returns the handler of a kind.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn Handler>> {
        self.0.get(kind)
    }

    /// Returns every problem with the arguments of a job of a kind, if its handler is known here.
    ///
    /// The handler sees the secret values that are marked. Encrypted ones only its worker sees, so
    /// that one checks them.
    pub fn check(&self, kind: &str, args: &Value) -> Vec<Issue> {
        let Some(handler) = self.get(kind) else {
            return Vec::new();
        };
        if !secret::has_secrets(args) {
            return handler.prepare(args).err().unwrap_or_default();
        }
        let Some((plain, texts)) = secret::as_checked(args) else {
            return Vec::new();
        };
        let mut issues = handler.prepare(&plain).err().unwrap_or_default();
        for issue in &mut issues {
            texts.remove_from(&mut issue.message);
        }
        issues
    }

    /// Returns the capabilities that all handlers offer together.
    pub fn capabilities(&self) -> BTreeMap<String, String> {
        self.0
            .values()
            .flat_map(|handler| handler.capabilities())
            .collect()
    }

    /// Returns the settings of all handlers that all processes must share.
    pub fn settings(&self) -> SharedSettings {
        self.0
            .values()
            .flat_map(|handler| handler.settings())
            .collect()
    }

    /// Returns the kinds for which one of the patterns stands; all if there is none.
    pub fn only(&self, patterns: &[String]) -> Kinds {
        let served = self.0.iter().filter(|(kind, _)| is_served(patterns, kind));
        Kinds(
            served
                .map(|(kind, handler)| (kind.clone(), handler.clone()))
                .collect(),
        )
    }

    /// Returns the kinds in the order of their names.
    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

struct FromFn<F>(F);

impl<F, R> Handler for FromFn<F>
where
    F: Fn(Job, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(&self.0))
    }
}

/// A handler, with the settings that override it.
struct TunedHandler {
    handler: Arc<dyn Handler>,
    tuning: Tuning,
}

impl Handler for TunedHandler {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        self.handler.prepare(args)
    }

    fn needs(&self, args: &Value) -> Vec<String> {
        self.handler.needs(args)
    }

    fn tenants(&self, args: &Value) -> Option<TenantRule> {
        self.handler.tenants(args)
    }

    fn capabilities(&self) -> BTreeMap<String, String> {
        self.handler.capabilities()
    }

    fn settings(&self) -> SharedSettings {
        self.handler.settings()
    }

    fn timeout(&self) -> Option<Duration> {
        self.tuning.timeout.or(self.handler.timeout())
    }

    fn retry(&self) -> Policy {
        let own = self.handler.retry();
        // A first wait that was set is meant, however long it is, as with the waits of one job.
        let max = own.max.max(self.tuning.retry_base.unwrap_or_default());
        Policy {
            base: self.tuning.retry_base.unwrap_or(own.base),
            factor: self.tuning.retry_factor.unwrap_or(own.factor),
            max: self.tuning.retry_max.unwrap_or(max),
            max_attempts: self.tuning.max_attempts.or(own.max_attempts),
        }
    }

    fn public(&self) -> bool {
        self.tuning.public.unwrap_or_else(|| self.handler.public())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn settings_of_a_kind_win_over_its_handler_and_leave_the_rest() {
        let mut kinds = Kinds::default();
        kinds.register_fn("mail", |_: Job, _: Context| async { Outcome::Done });
        let tuning = Tuning {
            timeout: Some(Duration::from_secs(7)),
            retry_max: Some(Duration::from_secs(60)),
            ..Tuning::default()
        };

        assert!(kinds.tune("mail", &tuning) && !kinds.tune("post", &tuning));

        let mail = kinds.get("mail").unwrap();
        assert_eq!(mail.timeout(), Some(Duration::from_secs(7)));
        assert_eq!(
            mail.retry(),
            Policy {
                max: Duration::from_secs(60),
                ..Policy::default()
            }
        );
        assert_eq!(kinds.names(), ["mail"]);
    }

    #[test]
    fn a_first_wait_that_is_longer_than_an_hour_holds() {
        let hours = |hours: u64| Duration::from_secs(3600 * hours);
        let longest = |retry_max: Option<Duration>| {
            let mut kinds = Kinds::default();
            kinds.register_fn("mail", |_: Job, _: Context| async { Outcome::Done });
            let tuning = Tuning {
                retry_base: Some(hours(2)),
                retry_max,
                ..Tuning::default()
            };
            assert!(kinds.tune("mail", &tuning));
            kinds.get("mail").unwrap().retry().longest(1)
        };

        assert_eq!(longest(None), hours(2));
        assert_eq!(longest(Some(hours(1))), hours(1), "it was set as well");
    }
}
