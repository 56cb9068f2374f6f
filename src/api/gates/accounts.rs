//! The limits of the accounts that send a message, for its explanation.

use std::sync::Arc;

use crate::api::http::caller::Caller;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::notify::Deliveries;
use crate::providers::pool::{AccountPool, PoolView};
use crate::recipient::explain::{GateFinding, MessageExplanation};
use crate::recipient::gate::MessageGate;

/// The accounts of all pools, and the record of which pool sends a message.
#[derive(Clone)]
pub struct MessageAccounts {
    pub deliveries: Deliveries,
    pub pools: Arc<[AccountPool]>,
}

impl MessageAccounts {
    /// Adds the limits of its pool's accounts to the explanation of a message that waits there. The
    /// accounts are named for those who see the whole pool.
    pub async fn tell(&self, explained: &mut MessageExplanation, caller: &Caller) {
        if !waits_at_pool(explained) {
            return;
        }
        let find = self.deliveries.find(explained.id, caller.tenant.as_deref());
        let Ok(Some(message)) = with_timeout(ROW_TIMEOUT, find).await else {
            return;
        };
        if let Some(pool) = view_of(&self.pools, &message.pool) {
            tell_limits(&mut explained.sentence, &pool, caller.sees(&message.pool));
        }
    }
}

/// Returns the pool of this name as last observed.
pub fn view_of(pools: &[AccountPool], name: &str) -> Option<Arc<PoolView>> {
    let found = pools.iter().find(|accounts| accounts.pool().name == name);
    found.map(AccountPool::view)
}

/// Returns true if a message has passed its gates and waits in the throttle of its pool, or for an
/// account.
pub fn waits_at_pool(explained: &MessageExplanation) -> bool {
    explained
        .gates
        .iter()
        .any(|step| step.gate == MessageGate::Pool.as_str() && step.finding == GateFinding::Waits)
}

/// Adds the limits of a pool's accounts to a sentence, if there are any.
pub fn tell_limits(sentence: &mut String, pool: &PoolView, names: bool) {
    if let Some(limits) = pool.limits(names) {
        sentence.push_str("; ");
        sentence.push_str(&limits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::pool::{AccountView, Flow};

    #[test]
    fn only_a_pool_with_a_limited_account_adds_to_a_sentence() {
        let mut pool = PoolView {
            name: "mail".to_owned(),
            available: 1,
            accounts: vec![AccountView::default()],
            ..PoolView::default()
        };
        let told = |pool: &PoolView| {
            let mut sentence = "it waits".to_owned();
            tell_limits(&mut sentence, pool, false);
            sentence
        };
        assert_eq!(told(&pool), "it waits");
        pool.accounts[0].state = Flow::Open;
        pool.available = 0;
        assert_eq!(
            told(&pool),
            "it waits; 0 of 1 accounts of pool mail are available"
        );
    }
}
