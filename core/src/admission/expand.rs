//! The kind `batch`: enqueues the messages of a large batch.

use serde_json::Value;

use super::postgres::Batches;
use crate::jobs::{Error, Handler, Issue, Outcome, PreparedJob};

/// The name of the kind.
pub const BATCH: &str = "batch";

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
            Err(Error::QueueFull { retry_after_s, .. }) => Outcome::Snooze {
                delay: std::time::Duration::from_secs(retry_after_s.clamp(1, 30)),
            },
            Err(error) => Outcome::Retry {
                after: None,
                error: error.to_string(),
            },
        }
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
