//! Reads pages ahead of the sender, within bounds.

use std::sync::Arc;

use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::source::{DocumentPage, DocumentSource, Error};

/// Rows in the first page, while the size of a document is not known.
const FIRST_PAGE: usize = 100;
/// Most rows in a page, and so the most rows that may be older than the source's current ones.
const MAX_PAGE: usize = 2_000;

/// Pages of a source, in order. Reading stops when this is dropped.
pub(super) struct PageReader {
    /// The pages, or the error that ended them; closed after the last page or the first error.
    pub(super) pages: mpsc::Receiver<Result<DocumentPage, Error>>,
    _task: JoinSet<()>,
}

impl PageReader {
    /// Starts reading after `after`; at most two pages are held before they are taken.
    pub(super) fn start(
        source: Arc<dyn DocumentSource>,
        after: Option<Vec<String>>,
        batch_docs: usize,
        batch_bytes: usize,
    ) -> Self {
        let (sender, pages) = mpsc::channel(1);
        let mut task = JoinSet::new();
        let read = async move {
            let mut after = after;
            let mut limit = FIRST_PAGE;
            loop {
                let page = source.page(after.as_deref(), limit).await;
                let last = match &page {
                    Ok(page) => {
                        if let Some(next) = limit_for(page, batch_docs, batch_bytes) {
                            limit = next;
                        }
                        after = page.documents.last().map(|d| d.key.to_vec()).or(after);
                        !page.more
                    }
                    Err(_) => true,
                };
                if sender.send(page).await.is_err() || last {
                    return;
                }
            }
        };
        task.spawn(read.boxed());
        Self { pages, _task: task }
    }
}

/// Returns the size of the next page, in rows: about two bulk requests' worth, by the size of the
/// documents just read.
fn limit_for(page: &DocumentPage, batch_docs: usize, batch_bytes: usize) -> Option<usize> {
    let bytes: usize = page.documents.iter().map(super::Document::bytes).sum();
    let each = bytes.checked_div(page.documents.len())?.max(1);
    let most = (2 * batch_docs).clamp(FIRST_PAGE, MAX_PAGE);
    Some((2 * batch_bytes / each).clamp(1, most))
}
