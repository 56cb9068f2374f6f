//! A page of documents, and what a source must be able to do.

use futures_util::future::BoxFuture;

use crate::reindex::Document;

/// Some documents in the order of their keys.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The documents.
    pub documents: Vec<Document>,
    /// False when nothing follows.
    pub more: bool,
}

/// Why a source did not answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached now; later may help.
    #[error("the source did not answer: {0}")]
    Lost(String),
    /// It cannot be read as the job asks; only another job or another source helps.
    #[error("the source cannot be read: {0}")]
    Wrong(String),
}

/// Anything that can be read in pages, in the order of a key that never changes.
pub trait Source: Send + Sync + 'static {
    /// How many documents there are, as an estimate that takes seconds at most; `None` where that cannot be told.
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>>;

    /// At most `limit` documents with keys above `after`.
    fn page<'a>(&'a self, after: Option<&'a [String]>, limit: usize) -> BoxFuture<'a, Result<Page, Error>>;
}
