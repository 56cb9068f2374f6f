//! The arguments of an ask as last needed: the chain of its throttle, and the keys of each lane.
//!
//! The caller must name every key, and most throttles need none of their lanes' keys. So an ask
//! carries the keys that the last one needed, and the Lua script reports missing ones before it
//! changes anything.

use std::collections::HashMap;
use std::sync::Arc;

use crate::throttle::{MAX_LANES_PER_ASK, Name};

/// The number of throttles whose shape is remembered; a forgotten shape costs one more round trip.
const MAX_SHAPES: usize = 10_000;

/// The keys that an ask carries for each lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    /// The lanes' buckets, needed if keys have a rate.
    pub(super) buckets: bool,
    /// The lanes' pauses and learned state, needed if any key of the throttle is paused or was
    /// refused.
    pub(super) pauses: bool,
    /// The lanes' holders, needed if keys have a concurrency limit.
    pub(super) holds: bool,
}

impl Extra {
    pub(super) fn read(letters: &str) -> Self {
        Self {
            buckets: letters.contains('b'),
            pauses: letters.contains('p'),
            holds: letters.contains('k'),
        }
    }

    /// Returns the letter of each needed kind of key, with the part of the key's name.
    pub(super) fn parts(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let parts = [
            (self.buckets, "b", "lane:"),
            (self.pauses, "p", "pause:"),
            (self.pauses, "l", "learned:"),
            (self.holds, "k", "holds:"),
        ];
        parts
            .into_iter()
            .filter(|(is_needed, _, _)| *is_needed)
            .map(|(_, letter, part)| (letter, part))
    }

    /// Returns the limit of lanes in one call, chosen so that it takes Redis less than half a
    /// millisecond. Measured for one lane: up to 1.7 µs alone, 3.8 µs with its bucket, 6 µs with
    /// its holds.
    pub(super) fn most_lanes(self) -> usize {
        match (self.buckets, self.holds) {
            (false, false) => MAX_LANES_PER_ASK,
            (true, true) => 40,
            _ => 64,
        }
    }

    pub(super) fn letters(self) -> String {
        self.parts().map(|(letter, _)| letter).collect()
    }
}

/// The chain and the kinds of keys that an ask of one throttle must carry.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// The chain, root first, with the text of `parent` at each level.
    pub(super) chain: Arc<[(Name, String)]>,
    pub(super) extra: Extra,
}

/// The shapes of throttles as last needed.
#[derive(Debug, Default)]
pub(super) struct Shapes(HashMap<Name, Shape>);

impl Shapes {
    /// Returns the known shape of `leaf`, or a plain one without parent and extra keys, which the
    /// Lua script corrects.
    pub(super) fn of(&self, leaf: &Name) -> Shape {
        let plain = || Shape {
            chain: [(leaf.clone(), String::new())].into(),
            extra: Extra::default(),
        };
        self.0.get(leaf).cloned().unwrap_or_else(plain)
    }

    pub(super) fn remember(&mut self, leaf: &Name, shape: &Shape) {
        if let Some(known) = self.0.get_mut(leaf) {
            *known = shape.clone();
            return;
        }
        if self.0.len() >= MAX_SHAPES {
            self.0.clear();
        }
        self.0.insert(leaf.clone(), shape.clone());
    }
}
