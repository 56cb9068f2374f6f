//! Handlers with typed arguments.

use std::marker::PhantomData;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::{Path, Segment};

use super::handler::{DEFAULT_TIMEOUT, Handler, PreparedJob};
use super::retry::Policy;
use super::{Context, HandlerError, IntoOutcome, Issue, NewJob};
use crate::input;

/// A handler, which runs the jobs of one kind with typed arguments.
///
/// Arguments that do not fit the type are refused on arrival over HTTP; on any other way they make
/// the job dead, with a pointer to the field.
///
/// ```
/// # use flyball_core as flyball;
/// use flyball::jobs::{Context, HandlerError, Kinds, TypedHandler};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Greeting {
///     name: String,
/// }
///
/// struct Greet;
///
/// impl TypedHandler for Greet {
///     type Args = Greeting;
///     const KIND: &str = "greet";
///
///     async fn run(&self, greeting: Greeting, context: Context) -> Result<(), HandlerError> {
///         println!("hello, {} (attempt {})", greeting.name, context.job.attempt);
///         Ok(())
///     }
/// }
///
/// let mut kinds = Kinds::default();
/// kinds.add(Greet);
/// let job = Greet::job(&Greeting { name: "Ada".to_owned() }).unwrap();
/// assert_eq!((job.kind.as_str(), &job.args), ("greet", &serde_json::json!({"name": "Ada"})));
/// ```
pub trait TypedHandler: Send + Sync + 'static {
    /// The type of the arguments.
    type Args: DeserializeOwned + Send + 'static;

    /// The name of the kind.
    const KIND: &'static str;

    /// Runs one attempt, and should stop soon after `context.cancelled` fires.
    ///
    /// It must not block its thread: that holds up timeouts, and the heartbeats without which the
    /// worker counts as dead. `tokio::task::spawn_blocking` is for work that does.
    fn run(
        &self,
        args: Self::Args,
        context: Context,
    ) -> impl Future<Output = Result<(), HandlerError>> + Send;

    /// Returns every problem with arguments of the right type.
    fn check(&self, args: &Self::Args) -> Vec<Issue> {
        let _ = args;
        Vec::new()
    }

    /// Returns the timeout of an attempt; `None` for no bound.
    fn timeout(&self) -> Option<Duration> {
        DEFAULT_TIMEOUT
    }

    /// Returns the retry policy for failed attempts.
    fn retry(&self) -> Policy {
        Policy::default()
    }

    /// Returns true if every SQL role and every API token that may enqueue may enqueue this kind,
    /// as in [`Handler::public`].
    fn public(&self) -> bool {
        true
    }

    /// Returns a job of this kind, with every default, to be enqueued.
    fn job(args: &Self::Args) -> Result<NewJob, serde_json::Error>
    where
        Self: Sized,
        Self::Args: Serialize,
    {
        Ok(NewJob::new(Self::KIND, serde_json::to_value(args)?))
    }
}

/// A [`TypedHandler`] as a [`Handler`].
pub(super) struct Typed<H>(pub(super) H);

impl<H: TypedHandler> Handler for Typed<H> {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let args = read::<H::Args>(args).map_err(|issue| vec![issue])?;
        let issues = self.0.check(&args);
        if !issues.is_empty() {
            return Err(issues);
        }
        Ok(PreparedJob::new(|_, context| self.0.run(args, context)))
    }

    fn timeout(&self) -> Option<Duration> {
        self.0.timeout()
    }

    fn retry(&self) -> Policy {
        self.0.retry()
    }

    fn public(&self) -> bool {
        self.0.public()
    }
}

/// An async function of typed arguments as a [`Handler`].
pub(super) struct TypedFn<A, F>(pub(super) F, pub(super) PhantomData<fn(A)>);

impl<A, F, R> Handler for TypedFn<A, F>
where
    A: DeserializeOwned + Send + 'static,
    F: Fn(A, Context) -> R + Send + Sync + 'static,
    R: Future<Output: IntoOutcome> + Send + 'static,
{
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let args = read::<A>(args).map_err(|issue| vec![issue])?;
        Ok(PreparedJob::new(|_, context| (self.0)(args, context)))
    }
}

/// Reads the arguments as their type; fails with the position and the reason of a mismatch.
#[doc(hidden)]
pub fn read<A: DeserializeOwned>(args: &Value) -> Result<A, Issue> {
    serde_path_to_error::deserialize(args).map_err(|error| {
        let mut pointer = pointer(error.path());
        let message = error.inner().to_string();
        // The message alone names a missing field.
        if let Some((field, _)) = message
            .strip_prefix("missing field `")
            .and_then(|rest| rest.split_once('`'))
        {
            pointer = input::pointer(&pointer, field);
        }
        Issue::new(pointer, message)
    })
}

fn pointer(path: &Path) -> String {
    path.iter()
        .fold(String::new(), |at, segment| match segment {
            Segment::Seq { index } => format!("{at}/{index}"),
            Segment::Map { key } => input::pointer(&at, key),
            Segment::Enum { .. } | Segment::Unknown => at,
        })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize, PartialEq)]
    struct Letter {
        to: Vec<Address>,
        #[serde(default)]
        urgent: bool,
    }

    #[derive(Debug, Deserialize, PartialEq)]
    struct Address {
        name: String,
    }

    #[test]
    fn arguments_that_do_not_fit_are_pointed_at() {
        let good = read::<Letter>(&json!({"to": [{"name": "Ada"}]})).unwrap();
        assert_eq!(
            good,
            Letter {
                to: vec![Address { name: "Ada".into() }],
                urgent: false
            }
        );
        for (args, at, answer) in [
            (
                json!({"to": [{"name": "Ada"}, {"name": 7}]}),
                "/to/1/name",
                "invalid type: integer `7`, expected a string",
            ),
            (json!({"to": [{}]}), "/to/0/name", "missing field `name`"),
            (
                json!({"to": [], "urgent": "yes"}),
                "/urgent",
                "invalid type: string \"yes\", expected a boolean",
            ),
            (json!({}), "/to", "missing field `to`"),
            (
                json!("text"),
                "",
                "invalid type: string \"text\", expected struct Letter",
            ),
        ] {
            let issue = read::<Letter>(&args).unwrap_err();
            assert_eq!(
                (issue.pointer.as_str(), issue.message.as_str()),
                (at, answer),
                "{args}"
            );
        }
    }
}
