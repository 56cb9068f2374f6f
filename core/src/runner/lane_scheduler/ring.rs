//! One throttle of the scheduler, with its lanes.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::runner::ids::IdSet;
use crate::runner::lane::Tag;
use crate::runner::visits::Visits;
use crate::runner::waits::Wait;
use crate::throttle::Name;

/// Fewest jobs asked of a throttle, however little it granted the last time.
pub(super) const MIN_APPETITE: usize = 8;

/// The order of lanes in a throttle: the lowest tag, then the oldest job, then the lane's number.
///
/// Jobs that came one after another lie together on the disk, so a round in the order of their
/// arrival reads each page once.
pub(super) type Rank = (Tag, i64, i64);

/// A throttle with its lanes.
pub(super) struct Ring {
    pub(super) name: Name,
    pub(super) weight: f64,
    pub(super) tag: f64,
    /// The lowest tag of lanes with work at the last plan, at which a newcomer starts.
    pub(super) begin: f64,
    pub(super) due: BTreeSet<Rank>,
    /// Lanes of shards that other workers look after, served when there is nothing else to do.
    pub(super) guests: BTreeSet<Rank>,
    /// Number of lanes, idle ones too.
    pub(super) lanes: usize,
    pub(super) block: Option<Block>,
    /// True if the last answer granted jobs, `None` before the first.
    pub(super) grants: Option<bool>,
    pub(super) appetite: usize,
    pub(super) held: u32,
    /// Lanes with held jobs.
    pub(super) holding: IdSet,
    pub(super) counts: bool,
    pub(super) drops: bool,
    /// Lanes that hold fewer jobs than last reported.
    pub(super) released: BTreeSet<i64>,
    pub(super) reported_at: Option<Instant>,
    /// Earliest time of the next report after one that failed.
    pub(super) unheard_until: Option<Instant>,
    pub(super) visits: Visits,
    /// True while it is in the list of open throttles.
    pub(super) is_listed: bool,
    /// True while it is in the list of those that report.
    pub(super) is_reporting: bool,
}

/// The wait of a throttle.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) wait: Wait,
    /// True if there is no throttle of that name.
    pub(super) is_unknown: bool,
}

impl Ring {
    /// Returns a throttle without lanes.
    pub(super) fn new(name: Name) -> Self {
        Self {
            name,
            weight: 1.0,
            tag: 0.0,
            begin: 0.0,
            due: BTreeSet::new(),
            guests: BTreeSet::new(),
            lanes: 0,
            block: None,
            grants: None,
            appetite: MIN_APPETITE * 8,
            held: 0,
            holding: IdSet::default(),
            counts: false,
            drops: false,
            released: BTreeSet::new(),
            reported_at: None,
            unheard_until: None,
            visits: Visits::default(),
            is_listed: false,
            is_reporting: false,
        }
    }

    /// Returns the lanes with work, those of this worker or those of others.
    pub(super) fn ready(&self, guests: bool) -> &BTreeSet<Rank> {
        if guests { &self.guests } else { &self.due }
    }

    /// Returns true if some lane may be asked for.
    pub(super) fn is_open(&self) -> bool {
        self.block.is_none() && self.all_ready() > 0
    }

    /// Returns true if there is no throttle of that name.
    pub(super) fn is_unknown(&self) -> bool {
        self.block.is_some_and(|block| block.is_unknown)
    }

    /// Returns the number of lanes with work.
    pub(super) fn all_ready(&self) -> usize {
        self.due.len() + self.guests.len()
    }
}
