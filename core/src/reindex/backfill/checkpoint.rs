//! The checkpoint of a copy: when it advances, and how it is saved.

use futures_util::FutureExt as _;
use tokio::time::timeout;

use super::{Backfill, BackfillEnd, DRAIN_WITHIN, failed};
use crate::jobs::CheckpointError;

impl Backfill<'_> {
    pub(super) fn advance(&mut self) {
        if let Some((count, key)) = self.window.advance() {
            self.progress.advance(count, &key);
        }
        // The position of a job that follows moves with a page, not with a document.
        if !self.progress.mark.scanned {
            self.count_refused();
        }
    }

    /// Counts the refused documents behind the cursor.
    pub(super) fn count_refused(&mut self) {
        while let Some(first) = self.refused.first_entry()
            && *first.key() < self.window.first()
        {
            self.progress.refuse(first.remove());
        }
    }

    /// Saves the checkpoint in the background, so that a slow database holds up nothing.
    ///
    /// An attempt that has not come forward and has nothing to tell saves none: a checkpoint is the
    /// reason why the loss of its worker uses no attempt, and a document that kills each worker
    /// would be tried for ever.
    pub(super) fn save(&mut self) {
        // The lag is told with a page of changes, which may be the one that kills.
        let has_lag = self.progress.following.is_some() && self.window.is_empty();
        let has_note = self.progress.trouble.is_some() || has_lag;
        if self.saved.is_none() && !has_note && self.progress.mark == self.resumed_from {
            return;
        }
        let checkpoint = self.progress.checkpoint(self.started.elapsed());
        if self.saving.is_empty() && self.saved.as_ref() != Some(&checkpoint) {
            let (id, fence, store, at) = (
                self.job.id,
                self.job.fence,
                self.context.checkpoints.clone(),
                checkpoint.clone(),
            );
            let save = async move { store.store(id, fence, &at).await };
            self.saving.spawn(save.boxed());
            self.saved = Some(checkpoint);
        }
    }

    /// Handles the result of a save: a failed one is repeated in a second, and a lost lease ends
    /// the run.
    pub(super) fn checkpoint_saved(
        &mut self,
        saved: Option<Result<(), CheckpointError>>,
    ) -> Result<(), BackfillEnd> {
        match saved {
            Some(Ok(())) => Ok(()),
            Some(Err(CheckpointError::LeaseLost(_))) => Err(BackfillEnd::LeaseLost),
            Some(Err(error @ CheckpointError::Store { .. })) => {
                tracing::warn!(job.id = self.job.id, %error, "reindex continues without a checkpoint");
                self.saved = None;
                Ok(())
            }
            None => {
                self.saved = None;
                Ok(())
            }
        }
    }

    /// Saves the checkpoint, then makes the index visible.
    ///
    /// A worker that was suspended and has lost the job is stopped by its fence: meanwhile its
    /// successor, or a later job, may have moved the alias elsewhere.
    pub(super) async fn publish(&mut self) -> Result<(), BackfillEnd> {
        // An older checkpoint must not be written after this one.
        if let Some(saved) = self.saving.join_next().await {
            self.checkpoint_saved(saved.ok())?;
        }
        let checkpoint = self.progress.checkpoint(self.started.elapsed());
        let (id, fence) = (self.job.id, self.job.fence);
        match self.context.checkpoints.store(id, fence, &checkpoint).await {
            Ok(()) => {
                let found = self.sink.identity().await;
                if self.is_another(found.as_ref()) {
                    let why = "the index was deleted and made again while it was filled";
                    return Err(BackfillEnd::Gone(why.to_owned()));
                }
                // The first document may have made it.
                self.progress.mark.index = found.or(self.progress.mark.index.take());
                if self.progress.mark.published {
                    return Ok(());
                }
                // A filter with a slip, or a collection that was emptied, would hide everything.
                let is_empty = self.progress.done == 0 && !self.args.allow_empty;
                if is_empty && let Some(shown) = self.sink.shown().await.map_err(failed)? {
                    return Err(BackfillEnd::Empty(format!(
                        "the source has no documents, and {shown}: it stays there. If the source is meant to be empty, \
                         set \"allow_empty\": true"
                    )));
                }
                self.sink.publish().await.map_err(failed)?;
                self.progress.mark.published = true;
                Ok(())
            }
            Err(CheckpointError::LeaseLost(_)) => Err(BackfillEnd::LeaseLost),
            Err(error @ CheckpointError::Store { .. }) => {
                Err(BackfillEnd::Failed(error.to_string()))
            }
        }
    }

    pub(super) async fn save_now(&mut self) {
        self.advance();
        // An older checkpoint must not be written after this one.
        let _ = timeout(DRAIN_WITHIN, self.saving.join_next()).await;
        let checkpoint = self.progress.checkpoint(self.started.elapsed());
        let kept = self
            .context
            .checkpoints
            .store(self.job.id, self.job.fence, &checkpoint);
        if let Ok(Err(error)) = timeout(DRAIN_WITHIN, kept).await {
            tracing::warn!(job.id = self.job.id, %error, "storing the last checkpoint of a reindex failed");
        }
    }
}
