//! The choice of a connection for each push, and the opening and closing of connections.
//!
//! ```text
//!   opening ─▶ open: 1 push at a time ─good answer─▶ proven: ≤`streams` at once ─▶ closing ─▶ gone
//!                 │                                     │
//!                 └──────── too many new tokens ────────┴──▶ aside for a while
//! ```
//!
//! Times are measured from the creation of the driver.

use std::collections::BTreeMap;
use std::time::Duration;

/// The time that an unneeded connection stays idle before it is closed.
const IDLE: Duration = Duration::from_secs(30);

/// The idle time of the last connection: Apple takes frequent opening and closing for an attack.
const LAST_IDLE: Duration = Duration::from_secs(600);

/// The time after a rejection during which Apple may allow one stream only, so that answers are
/// slow without load.
const NARROW_AFTER_REJECTION: Duration = Duration::from_secs(2);

/// The pause after a failure to connect during which no connection is opened, unless there is no
/// other.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// The number of connections set aside at which no replacements are opened any more.
const MAX_ASIDE: usize = 3;

/// All connections, by number.
#[derive(Debug)]
pub(super) struct Lines {
    streams: usize,
    most: usize,
    lines: BTreeMap<u64, Line>,
    next: u64,
    hold_until: Duration,
}

#[derive(Debug)]
struct Line {
    is_open: bool,
    is_proven: bool,
    is_closing: bool,
    /// The number of streams that the server allows.
    allowed: usize,
    busy: usize,
    idle_since: Duration,
    aside_until: Duration,
    rejected_at: Option<Duration>,
}

/// The effect of a push's answer on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PushEffect {
    /// The answer has no effect.
    Nothing,
    /// Apple accepted a token.
    Good,
    /// Apple rejected a push.
    Rejected,
    /// The connection is unusable for this long.
    Aside(Duration),
    /// The connection broke, or accepts no new streams.
    BatchPanicked,
}

impl Lines {
    pub(super) fn new(streams: usize, most: usize) -> Self {
        Self {
            streams: streams.max(1),
            most,
            lines: BTreeMap::new(),
            next: 0,
            hold_until: Duration::ZERO,
        }
    }

    /// Sets the maximum number of concurrent pushes.
    pub(super) fn set_most(&mut self, most: usize) {
        self.most = most.max(1);
    }

    /// Chooses the connection for the next push and counts the push as in progress. The fullest
    /// comes first, so that others can close.
    pub(super) fn take(&mut self, now: Duration) -> Option<u64> {
        if self.busy() >= self.most {
            return None;
        }
        let streams = self.streams;
        let room = |line: &Line| {
            if line.is_proven {
                streams.min(line.allowed)
            } else {
                line.allowed.min(1)
            }
        };
        let free = self
            .lines
            .iter_mut()
            .filter(|(_, line)| line.is_open && line.is_usable(now) && line.busy < room(line));
        let (id, line) = free.max_by_key(|(_, line)| (line.is_proven, line.busy))?;
        line.busy += 1;
        Some(*id)
    }

    /// Returns the numbers of the connections to open now for `waiting` pushes.
    pub(super) fn open(&mut self, waiting: usize, now: Duration) -> Vec<u64> {
        let usable = || self.lines.values().filter(|line| line.is_usable(now));
        let waiting = waiting.min(self.most.saturating_sub(self.busy()));
        let needed =
            (usable().map(|line| line.busy).sum::<usize>() + waiting).div_ceil(self.streams);
        let there = usable().count();
        let aside = self
            .lines
            .values()
            .filter(|line| line.is_aside(now))
            .count();
        let is_held = there > 0 && now < self.hold_until;
        let missing = if is_held || aside >= MAX_ASIDE {
            0
        } else {
            needed.saturating_sub(there)
        };
        let ids: Vec<u64> = (self.next..).take(missing).collect();
        self.next += missing as u64;
        self.lines
            .extend(ids.iter().map(|id| (*id, Line::opening(now))));
        ids
    }

    /// Marks a connection as open but not yet proven.
    pub(super) fn opened(&mut self, id: u64, now: Duration) {
        if let Some(line) = self.lines.get_mut(&id) {
            (line.is_open, line.idle_since) = (true, now);
        }
    }

    /// Removes a connection that could not be opened. Returns true if no other connection can take
    /// the waiting pushes.
    pub(super) fn failed(&mut self, id: u64, now: Duration) -> bool {
        self.lines.remove(&id);
        self.hold_until = now + RECONNECT_DELAY;
        !self.lines.values().any(|line| line.is_usable(now))
    }

    /// Removes a connection that has ended.
    pub(super) fn lost(&mut self, id: u64) {
        self.lines.remove(&id);
    }

    /// Marks a connection as closing: it takes no new pushes, but finishes those in progress.
    pub(super) fn closing(&mut self, id: u64) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.is_closing = true;
        }
    }

    /// Records the number of streams that the server allows on a connection.
    pub(super) fn allowed(&mut self, id: u64, streams: usize) {
        if let Some(line) = self.lines.get_mut(&id) {
            line.allowed = streams;
        }
    }

    /// Records the end of a push on a connection.
    pub(super) fn ended(&mut self, id: u64, effect: PushEffect, now: Duration) {
        let Some(line) = self.lines.get_mut(&id) else {
            return;
        };
        line.busy = line.busy.saturating_sub(1);
        line.idle_since = now;
        match effect {
            PushEffect::Nothing => {}
            PushEffect::Good => line.is_proven = true,
            PushEffect::Rejected => line.rejected_at = Some(now),
            PushEffect::Aside(time) => line.aside_until = line.aside_until.max(now + time),
            PushEffect::BatchPanicked => line.is_closing = true,
        }
    }

    /// Returns true if the duration of a push that began at `began` says nothing about load,
    /// because another one was rejected meanwhile or just before.
    pub(super) fn is_narrow(&self, id: u64, began: Duration) -> bool {
        self.lines
            .get(&id)
            .and_then(|line| line.rejected_at)
            .is_some_and(|at| began < at + NARROW_AFTER_REJECTION)
    }

    /// Returns the time until the first connection that is set aside can be used again. Returns
    /// `None` while another connection is usable or may be opened.
    pub(super) fn stuck(&self, now: Duration) -> Option<Duration> {
        let aside = || self.lines.values().filter(|line| line.is_aside(now));
        let is_stuck =
            aside().count() >= MAX_ASIDE && !self.lines.values().any(|line| line.is_usable(now));
        aside()
            .map(|line| line.aside_until.saturating_sub(now))
            .min()
            .filter(|_| is_stuck)
    }

    /// Removes and returns the connections to close now: those that are unneeded and carry no push.
    pub(super) fn close(&mut self, now: Duration) -> Vec<u64> {
        let most = self.most.div_ceil(self.streams).max(1);
        let usable = |line: &&mut Line| line.is_open && line.is_usable(now);
        let surplus = self
            .lines
            .values_mut()
            .filter(|line| usable(line))
            .count()
            .saturating_sub(most);
        for _ in 0..surplus {
            let least = self
                .lines
                .values_mut()
                .filter(usable)
                .min_by_key(|line| (line.is_proven, line.busy));
            least.into_iter().for_each(|line| line.is_closing = true);
        }
        let mut left = self
            .lines
            .values()
            .filter(|line| line.is_usable(now))
            .count();
        let mut gone = Vec::new();
        for (id, line) in &self.lines {
            let is_unused = line.is_open && line.busy == 0;
            let idle = now.saturating_sub(line.idle_since);
            let limit = if left > 1 { IDLE } else { LAST_IDLE };
            if is_unused && line.is_closing {
                gone.push(*id);
            } else if is_unused && line.is_usable(now) && idle >= limit {
                gone.push(*id);
                left -= 1;
            }
        }
        for id in &gone {
            self.lines.remove(id);
        }
        gone
    }

    fn busy(&self) -> usize {
        self.lines.values().map(|line| line.busy).sum()
    }
}

impl Line {
    fn opening(now: Duration) -> Self {
        Self {
            is_open: false,
            is_proven: false,
            is_closing: false,
            allowed: usize::MAX,
            busy: 0,
            idle_since: now,
            aside_until: Duration::ZERO,
            rejected_at: None,
        }
    }

    fn is_aside(&self, now: Duration) -> bool {
        now < self.aside_until && !self.is_closing
    }

    fn is_usable(&self, now: Duration) -> bool {
        !self.is_closing && !self.is_aside(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn after(seconds: u64) -> Duration {
        NOW + Duration::from_secs(seconds)
    }

    /// Creates the given number of open and proven connections.
    fn proven(streams: usize, most: usize, lines: usize) -> Lines {
        let mut all = Lines::new(streams, most);
        let ids = all.open(lines * streams, NOW);
        assert_eq!(ids.len(), lines);
        for id in ids {
            all.opened(id, NOW);
            assert_eq!(
                all.take(NOW),
                Some(id),
                "the others are still opening or busy"
            );
        }
        for id in 0..lines as u64 {
            all.ended(id, PushEffect::Good, NOW);
        }
        all
    }

    fn taken(lines: &mut Lines, pushes: usize) -> Vec<u64> {
        (0..pushes).map_while(|_| lines.take(NOW)).collect()
    }

    #[test]
    fn a_new_connection_takes_one_push_until_an_answer_was_good() {
        let mut lines = Lines::new(3, 10);
        assert_eq!(
            lines.open(5, NOW),
            [0, 1],
            "five pushes need two connections of three streams"
        );
        assert_eq!(lines.open(5, NOW), [0; 0], "they are on their way");
        assert_eq!(lines.take(NOW), None, "none is open");
        lines.opened(0, NOW);
        assert_eq!(taken(&mut lines, 9), [0]);
        lines.ended(0, PushEffect::Rejected, NOW);
        assert_eq!(taken(&mut lines, 9), [0], "a rejection proves nothing");
        lines.ended(0, PushEffect::Good, NOW);
        assert_eq!(taken(&mut lines, 9), [0, 0, 0]);
        lines.opened(1, NOW);
        assert_eq!(taken(&mut lines, 9), [1]);
    }

    #[test]
    fn never_more_than_the_most_are_under_way_nor_than_the_server_allows() {
        let mut lines = proven(10, 15, 2);
        assert_eq!(taken(&mut lines, 99).len(), 15);
        assert_eq!(
            lines.open(1000, NOW),
            [0; 0],
            "what may go has its connections"
        );
        let mut lines = proven(10, 15, 1);
        lines.allowed(0, 1);
        assert_eq!(taken(&mut lines, 99).len(), 1);
    }

    #[test]
    fn the_fullest_is_filled_and_surplus_ones_close_when_they_are_idle() {
        let mut lines = proven(10, 30, 3);
        assert_eq!(taken(&mut lines, 1).len(), 1);
        let first = taken(&mut lines, 12);
        assert_eq!(
            first.iter().filter(|id| **id == first[0]).count(),
            9,
            "the first is filled"
        );
        lines.set_most(10);
        let gone = lines.close(NOW);
        assert_eq!(gone.len(), 1, "the idle one closes at once");
        assert_eq!(
            lines.lines.values().filter(|line| !line.is_closing).count(),
            1
        );
        let closing = *lines
            .lines
            .iter()
            .find(|(_, line)| line.is_closing)
            .unwrap()
            .0;
        for _ in 0..3 {
            lines.ended(closing, PushEffect::Nothing, NOW);
        }
        assert_eq!(
            lines.close(NOW),
            [closing],
            "the other when its pushes have ended"
        );
    }

    #[test]
    fn idle_ones_close_after_a_while_and_the_last_one_late() {
        let mut lines = proven(10, 30, 3);
        assert_eq!(lines.close(after(29)), [0; 0]);
        assert_eq!(lines.close(after(30)).len(), 2);
        assert_eq!(lines.close(after(599)), [0; 0]);
        assert_eq!(lines.close(after(600)).len(), 1);
    }

    #[test]
    fn a_connection_aside_is_replaced_but_not_without_end() {
        let mut lines = proven(10, 30, 1);
        let aside = PushEffect::Aside(Duration::from_secs(60));
        let mut id = lines.take(NOW).unwrap();
        for number in 1..3 {
            lines.ended(id, aside, NOW);
            assert_eq!((lines.take(NOW), lines.stuck(NOW)), (None, None));
            assert_eq!(lines.open(1, NOW), [number]);
            lines.opened(number, NOW);
            id = lines.take(NOW).unwrap();
        }
        lines.ended(id, aside, after(1));
        assert_eq!(lines.open(1, after(1)), [0; 0]);
        assert_eq!(lines.stuck(after(1)), Some(Duration::from_secs(59)));
        assert_eq!(lines.close(after(50)), [0; 0], "it is remembered");
        assert!(lines.take(after(60)).is_some());
    }

    #[test]
    fn a_failure_to_open_is_not_repeated_at_once_while_others_are_there() {
        let mut lines = proven(1, 30, 1);
        assert_eq!(lines.open(2, NOW), [1]);
        assert!(!lines.failed(1, NOW));
        assert_eq!(lines.open(2, NOW), [0; 0]);
        assert_eq!(lines.open(2, after(1)), [2]);
        lines.lost(0);
        assert!(lines.failed(2, after(1)), "nobody is left");
        assert_eq!(lines.open(1, after(1)), [3]);
    }

    #[test]
    fn after_a_rejection_times_report_nothing_for_a_moment() {
        let mut lines = proven(10, 30, 1);
        assert!(!lines.is_narrow(0, NOW));
        lines.ended(0, PushEffect::Rejected, NOW);
        assert!(lines.is_narrow(0, Duration::ZERO), "what was under way");
        assert!(lines.is_narrow(0, after(1)), "what came just behind");
        assert!(!lines.is_narrow(0, after(2)));
    }
}
