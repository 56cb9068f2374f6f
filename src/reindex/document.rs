//! One document on its way from a source to a sink.

use std::sync::Arc;

/// A row of the source, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Its place in the source: the key's columns as text, in the order of the scan.
    pub key: Arc<[String]>,
    /// Its id in the index; the same row always has the same one. `None` where the row's id is null.
    pub id: Option<String>,
    /// What chooses its shard, where the job names a column for that and the row has a value there.
    pub routing: Option<String>,
    /// The row as one line of JSON.
    pub json: Arc<str>,
}

impl Document {
    /// Bytes that it adds to a bulk request, roughly.
    pub fn bytes(&self) -> usize {
        self.json.len() + self.id.as_ref().map_or(0, String::len) + 64
    }
}
