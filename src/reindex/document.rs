//! One document on its way from a source to a sink.

use std::sync::Arc;

/// A row of the source, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its position in the source: the key's columns as text, in the order of the scan.
    pub key: Arc<[String]>,
    /// Its id in the index, always the same for the same row; `None` if the row's id is null.
    pub id: Option<String>,
    /// The text that determines its shard, if the job names a column for that and the row has a
    /// value there.
    pub routing: Option<String>,
    /// The row as one line of JSON.
    pub json: Arc<str>,
}

impl Document {
    /// Returns the approximate number of bytes that it adds to a bulk request.
    pub fn bytes(&self) -> usize {
        self.json.len() + self.id.as_ref().map_or(0, String::len) + 64
    }
}
