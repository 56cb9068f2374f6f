//! Retention: deletes messages of inboxes whose time is over.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::postgres::{Inbox, PRUNED_MAX};
use crate::jobs::Error;
use crate::service::{LoopOptions, housekeeping};

/// The time between two polls for old messages.
const PRUNE_EVERY: Duration = Duration::from_secs(60);

/// Deletes messages that are older than `days` until `cancel` fires.
pub async fn keep(inbox: Inbox, days: u32, cancel: CancellationToken) {
    let pace = LoopOptions {
        name: "prune_inboxes",
        every: PRUNE_EVERY,
        wake: None,
    };
    housekeeping(pace, cancel, || {
        let inbox = inbox.clone();
        async move {
            while inbox.prune(days).await? >= i64::from(PRUNED_MAX) {}
            Ok::<(), Error>(())
        }
    })
    .await;
}
