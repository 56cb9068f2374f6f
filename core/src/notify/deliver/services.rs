//! Resources for sending: the pools with their drivers, and the record of deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::notify::Deliveries;
use crate::providers::pool::AccountPool;
use crate::providers::{Driver, PoolMetrics};
use crate::recipient::service::Gates;

/// A running pool: its accounts, and their drivers in the same order.
#[derive(Clone)]
pub struct PoolHandle {
    /// Hands out accounts.
    pub accounts: AccountPool,
    /// The provider's drivers, one for each account.
    pub drivers: Arc<Vec<Box<dyn Driver>>>,
}

/// Resources for sending; checking arguments does not need them.
#[derive(Clone)]
pub struct DeliveryServices {
    /// The pools, by name.
    pub handles: BTreeMap<String, PoolHandle>,
    /// The record of deliveries.
    pub deliveries: Deliveries,
    /// The gates of recipients.
    pub gates: Gates,
    pub metrics: PoolMetrics,
}
