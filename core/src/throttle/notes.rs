//! Notes beside a throttle: small texts by key that several processes change in turn without
//! overwriting each other.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use super::{Error, Name};

/// All notes of a throttle at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NotesSnapshot {
    /// The texts by their keys.
    pub notes: BTreeMap<String, String>,
    /// The store's clock, unix milliseconds.
    pub now_ms: i64,
}

/// A store of notes.
pub trait Notes: Send + Sync + 'static {
    /// Reads all notes of a throttle.
    fn read<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<NotesSnapshot, Error>>;

    /// Replaces the note of `key` if it still is `old` (`None` for no note); returns true if it
    /// was.
    fn swap<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        old: Option<&'a str>,
        new: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>>;
}
