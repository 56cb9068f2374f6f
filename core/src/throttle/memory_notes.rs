//! Notes in memory, for a single process and for tests.

use std::collections::BTreeMap;

use futures_util::future::{BoxFuture, FutureExt, ready};
use parking_lot::Mutex;

use super::memory::Clock;
use super::notes::{Notes, NotesSnapshot};
use super::{Error, Name};

/// A store of notes that live as long as the process.
pub struct MemoryNotes {
    notes: Mutex<BTreeMap<(Name, String), String>>,
    clock: Clock,
}

impl MemoryNotes {
    /// Creates an empty store with the time in unix microseconds from `clock`.
    pub fn new(clock: Clock) -> Self {
        Self {
            notes: Mutex::default(),
            clock,
        }
    }
}

impl Notes for MemoryNotes {
    fn read<'a>(&'a self, throttle: &'a Name) -> BoxFuture<'a, Result<NotesSnapshot, Error>> {
        let notes = self.notes.lock();
        let of = notes.iter().filter(|((name, _), _)| name == throttle);
        let notes = of
            .map(|((_, key), note)| (key.clone(), note.clone()))
            .collect();
        ready(Ok(NotesSnapshot {
            notes,
            now_ms: (self.clock)() / 1000,
        }))
        .boxed()
    }

    fn swap<'a>(
        &'a self,
        throttle: &'a Name,
        key: &'a str,
        old: Option<&'a str>,
        new: &'a str,
    ) -> BoxFuture<'a, Result<bool, Error>> {
        let mut notes = self.notes.lock();
        let place = (throttle.clone(), key.to_owned());
        let is_same = notes.get(&place).map(String::as_str) == old;
        if is_same {
            notes.insert(place, new.to_owned());
        }
        ready(Ok(is_same)).boxed()
    }
}
