//! Pages of documents, and the interface of a source.

use futures_util::future::BoxFuture;

use crate::reindex::Document;

/// Some documents in the order of their keys.
#[derive(Clone, Debug, Default)]
pub struct DocumentPage {
    pub documents: Vec<Document>,
    /// True if more documents follow.
    pub more: bool,
}

/// The failure of a source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source cannot be reached now; a retry may succeed.
    #[error("the source did not answer: {0}")]
    Lost(String),
    /// The source cannot be read as the job asks; only another job or another source helps.
    #[error("the source cannot be read: {0}")]
    Wrong(String),
}

/// Reads documents in pages, in the order of a key that never changes.
pub trait DocumentSource: Send + Sync + 'static {
    /// Estimates the number of documents in a few seconds at most; `None` if it cannot.
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>>;

    /// Returns at most `limit` documents with keys above `after`.
    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>>;
}
