//! The kind `batch`: enqueues the messages of a large batch.

use std::time::Duration;

use serde_json::Value;

use super::postgres::Batches;
use crate::jobs::{Error, Handler, Issue, Outcome, PreparedJob};

/// The name of the kind.
pub const BATCH: &str = "batch";

/// The pause after a lock was not free in time.
const LOCKED_PAUSE: Duration = Duration::from_secs(2);

/// The handler of the kind `batch`.
pub struct ExpandBatch {
    batches: Option<Batches>,
}

impl ExpandBatch {
    /// Creates a handler that checks arguments, and enqueues messages if `batches` is given.
    pub fn new(batches: Option<Batches>) -> Self {
        Self { batches }
    }

    async fn expand(&self, id: i64, context: &crate::jobs::Context) -> Outcome {
        let Some(batches) = &self.batches else {
            return Outcome::Dead {
                error: "this process has no queue".to_owned(),
            };
        };
        if context.cancelled.is_cancelled() {
            return Outcome::HandedBack;
        }
        match batches.expand(id).await {
            Ok(()) => Outcome::Done,
            Err(error) => failed(&error),
        }
    }
}

/// Returns the outcome of an expansion that failed. No attempt is used by what is no fault of the
/// batch: a full queue, and an open transaction that has a lock which the messages need.
fn failed(error: &Error) -> Outcome {
    match error {
        Error::QueueFull { retry_after_s, .. } => Outcome::Snooze {
            delay: Duration::from_secs((*retry_after_s).clamp(1, 30)),
        },
        error if error.was_broken_off() => Outcome::Snooze {
            delay: LOCKED_PAUSE,
        },
        error => Outcome::Retry {
            after: None,
            error: error.to_string(),
        },
    }
}

impl Handler for ExpandBatch {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let Some(id) = args.get("batch").and_then(Value::as_i64) else {
            return Err(vec![Issue::new("/batch", "must be the number of a batch")]);
        };
        Ok(PreparedJob::new(move |_, context| async move {
            self.expand(id, &context).await
        }))
    }

    fn public(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::fmt;

    use sqlx::error::{DatabaseError, ErrorKind};

    use super::*;

    /// An answer of Postgres of which only the code matters.
    #[derive(Debug)]
    struct CodeAnswer(&'static str);

    impl fmt::Display for CodeAnswer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl std::error::Error for CodeAnswer {}

    impl DatabaseError for CodeAnswer {
        fn message(&self) -> &str {
            self.0
        }

        fn code(&self) -> Option<Cow<'_, str>> {
            Some(self.0.into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> ErrorKind {
            ErrorKind::Other
        }
    }

    #[test]
    fn a_lock_that_is_not_free_uses_no_attempt_of_a_batch() {
        let of = |code| failed(&sqlx::Error::Database(Box::new(CodeAnswer(code))).into());
        for code in ["55P03", "40P01", "40001"] {
            let outcome = of(code);
            assert!(matches!(outcome, Outcome::Snooze { .. }), "{code}");
        }
        assert!(matches!(of("42601"), Outcome::Retry { .. }));
    }
}
