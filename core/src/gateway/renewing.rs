//! A history whose end has gone back: all channels get a new epoch, and all readers a gap.

use tokio::time::Instant;

use super::postgres;
use super::service::Gateway;
use crate::jobs::Error;

impl Gateway {
    /// Looks whether the history still has the last message that this process has read. After a
    /// failover to a copy that lacks it, offsets that readers have mean other messages.
    pub(super) async fn check_end(&self) -> Result<(), Error> {
        let wanted = self.end.lock().wanted(Instant::now().into_std());
        let Some(wanted) = wanted else {
            return Ok(());
        };
        let found = postgres::history_end(&self.db, &wanted).await?;
        let mut is_renewed = self.end.lock().is_renewed(found.epoch);
        if found.went_back && postgres::renew_channels(&self.db, &wanted).await? {
            tracing::warn!(
                "the end of the history of channels is missing, as after a failover to a copy that \
                 lacks it; clients are told that they may have missed messages"
            );
        }
        if found.went_back {
            // Another process may have been faster, and a collector at work is waited for.
            let found = postgres::history_end(&self.db, &wanted).await?;
            let mut end = self.end.lock();
            end.note_missing(found.went_back);
            is_renewed |= end.is_renewed(found.epoch);
        }
        if is_renewed {
            self.hub.restart();
        }
        Ok(())
    }
}
