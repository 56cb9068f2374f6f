//! The limits of the accounts that send a message, for its explanation.

use std::sync::Arc;

use crate::api::http::caller::Caller;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::pools::{add_limits, view_of};
use crate::notify::Deliveries;
use crate::providers::pool::AccountPool;
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
    pub async fn add_to(&self, explained: &mut MessageExplanation, caller: &Caller) {
        if !waits_at_pool(explained) {
            return;
        }
        let find = self.deliveries.find(explained.id, caller.tenant.as_deref());
        let Ok(Some(message)) = with_timeout(ROW_TIMEOUT, find).await else {
            return;
        };
        if let Some(pool) = view_of(&self.pools, &message.pool) {
            add_limits(&mut explained.sentence, &pool, caller.sees(&message.pool));
        }
    }
}

/// Returns true if a message has passed its gates and waits in the throttle of its pool, or for an
/// account.
pub fn waits_at_pool(explained: &MessageExplanation) -> bool {
    explained
        .gates
        .iter()
        .any(|step| step.gate == MessageGate::Pool.as_str() && step.finding == GateFinding::Waits)
}
