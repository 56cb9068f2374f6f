//! The task that reports the outcomes of watched messages to the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::mpsc;

use super::shared::{AccountPoolInner, MAX_OUTCOMES_REPORTED, SendFeedback};
use crate::jobs::Quota;
use crate::throttle::KeyOutcomes;

/// The outcomes of one account's messages since the last report.
#[derive(Default)]
struct AccountOutcomes {
    succeeded: u32,
    /// The tokens of the messages that succeeded.
    tokens: f64,
    failed: u32,
    quota: Option<Quota>,
}

impl AccountOutcomes {
    fn add(&mut self, end: &SendFeedback) {
        if end.is_success {
            self.succeeded += 1;
            self.tokens += end.cost;
        } else {
            self.failed += 1;
        }
        // The provider counts messages, the throttle counts tokens.
        let quota = end.quota.map(|quota| Quota {
            remaining: quota.remaining * end.cost,
            ..quota
        });
        self.quota = quota.or(self.quota);
    }
}

/// Reports the results of watched messages to the store, in batches.
pub(super) async fn report_outcomes(
    shared: Arc<AccountPoolInner>,
    mut ended: mpsc::Receiver<SendFeedback>,
) {
    let mut ends = Vec::new();
    while ended.recv_many(&mut ends, MAX_OUTCOMES_REPORTED).await > 0 {
        let mut by_account: BTreeMap<String, AccountOutcomes> = BTreeMap::new();
        for end in ends.drain(..) {
            let account = shared.name(end.account);
            by_account.entry(account).or_default().add(&end);
        }
        let outcomes: Vec<KeyOutcomes<'_>> = by_account
            .iter()
            .map(|(key, outcomes)| KeyOutcomes {
                key,
                succeeded: outcomes.succeeded,
                tokens: outcomes.tokens,
                failed: outcomes.failed,
                begun_ago: None,
                quota: outcomes.quota,
                is_untrusted: false,
            })
            .collect();
        if let Err(error) = shared.store.ended(&shared.accounts, &outcomes).await {
            tracing::debug!(pool = %shared.pool.name, %error, "reporting message outcomes failed");
        }
    }
}
