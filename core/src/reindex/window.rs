//! The window of documents between the cursor and the newest one read.

use std::collections::VecDeque;
use std::sync::Arc;

/// The documents between the cursor and the newest one read, in the order of the source.
///
/// Bulk requests are answered in any order and a document may be retried for long, while a cursor
/// must never pass a document that is not stored. So the cursor is the key of the last document of
/// the *contiguous* settled prefix.
#[derive(Debug, Default)]
pub struct Window {
    first: u64,
    documents: VecDeque<(Arc<[String]>, bool)>,
}

impl Window {
    /// Adds the next document of the source and returns its number.
    pub fn push(&mut self, key: Arc<[String]>) -> u64 {
        self.documents.push_back((key, false));
        self.first + self.documents.len() as u64 - 1
    }

    /// Marks a document as settled: stored, or refused for good and listed.
    pub fn settle(&mut self, number: u64) {
        let place = number
            .checked_sub(self.first)
            .and_then(|n| usize::try_from(n).ok());
        if let Some((_, settled)) = place.and_then(|n| self.documents.get_mut(n)) {
            *settled = true;
        }
    }

    /// Drops the settled prefix. Returns its length and the key of its last document.
    pub fn advance(&mut self) -> Option<(u64, Arc<[String]>)> {
        let mut last = None;
        let mut count = 0;
        while let Some((_, true)) = self.documents.front() {
            last = self.documents.pop_front().map(|(key, _)| key);
            count += 1;
        }
        self.first += count;
        last.map(|key| (count, key))
    }

    /// Returns the number of the oldest document that is not behind the cursor.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number of documents that were read and are not behind the cursor yet.
    pub fn len(&self) -> usize {
        self.documents.len()
    }

    /// Returns true if all documents read are behind the cursor.
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(n: u64) -> Arc<[String]> {
        Arc::from([n.to_string()])
    }

    #[test]
    fn the_cursor_waits_for_the_oldest_unsettled_document() {
        let mut window = Window::default();
        let numbers: Vec<_> = (0..4).map(|n| window.push(key(n))).collect();

        window.settle(numbers[1]);
        window.settle(numbers[2]);
        assert_eq!(window.advance(), None);

        window.settle(numbers[0]);
        assert_eq!(window.advance(), Some((3, key(2))));
        assert_eq!(window.len(), 1);
    }

    #[test]
    fn settling_twice_or_behind_the_cursor_changes_nothing() {
        let mut window = Window::default();
        let first = window.push(key(0));
        window.settle(first);
        window.advance();

        window.settle(first);
        window.settle(99);

        assert!(window.is_empty());
        assert_eq!(window.advance(), None);
    }

    proptest! {
        #[test]
        fn whatever_the_order_of_answers_no_cursor_passes_an_unsettled_document(order in Just((0..60u64).collect::<Vec<_>>()).prop_shuffle()) {
            let mut window = Window::default();
            for n in 0..60 { window.push(key(n)); }
            let mut settled = [false; 60];
            let mut done = 0;
            for n in order {
                window.settle(n);
                settled[n as usize] = true;
                if let Some((count, at)) = window.advance() {
                    done += count;
                    prop_assert_eq!(&*at, &*key(done - 1));
                }
                prop_assert!(settled[..done as usize].iter().all(|s| *s));
                prop_assert!(done == 60 || !settled[done as usize]);
            }
            prop_assert_eq!(done, 60);
        }
    }
}
