//! Results of writing documents, and the interface of a sink.

use std::time::Duration;

use futures_util::future::{BoxFuture, ready};

use crate::reindex::Document;

/// The result of one document of a bulk request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Stored,
    /// The index asked for fewer documents; a retry may succeed.
    Rejected(String),
    /// The index was too busy for it; a retry may succeed.
    Busy(String),
    /// The index will never accept it as it is.
    Refused(String),
}

/// The failure of a whole bulk request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The index asks for a retry later.
    #[error("the index is busy: {reason}")]
    Busy {
        /// The delay that the index asked for, if any.
        retry_after: Option<Duration>,
        /// The index's answer.
        reason: String,
    },
    /// The request was too large for the index.
    #[error("a request of {bytes} bytes is too large for the index")]
    TooLarge {
        /// The size of the request, in bytes.
        bytes: usize,
    },
    /// The index did not answer in time. It may be too slow for so many documents at once, and may
    /// have stored them.
    #[error("the index did not answer in time to a request of {bytes} bytes")]
    Late {
        /// The size of the request, in bytes.
        bytes: usize,
    },
    /// The index cannot be reached, failed, or gave an unexpected answer; whether it stored
    /// anything is unknown.
    #[error("the index did not answer: {0}")]
    Lost(String),
    /// The index refuses everything that this job asks for.
    #[error("writing to the index failed: {0}")]
    Wrong(String),
    /// The index does not exist, so that nothing is stored in it any more.
    #[error("writing to the index failed: {0}")]
    Gone(String),
    /// The index does not exist, and the right to create it is missing; one of them may come.
    #[error("writing to the index failed: {0}")]
    Absent(String),
}

/// Stores documents in bulk. Storing the same id again overwrites.
pub trait Sink: Send + Sync + 'static {
    /// Creates everything that must exist before the first document.
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>>;

    /// Returns what tells the index from a later one of the same name; `None` if there is none, or
    /// nothing is known of it.
    fn identity(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(ready(None))
    }

    /// Describes the documents that searches find now and would not find after
    /// [`publish`](Self::publish) of an empty index; `None` if there are none.
    fn shown(&self) -> BoxFuture<'_, Result<Option<String>, WriteError>> {
        Box::pin(ready(Ok(None)))
    }

    /// Makes the index visible as the job asks, after the last document.
    fn publish(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(ready(Ok(())))
    }

    /// Stores or deletes documents and returns one result for each, in their order.
    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>>;
}
