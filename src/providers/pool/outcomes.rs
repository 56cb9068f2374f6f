//! The task that reports the outcomes of watched messages to the store.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::shared::{AccountPoolInner, MAX_OUTCOMES_REPORTED, SendFeedback};
use crate::jobs::Quota;
use crate::throttle::KeyOutcomes;

/// Reports the results of watched messages to the store, in batches.
pub(super) async fn report_outcomes(
    shared: Arc<AccountPoolInner>,
    mut ended: mpsc::Receiver<SendFeedback>,
) {
    let mut ends = Vec::new();
    while ended.recv_many(&mut ends, MAX_OUTCOMES_REPORTED).await > 0 {
        let mut by_account: std::collections::BTreeMap<String, (u32, f64, u32, Option<Quota>)> =
            std::collections::BTreeMap::new();
        for end in ends.drain(..) {
            let told = by_account.entry(shared.name(end.account)).or_default();
            if end.is_success {
                told.0 += 1;
                told.1 += end.cost;
            } else {
                told.2 += 1;
            }
            // The provider counts messages, the throttle counts tokens.
            let quota = end.quota.map(|quota| Quota {
                remaining: quota.remaining * end.cost,
                ..quota
            });
            told.3 = quota.or(told.3);
        }
        let told: Vec<KeyOutcomes<'_>> = by_account
            .iter()
            .map(|(key, (succeeded, tokens, failed, quota))| KeyOutcomes {
                key,
                succeeded: *succeeded,
                tokens: *tokens,
                failed: *failed,
                quota: *quota,
                is_hearsay: false,
            })
            .collect();
        if let Err(error) = shared.store.ended(&shared.accounts, &told).await {
            tracing::debug!(pool = %shared.pool.name, %error, "reporting message outcomes failed");
        }
    }
}
