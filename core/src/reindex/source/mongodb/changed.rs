//! The documents that changed since a position, by their id in the index.
//!
//! Two documents of a collection may have the same id in the index, such as those whose `_id`s are
//! `7` and `"7"`, and a deleted `7` may come back as `7.0`. So one change makes all documents of
//! its id be read: what one is, or that it is gone, says nothing of the other.

use std::collections::BTreeMap;

use bson::Bson;

use super::conversion::{document_id, twins};

/// The ids of the index whose documents have changed and were not returned yet.
#[derive(Debug, Default)]
pub(super) struct ChangedIds(BTreeMap<String, Candidates>);

/// The documents of one id.
#[derive(Debug, Default)]
struct Candidates {
    /// The `_id`s that are to be read.
    ids: Vec<Bson>,
    /// True if the collection has one of those that were read.
    is_found: bool,
}

impl ChangedIds {
    /// Adds the document with this `_id`, and those with the same id in the index.
    pub(super) fn insert(&mut self, id: &Bson) {
        let known = self.0.entry(document_id(id)).or_default();
        if known.ids.is_empty() {
            known.ids = twins(id);
        }
        // `7` and `7.0` are one document at a time, and a query for either finds it.
        if !known.ids.iter().any(|other| is_text(other) == is_text(id)) {
            known.ids.push(id.clone());
        }
    }

    /// Returns the `_id`s that are to be read.
    pub(super) fn ids(&self) -> Vec<Bson> {
        let ids = self.0.values().flat_map(|known| &known.ids);
        ids.cloned().collect()
    }

    /// Takes out a document that was read; returns false if it was not wanted.
    pub(super) fn take(&mut self, id: &Bson) -> bool {
        let Some(known) = self.0.get_mut(&document_id(id)) else {
            return false;
        };
        let before = known.ids.len();
        known.ids.retain(|other| is_text(other) != is_text(id));
        known.is_found |= known.ids.len() < before;
        known.ids.len() < before
    }

    /// Takes out everything that is left after all documents were read; returns the ids that no
    /// document has.
    pub(super) fn take_gone(&mut self) -> Vec<String> {
        let left = std::mem::take(&mut self.0).into_iter();
        let gone = left.filter(|(_, known)| !known.is_found);
        gone.map(|(id, _)| id).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of ids.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

fn is_text(id: &Bson) -> bool {
    matches!(id, Bson::String(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(ids: &[Bson]) -> ChangedIds {
        let mut changed = ChangedIds::default();
        ids.iter().for_each(|id| changed.insert(id));
        changed
    }

    fn text(id: &str) -> Bson {
        Bson::String(id.to_owned())
    }

    #[test]
    fn an_id_is_gone_only_if_no_document_has_it() {
        for (changes, found, gone) in [
            (vec![Bson::Int32(7)], vec![], vec!["7"]),
            (vec![Bson::Int32(7)], vec![text("7")], vec![]),
            (vec![text("7")], vec![Bson::Int32(7)], vec![]),
            (vec![text("7")], vec![Bson::Double(7.0)], vec![]),
            // Deleted, and inserted as another type.
            (
                vec![Bson::Int32(7), Bson::Double(7.0)],
                vec![Bson::Double(7.0)],
                vec![],
            ),
            (
                vec![Bson::Int32(7), text("7"), text("a")],
                vec![text("7")],
                vec!["a"],
            ),
        ] {
            let mut changed = changed(&changes);
            for id in &found {
                assert!(changed.take(id), "{changes:?}: {id:?}");
            }
            assert_eq!(changed.take_gone(), gone, "{changes:?}");
            assert!(changed.is_empty());
        }
    }

    #[test]
    fn the_documents_of_one_id_are_read_together_and_each_once() {
        let mut changed = changed(&[Bson::Int32(7), text("7"), text("a")]);
        assert_eq!(changed.len(), 2);
        assert_eq!(changed.ids(), [text("7"), Bson::Int32(7), text("a")]);

        // The rest is read with the next page.
        assert!(changed.take(&text("7")));
        assert!(!changed.take(&text("7")));
        assert!(!changed.take(&text("8")));
        assert!(!changed.is_empty());
        assert!(changed.take(&Bson::Int64(7)));
        assert_eq!(changed.take_gone(), ["a"]);
    }
}
