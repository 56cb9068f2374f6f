//! The dependencies of the routes of jobs.

use std::sync::Arc;

use crate::api::http::caller::Caller;
use crate::api::http::metrics::HttpMetrics;
use crate::api::http::places::Places;
use crate::jobs::{JobSearch, Kinds, Queue};
use crate::providers::pool::AccountPool;
use crate::throttle::{Listing, Store};

pub struct JobsState {
    pub queue: Queue,
    /// The handlers of this process, for their checks of arguments.
    pub kinds: Kinds,
    pub throttles: Arc<dyn Store>,
    /// The patterns among them, for warnings about those that do not exist.
    pub listing: Listing,
    /// The number of throttles beyond which none is made on first use.
    pub throttles_created_max: usize,
    /// The accounts of the pools, as this process last saw them.
    pub account_pools: Arc<[AccountPool]>,
    pub metrics: HttpMetrics,
    /// The requests that wait for the end of a job.
    pub waits: Places,
    /// The owners of the unique keys of tokens without a tenant.
    pub key_owners: Vec<String>,
    /// The beginning of the types of the problems of admission.
    pub problem_types: String,
}

impl JobsState {
    /// Fills in the owners whose unique keys a caller may mean.
    pub(in crate::api) fn fill_owners(&self, search: &mut JobSearch, caller: &Caller) {
        if search.unique_key.is_some() {
            search.key_owners.clone_from(&self.key_owners);
            search.key_owners.push(caller.owner.to_string());
        }
    }
}
