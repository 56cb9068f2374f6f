//! The answers of the index: stored and refused documents, retries, and pauses.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::{Backfill, BackfillEnd, failed};
use crate::jobs::Scope;
use crate::reindex::document::Document;
use crate::reindex::flight::{FinishedFlight, Item, item_backoff, whole_backoff};
use crate::reindex::progress::RefusedDocument;
use crate::reindex::sink::{WriteError, WriteOutcome};
use crate::throttle::{KeyOutcomes, UpstreamRefusal};

/// Longest wait inside the job at the index's request; for a longer one the job's key is paused.
const LONGEST_HOLD: Duration = Duration::from_secs(600);
/// Tries after which a document that the index is too busy for is named.
const NAMED_AFTER: u32 = 5;
/// Failed bulk requests in a row, about a minute and a half of them, after which the attempt ends.
const MAX_STRIKES: u32 = 8;
/// The type of a refusal of a request for which the node lacks the memory; a smaller one may fit.
const NO_MEMORY: &str = "circuit_breaking_exception";
/// The part by which requests grow with each that the index takes, after an answer halved them.
const GROWTH: usize = 128;

impl Backfill<'_> {
    pub(super) fn settle(&mut self, landed: FinishedFlight) -> Result<(), BackfillEnd> {
        let FinishedFlight { items, answer } = landed;
        match answer {
            Ok(written) => self.answered(items, written),
            // A request with one document cannot be split.
            Err(WriteError::TooLarge { .. }) if items.len() == 1 => {
                for item in items {
                    let reason = "413: the document is too large for the index".to_owned();
                    self.settle_one(item, WriteOutcome::Refused(reason));
                }
            }
            Err(WriteError::TooLarge { bytes }) => {
                self.batch_bytes = (bytes / 2).clamp(1, self.batch_bytes);
                self.batch_bytes_max = self.batch_bytes;
                self.send_again(items);
            }
            Err(WriteError::Busy {
                retry_after,
                reason,
            }) => {
                if items.len() > 1 && reason.contains(NO_MEMORY) {
                    let bytes: usize = items.iter().map(|item| item.document.bytes()).sum();
                    self.batch_bytes = (bytes / 2).clamp(1, self.batch_bytes);
                }
                let delay = self.strike(retry_after, &reason);
                self.send_again(items);
                if delay > LONGEST_HOLD {
                    return Err(BackfillEnd::Throttled(delay, reason));
                }
            }
            Err(WriteError::Late { bytes }) => {
                // All of them at once would be late again.
                if items.len() > 1 {
                    self.batch_bytes = (bytes / 2).clamp(1, self.batch_bytes);
                }
                self.unanswered(items, &format!("no answer in time to {bytes} bytes"))?;
            }
            Err(WriteError::Lost(reason)) => self.unanswered(items, &reason)?,
            // One that was there, and has documents behind the cursor, was deleted.
            Err(WriteError::Absent(reason)) if self.progress.mark.key.is_none() => {
                self.unanswered(items, &reason)?;
            }
            Err(trouble @ (WriteError::Wrong(_) | WriteError::Gone(_) | WriteError::Absent(_))) => {
                return Err(failed(trouble));
            }
        }
        self.report_rejections();
        self.advance();
        Ok(())
    }

    /// Settles the documents of a request that the index answered, one by one.
    fn answered(&mut self, items: Vec<Item>, written: Vec<WriteOutcome>) {
        if std::mem::take(&mut self.strikes) > 0 {
            self.progress.trouble = None;
        }
        // The cause of a late answer may be over, and a job that follows runs for months.
        let grown = self.batch_bytes + (self.batch_bytes / GROWTH).max(1);
        self.batch_bytes = grown.min(self.batch_bytes_max);
        let many = |wanted: fn(&WriteOutcome) -> bool| {
            written.iter().filter(|written| wanted(written)).count()
        };
        self.pace.record_response(
            many(|w| *w == WriteOutcome::Stored),
            many(|w| matches!(w, WriteOutcome::Rejected(_))),
        );
        for (item, written) in items.into_iter().zip(written) {
            self.settle_one(item, written);
        }
    }

    pub(super) fn settle_one(&mut self, item: Item, written: WriteOutcome) {
        match written {
            WriteOutcome::Stored => {
                self.stored += 1;
                self.window.settle(item.number);
            }
            WriteOutcome::Refused(reason) => self.refuse(item.number, item.document, &reason),
            WriteOutcome::Rejected(reason) => {
                self.rejected.get_or_insert_with(|| reason.clone());
                self.busy(item, &reason);
            }
            WriteOutcome::Busy(reason) => self.busy(item, &reason),
        }
    }

    /// Settles a document that is refused for good, which counts once the checkpoint is behind it.
    pub(super) fn refuse(&mut self, number: u64, document: Document, reason: &str) {
        let id = document.id.unwrap_or_else(|| document.key.join(","));
        self.refused
            .insert(number, RefusedDocument::new(&id, reason));
        self.window.settle(number);
    }

    fn busy(&mut self, mut item: Item, reason: &str) {
        item.tries += 1;
        // One that the index will never take holds up all others, so a person must find it.
        self.progress.trouble = Some(match item.tries {
            0..NAMED_AFTER => format!("the index is busy: {reason}"),
            tries => {
                let id = item.document.id.as_deref().unwrap_or_default();
                let id: String = id.chars().take(100).collect();
                format!("the index did not take document {id} in {tries} tries: {reason}")
            }
        });
        self.wait_for(item_backoff(item.tries), item);
    }

    /// Reports rejected documents to the throttle as an overload, in the same way as a job that a
    /// server refused.
    ///
    /// The throttle pauses the key for a moment, longer with each rejection in a row. It learns no
    /// rate, because one bulk request says little about it:
    /// [`BulkPacer`](crate::reindex::BulkPacer) does that. From then on stored documents are
    /// reported as well, which ends the row.
    fn report_rejections(&mut self) {
        while self.reporting.try_join_next().is_some() {}
        if self.rejected.is_none() && !self.watched {
            self.stored = 0;
        }
        if !self.reporting.is_empty() || (self.rejected.is_none() && self.stored == 0) {
            return;
        }
        let (rejected, stored) = (self.rejected.take(), std::mem::take(&mut self.stored));
        let (store, throttle, key) = (
            self.context.throttles.clone(),
            self.throttle.clone(),
            self.job.key.clone(),
        );
        let report = async move {
            if stored > 0 {
                let ended = KeyOutcomes {
                    key: &key,
                    succeeded: 1,
                    tokens: stored as f64,
                    ..KeyOutcomes::default()
                };
                if let Err(error) = store.ended(&throttle, &[ended]).await {
                    tracing::debug!(throttle.name = %throttle, %error, "reporting stored documents to the throttle failed");
                }
            }
            if let Some(why) = rejected {
                let jitter = rand::random();
                // The operator has named the sink, so its answer is trusted.
                let refused = UpstreamRefusal {
                    key: &key,
                    scope: Scope::Key,
                    is_overload: true,
                    is_untrusted: false,
                    delay: None,
                    jitter,
                    why: &why,
                };
                if let Err(error) = store.refused(&throttle, &refused).await {
                    tracing::warn!(throttle.name = %throttle, %error, "reporting rejected documents to the throttle failed");
                }
            }
        };
        self.reporting.spawn(report.boxed());
    }

    /// Sends documents again whose request was not answered, unless too many were not.
    fn unanswered(&mut self, items: Vec<Item>, reason: &str) -> Result<(), BackfillEnd> {
        self.strike(None, reason);
        self.send_again(items);
        if self.strikes > MAX_STRIKES {
            return Err(BackfillEnd::Failed(format!(
                "the index did not answer: {reason}"
            )));
        }
        Ok(())
    }

    fn send_again(&mut self, items: Vec<Item>) {
        for item in items {
            self.wait_for(Duration::ZERO, item);
        }
    }

    /// Inserts an item, the oldest document first, because the cursor waits for it.
    fn wait_for(&mut self, delay: Duration, item: Item) {
        self.again_bytes += item.document.bytes();
        let at = self
            .again
            .partition_point(|(_, other)| other.number < item.number);
        self.again.insert(at, (Instant::now() + delay, item));
    }

    /// Holds all requests after a bulk request failed as a whole. Requests that were in flight with
    /// it count as the same strike.
    fn strike(&mut self, retry_after: Option<Duration>, reason: &str) -> Duration {
        let now = Instant::now();
        if now >= self.hold_until {
            self.strikes += 1;
        }
        let delay = retry_after.unwrap_or_else(|| whole_backoff(self.strikes));
        self.hold_until = self.hold_until.max(now + delay.min(LONGEST_HOLD));
        self.progress.trouble = Some(format!("waiting for the index: {reason}"));
        delay
    }
}
