//! The order in which messages that were read together are handed over.

use std::collections::HashMap;

use super::postgres::StoredMessage;

/// Orders messages so that tenants take turns; those of one tenant keep their order.
pub(super) fn in_turns(messages: &[StoredMessage]) -> Vec<&StoredMessage> {
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut turns: Vec<(usize, &StoredMessage)> = messages
        .iter()
        .map(|message| {
            let number = numbers.entry(&message.tenant).or_default();
            *number += 1;
            (*number, message)
        })
        .collect();
    turns.sort_by_key(|(number, _)| *number);
    turns.into_iter().map(|(_, message)| message).collect()
}
