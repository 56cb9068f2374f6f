//! Pages of documents, and the interface of a source.

use std::time::Duration;

use futures_util::future::{BoxFuture, ready};

use crate::reindex::Document;

/// Most bytes of a page; it ends early after them, however many documents were asked for.
pub(super) const PAGE_BYTES: usize = 32 << 20;

/// Some documents in the order of their keys.
#[derive(Clone, Debug, Default)]
pub struct DocumentPage {
    pub documents: Vec<Document>,
    /// True if more documents follow.
    pub more: bool,
}

/// Documents that have changed since a position in the source's log of changes.
#[derive(Clone, Debug, Default)]
pub struct ChangePage {
    /// The changed documents as they are now, each once.
    pub documents: Vec<Document>,
    /// The position after these changes; the old one while more of the changes before the next
    /// position follow in other pages.
    pub position: String,
    /// The age of the newest of these changes; zero if there are no more changes.
    pub lag: Duration,
    /// The time that the source's log reaches back, if there is a lag and the log can be read.
    pub log_window: Option<Duration>,
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
    /// The source no longer has the changes since the position.
    #[error("the source no longer has the changes since the last one that was copied: {0}")]
    ChangesLost(String),
}

/// Reads documents in pages, in the order of a key that never changes.
pub trait DocumentSource: Send + Sync + 'static {
    /// Estimates the number of documents in a few seconds at most; `None` if it cannot.
    fn estimate(&self) -> BoxFuture<'_, Result<Option<u64>, Error>>;

    /// Returns at most `limit` documents with keys above `after`; fewer if they are large.
    fn page<'a>(
        &'a self,
        after: Option<&'a [String]>,
        limit: usize,
    ) -> BoxFuture<'a, Result<DocumentPage, Error>>;

    /// Returns the present position in the source's log of changes. Every change from now on is
    /// after it, and every page that is read from now on is at least as new.
    fn position(&self) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(ready(Err(no_log())))
    }

    /// Returns changes after `position`, at most about `limit` and those of about a second, after a
    /// wait of up to a second for the first. Fewer are returned if the documents are large.
    fn changes<'a>(
        &'a self,
        position: &'a str,
        limit: usize,
    ) -> BoxFuture<'a, Result<ChangePage, Error>> {
        let _ = (position, limit);
        Box::pin(ready(Err(no_log())))
    }
}

fn no_log() -> Error {
    Error::Wrong("this source has no log of changes to follow".to_owned())
}
