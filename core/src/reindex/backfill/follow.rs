//! Following: after the scan, the changes of the source since the scan's start, and then each as it
//! happens.
//!
//! Changes are copied in pages. A page begins when the one before it is stored, so that no older
//! state of a document can overwrite a newer one, and then the position is saved. A worker that is
//! killed repeats at most a page, or the parts of one whose documents are large.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Backfill, BackfillEnd, saves};
use crate::reindex::source::{ChangePage, DocumentPage, DocumentSource};
use crate::reindex::{BulkPacer, Window};

/// Lag above which a job reports it; below it, changes are in transit. Also the interval at which it
/// reports a source that does not answer.
const CURRENT_WITHIN: Duration = Duration::from_secs(5);

impl Backfill<'_> {
    /// Copies changes until the job is stopped.
    pub(super) async fn follow(&mut self, source: &dyn DocumentSource) -> Result<(), BackfillEnd> {
        let cancelled = self.context.cancelled.clone();
        self.progress.mark.scanned = true;
        loop {
            let position = self.progress.mark.position.clone().unwrap_or_default();
            let asked = Instant::now();
            let mut changes = source.changes(&position, self.args.batch_docs);
            let page = loop {
                tokio::select! {
                    () = cancelled.cancelled() => return Err(BackfillEnd::Stopped),
                    page = &mut changes => break page?,
                    () = sleep(CURRENT_WITHIN) => self.report_silence(asked.elapsed())?,
                }
            };
            self.report_lag(&page);
            if page.lag < CURRENT_WITHIN {
                self.progress.mark.rescans = 0;
            }
            let position = page.position;
            self.take_in(DocumentPage {
                documents: page.documents,
                more: true,
            });
            self.settle_all().await?;
            // Before the last part of a page the position stays, and all of it is read again after
            // a kill.
            if self.progress.mark.position.as_ref() != Some(&position) {
                self.count_refused();
            }
            self.progress.mark.position = Some(position);
            self.has_followed = true;
            if self.saving.is_empty() {
                self.save();
            } else if let Some(saved) = self.saving.try_join_next() {
                self.checkpoint_saved(saved.ok())?;
            }
        }
    }

    /// Sends what was taken in, and waits until all of it is stored or refused.
    async fn settle_all(&mut self) -> Result<(), BackfillEnd> {
        let mut save = saves();
        while !self.window.is_empty() {
            self.step(&mut save, None).await?;
        }
        Ok(())
    }

    /// Writes into the note that the source does not answer, which may be tried again for minutes.
    fn report_silence(&mut self, silence: Duration) -> Result<(), BackfillEnd> {
        let silence = silence.as_secs();
        self.progress.following = Some(format!("the source has not answered for {silence} s"));
        if let Some(saved) = self.saving.try_join_next() {
            self.checkpoint_saved(saved.ok())?;
        }
        self.save();
        Ok(())
    }

    /// Writes into the note how far the copy is behind, and warns before the source drops changes.
    fn report_lag(&mut self, page: &ChangePage) {
        let lag = page.lag.as_secs();
        let is_current = page.lag < CURRENT_WITHIN;
        let mut note = match is_current {
            true => "following the changes".to_owned(),
            false => format!("following the changes, {lag} s behind"),
        };
        if let Some(window) = page.log_window.filter(|_| !is_current)
            && window < 2 * page.lag
        {
            note += &format!(
                "; the source keeps changes for {} s only: raise the rate or the size of its log",
                window.as_secs()
            );
            if self.progress.following.as_ref() != Some(&note) {
                tracing::warn!(
                    job.id = self.job.id,
                    lag_s = lag,
                    log_window_s = window.as_secs(),
                    "reindex may lose changes"
                );
            }
        }
        self.progress.following = Some(note);
    }

    /// Forgets everything, for a scan from the beginning.
    pub(super) async fn discard(&mut self) {
        self.flights.shutdown().await;
        self.fresh.clear();
        self.fresh_bytes = 0;
        self.again.clear();
        self.again_bytes = 0;
        self.window = Window::default();
        self.refused.clear();
        self.pace = BulkPacer::new(self.args.batch_docs);
        self.progress.restart();
        self.resumed_at = 0;
    }
}
