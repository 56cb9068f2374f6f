//! What becomes of documents, and what a sink must be able to do.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::reindex::Document;

/// What became of one document of a bulk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is stored.
    Stored,
    /// The index asked for fewer documents; later it will fit.
    Rejected(String),
    /// The index could not take it just now; later it will fit.
    Busy(String),
    /// The index will never take it as it is.
    Refused(String),
}

/// Why a whole bulk request was not answered per document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// The index asks us to come back later.
    #[error("the index is busy: {reason}")]
    Busy {
        /// When it said so itself.
        retry_after: Option<Duration>,
        /// What it answered.
        reason: String,
    },
    /// The request was too large for it.
    #[error("the index finds a request of {bytes} bytes too large")]
    TooLarge {
        /// Bytes of the request.
        bytes: usize,
    },
    /// It cannot be reached, failed, or answered something else; whether it stored anything is unknown.
    #[error("the index did not answer: {0}")]
    Lost(String),
    /// It will not take anything as this job asks.
    #[error("the index cannot be written: {0}")]
    Wrong(String),
}

/// Anything that stores documents in bulk. Storing the same id again overwrites.
pub trait Sink: Send + Sync + 'static {
    /// Makes ready what must be there before the first document.
    fn prepare(&self) -> BoxFuture<'_, Result<(), Trouble>>;

    /// Stores documents; one answer for each, in their order.
    fn write<'a>(&'a self, documents: &'a [Document]) -> BoxFuture<'a, Result<Vec<Written>, Trouble>>;
}
