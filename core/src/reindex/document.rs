//! One document on its way from a source to a sink.

use std::sync::Arc;

/// A document of the source, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its position in the source: the key's columns as text, in the order of the scan.
    pub key: Arc<[String]>,
    /// Its id in the index, always the same for the same document; `None` if it has none.
    pub id: Option<String>,
    /// The text that determines its shard, if the job names a column for that and the document has
    /// a value there.
    pub routing: Option<String>,
    /// The change that the sink makes under the id, or the reason why it cannot make one.
    pub action: Action,
}

/// The change that a sink makes for a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stores this document, one line of JSON.
    Store(Arc<str>),
    /// Deletes the document, which is no longer in the source.
    Delete,
    /// Sends nothing, because the source's document cannot be written as JSON, for this reason.
    Refuse(String),
}

impl Document {
    /// Returns the approximate number of bytes that it adds to a bulk request.
    pub fn bytes(&self) -> usize {
        self.json().len() + self.id.as_ref().map_or(0, String::len) + 64
    }

    /// Returns the document as one line of JSON; empty if nothing is to be stored.
    pub fn json(&self) -> &str {
        match &self.action {
            Action::Store(json) => json,
            Action::Delete | Action::Refuse(_) => "",
        }
    }
}
