//! The progress of the search for hashes that other programs wrote.

use tokio::time::Instant;

/// The place at which the search goes on.
#[derive(Clone, Copy, Default)]
pub(super) struct Adoption {
    /// The index of the server being searched, counted from 0.
    pub(super) server: usize,
    pub(super) cursor: u64,
    pub(super) ended: Option<Instant>,
}
