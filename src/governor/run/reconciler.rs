//! The parts that a tick and the fast path work with.

use std::sync::Arc;

use parking_lot::Mutex;

use super::governed::GovernedThrottle;
use super::knob_writer::KnobWriter;
use super::records::Records;
use super::sources::Sources;
use crate::governor::watchdogs::Sharing;
use crate::throttle::{Status, Store};

/// The stores and sources of all governed throttles.
pub(super) struct Reconciler {
    pub store: Arc<dyn Store>,
    pub sources: Sources,
    pub records: Records,
    /// The governors that share a signal.
    pub sharing: Mutex<Sharing>,
}

impl Reconciler {
    /// Returns a writer of the throttle's knob, as it was read, in a term.
    pub fn writer<'a>(
        &'a self,
        throttle: &'a GovernedThrottle,
        term: u64,
        status: &'a Status,
    ) -> KnobWriter<'a> {
        KnobWriter {
            store: &*self.store,
            throttle,
            term,
            status,
        }
    }
}
