//! Finds lanes with work: from notifications, from new jobs, and, as the safety net below both,
//! from sweeps over the whole index.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::lane_scheduler::LaneScheduler;
use super::notifier::PendingWakeups;
use super::shared::{WorkerContext, bounded};
use crate::jobs::{Error, ReadyPriorities, SHARDS, lanes_of};
use crate::throttle::is_admission;

/// Longest interval between polls for new jobs while producers are not asked to notify.
const ARRIVALS_EVERY: Duration = Duration::from_millis(100);

/// Time by which polls reach back, to find jobs that committed a moment after younger ones were
/// seen.
const LOOK_BACK: Duration = Duration::from_secs(2);

/// Interval of polls that reach back. Jobs that commit later still are found by a sweep, which
/// hurries once a transaction ends that was open for longer than this interval.
const LOOK_BACK_EVERY: Duration = Duration::from_secs(1);

/// Shortest interval between the beginnings of two sweeps over the worker's own lanes, unless a
/// sweep must hurry.
const SWEEP_EVERY: Duration = Duration::from_secs(2);

/// Inverse of the largest share of time spent on a sweep, which runs in small slices so that claims
/// go on beside it.
const SWEEP_DUTY: u32 = 20;

/// Inverse of the largest share of time spent on the first sweep while plenty of lanes are due.
const FIRST_SWEEP_DUTY: u32 = 5;

/// Inverse of the largest share of time spent on a sweep that hurries.
const HURRIED_SWEEP_DUTY: u32 = 2;

/// Number of due lanes that counts as plenty.
const PLENTY: usize = 2000;

/// Interval at which an idle worker looks at the lanes of other workers.
const GUESTS_EVERY: Duration = Duration::from_millis(250);

/// Most lanes named in one statement.
const MAX_LANES_PER_STATEMENT: usize = 1000;

/// Most lanes of other workers' throttles that are remembered.
const MAX_FOREIGN: usize = 200_000;

/// Interval at which the weights of lanes are read.
const WEIGHTS_EVERY: Duration = Duration::from_secs(2);

/// Interval of sweeps, and of readings of the weights, while the queue is quiet: a worker that looks
/// for due work would find what they find.
const QUIET_POLL_EVERY: Duration = Duration::from_secs(20);

/// A sweep in progress.
struct Sweep {
    ranges: Vec<RangeInclusive<i64>>,
    begun: Instant,
    is_hurried: bool,
}

/// The dispatcher's record of its polls.
pub(super) struct Discovery {
    owned: u64,
    last: Option<i64>,
    /// The newest job at each poll of the last seconds.
    marks: Vec<(Instant, i64)>,
    next_arrivals: Instant,
    next_look_back: Instant,
    sweep: Option<Sweep>,
    next_sweep: Instant,
    is_first: bool,
    /// The transactions that were open at the last poll, each with the number of earlier polls that
    /// saw it.
    writing: HashMap<i64, u32>,
    next_writing: Instant,
    /// True if the current sweep may have missed a job that committed late, so that the next one
    /// must hurry.
    hurry: bool,
    next_guests: Instant,
    guest_shard: u8,
    next_weights: Instant,
    weights_read: Option<Instant>,
    swept: Option<Instant>,
    /// Lanes of throttles that this worker leaves to others.
    foreign: HashSet<i64>,
}

impl Discovery {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            owned: 0,
            last: None,
            marks: Vec::new(),
            next_arrivals: now,
            next_look_back: now,
            sweep: None,
            next_sweep: now,
            is_first: true,
            writing: HashMap::new(),
            next_writing: now,
            hurry: false,
            next_guests: now,
            guest_shard: 0,
            next_weights: now,
            weights_read: None,
            swept: None,
            foreign: HashSet::new(),
        }
    }

    /// Returns the time of the next poll. A worker that producers notify need not poll for
    /// arrivals.
    pub(super) fn next(&self, is_notified: bool) -> Instant {
        let quiet = self.next_sweep.min(self.next_weights);
        if is_notified {
            quiet
        } else {
            quiet.min(self.next_arrivals)
        }
    }

    /// Carries out the polls that are due now.
    pub(super) async fn poll(
        &mut self,
        shared: &WorkerContext,
        scheduler: &mut LaneScheduler,
        woken: PendingWakeups,
        owned: u64,
        is_notified: bool,
    ) -> Result<(), Error> {
        if owned != self.owned {
            self.owned = owned;
            scheduler.own(owned);
            shared.admissions.lock().own(owned);
            // Lanes that other workers looked after until now are swept at once.
            (self.sweep, self.next_sweep) = (None, Instant::now());
        }
        if !woken.lanes.is_empty() {
            // A notification does not carry the job's priority, so the claim begins at the head.
            let seen: Vec<ReadyPriorities> = woken
                .lanes
                .iter()
                .map(|lane| ReadyPriorities {
                    lane_id: *lane,
                    priorities: 0b1111,
                    head: i64::MAX,
                })
                .collect();
            self.take_in(shared, scheduler, &seen).await?;
        }
        let somewhere = woken.somewhere || scheduler.ignores_notifications(&woken.lanes);
        let now = Instant::now();
        if woken.unheard {
            (self.next_look_back, self.next_sweep) = (now, now);
        } else if shared.is_quiet() {
            self.rest(now);
        }
        if somewhere || (!is_notified && now >= self.next_arrivals) {
            self.arrivals(shared, scheduler, now).await?;
        }
        if now >= self.next_weights {
            let weights: HashMap<i64, f32> = bounded(shared, shared.queue.weights())
                .await?
                .into_iter()
                .collect();
            scheduler.weigh(&weights);
            shared.admissions.lock().weigh(&weights);
            self.next_weights = now + WEIGHTS_EVERY;
            self.weights_read = Some(now);
        }
        if now >= self.next_writing {
            let writing = bounded(shared, shared.queue.writing()).await?;
            self.note_writing(&writing, now);
        }
        if now >= self.next_sweep {
            self.sweep(shared, scheduler).await?;
        }
        Ok(())
    }

    /// Leaves out polls while nothing happens. What they might find, the poll for due work finds
    /// within a second; a notification ends the rest, and must not meet an overdue poll.
    fn rest(&mut self, now: Instant) {
        let is_recent = |at: Option<Instant>| {
            at.is_some_and(|at| now.saturating_duration_since(at) < QUIET_POLL_EVERY)
        };
        if is_recent(self.weights_read) {
            self.next_weights = self.next_weights.max(now + WEIGHTS_EVERY);
        }
        if is_recent(self.swept) && self.sweep.is_none() && !self.hurry {
            self.next_sweep = self.next_sweep.max(now + SWEEP_EVERY);
        }
        // A transaction that ends meanwhile leaves a ready job, for which the poll asks.
        self.writing.clear();
        self.next_writing = now + LOOK_BACK_EVERY;
    }

    /// Records the open transactions. When one ends that was open for long, its jobs lie behind the
    /// looks at arrivals, in any lane, so the next sweep hurries.
    fn note_writing(&mut self, writing: &[i64], now: Instant) {
        self.next_writing = now + LOOK_BACK_EVERY;
        let before = std::mem::take(&mut self.writing);
        self.writing = writing
            .iter()
            .map(|id| (*id, before.get(id).map_or(0, |looks| looks + 1)))
            .collect();
        // A transaction seen only once may have been open for a moment only.
        if before
            .iter()
            .any(|(id, looks)| *looks > 0 && !self.writing.contains_key(id))
        {
            self.hurry = true;
            let is_hurried = self.sweep.as_ref().is_some_and(|sweep| sweep.is_hurried);
            if !is_hurried {
                (self.sweep, self.next_sweep) = (None, now);
            }
        }
    }

    /// Looks for new jobs, regardless of the time of the last poll; also the last poll before a
    /// sleep.
    pub(super) async fn arrivals(
        &mut self,
        shared: &WorkerContext,
        scheduler: &mut LaneScheduler,
        now: Instant,
    ) -> Result<(), Error> {
        self.next_arrivals = now + ARRIVALS_EVERY;
        let newest = match self.last {
            Some(last) => last,
            // Jobs from before this worker began are found by its first sweep.
            None => bounded(shared, shared.queue.newest_job()).await?,
        };
        let mut from = newest;
        if now >= self.next_look_back {
            self.next_look_back = now + LOOK_BACK_EVERY;
            let old = self
                .marks
                .iter()
                .rposition(|(at, _)| now.duration_since(*at) >= LOOK_BACK);
            from = old.map_or(from, |place| self.marks[place].1).min(from);
            self.marks.drain(..old.unwrap_or(0));
        }
        let found = bounded(shared, shared.queue.arrivals(from)).await?;
        let last = found.last.max(newest);
        self.last = Some(last);
        if self
            .marks
            .last()
            .is_none_or(|(at, _)| now.duration_since(*at) >= ARRIVALS_EVERY)
        {
            self.marks.push((now, last));
        }
        self.take_in(shared, scheduler, &found.lanes).await
    }

    async fn sweep(
        &mut self,
        shared: &WorkerContext,
        scheduler: &mut LaneScheduler,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let owned = self.owned;
        let hurry = &mut self.hurry;
        let sweep = self.sweep.get_or_insert_with(|| Sweep {
            ranges: ranges_of(owned),
            begun,
            is_hurried: std::mem::take(hurry),
        });
        let is_hurried = sweep.is_hurried;
        if let Some(range) = sweep.ranges.pop() {
            let slice = bounded(shared, shared.queue.sweep_lanes(range.clone())).await?;
            if let Some(next) = slice.next {
                sweep.ranges.push(next..=*range.end());
            }
            self.take_in(shared, scheduler, &slice.lanes).await?;
        }
        // The first sweep finds jobs from before this worker began, so it hurries, most of all
        // while there is little else to do.
        let duty = match (self.is_first, scheduler.due()) {
            (true, 0..PLENTY) => 1,
            _ if is_hurried => HURRIED_SWEEP_DUTY,
            (true, _) => FIRST_SWEEP_DUTY,
            (false, _) => SWEEP_DUTY,
        };
        self.next_sweep = begun + begun.elapsed() * duty;
        if let Some(sweep) = self.sweep.take_if(|sweep| sweep.ranges.is_empty()) {
            scheduler.swept();
            shared.admissions.lock().swept();
            self.is_first = false;
            self.swept = Some(begun);
            if !self.hurry {
                self.next_sweep = self
                    .next_sweep
                    .max(sweep.begun + SWEEP_EVERY.mul_f64(0.9 + rand::random::<f64>() * 0.2));
            }
        }
        Ok(())
    }

    /// Looks at the lanes of other workers, one range of shards at a time, while this worker has
    /// nothing to do.
    pub(super) async fn guests(
        &mut self,
        shared: &WorkerContext,
        scheduler: &mut LaneScheduler,
    ) -> Result<(), Error> {
        let now = Instant::now();
        // In a quiet queue no lane holds a job, whoever looks after it.
        if self.owned == u64::MAX || now < self.next_guests || shared.is_quiet() {
            return Ok(());
        }
        self.next_guests = now + GUESTS_EVERY.mul_f64(0.8 + rand::random::<f64>() * 0.4);
        let others = ranges_of(!self.owned);
        let range = others[usize::from(self.guest_shard) % others.len()].clone();
        self.guest_shard = self.guest_shard.wrapping_add(1);
        let slice = bounded(shared, shared.queue.sweep_lanes(range)).await?;
        self.take_in(shared, scheduler, &slice.lanes).await
    }

    async fn take_in(
        &mut self,
        shared: &WorkerContext,
        scheduler: &mut LaneScheduler,
        seen: &[ReadyPriorities],
    ) -> Result<(), Error> {
        let mut unknown = scheduler.seen(seen, Instant::now());
        if self.foreign.len() > MAX_FOREIGN {
            self.foreign.clear();
        }
        unknown.retain(|seen| !self.foreign.contains(&seen.lane_id));
        let own = &shared.served.own;
        let not_known = unknown.len();
        let unknown = shared.admissions.lock().seen(&unknown, Instant::now());
        let mut has_admissions = unknown.len() < not_known;
        for part in unknown.chunks(MAX_LANES_PER_STATEMENT) {
            let seen: HashMap<i64, ReadyPriorities> =
                part.iter().map(|seen| (seen.lane_id, *seen)).collect();
            let ids: Vec<i64> = part.iter().map(|seen| seen.lane_id).collect();
            for named in bounded(shared, shared.queue.name_lanes(&ids)).await? {
                let seen = seen[&named.lane_id];
                if is_admission(&named.throttle) && shared.broker.is_none() {
                    // Every worker admits messages, whatever throttles it serves.
                    shared.admissions.lock().adopt(named, seen, Instant::now());
                    has_admissions = true;
                } else if own.has_throttle(&named.throttle) && !is_admission(&named.throttle) {
                    scheduler.adopt(named, seen, Instant::now());
                } else {
                    self.foreign.insert(named.lane_id);
                }
            }
        }
        if has_admissions {
            shared.admission_work.notify_one();
        }
        Ok(())
    }
}

/// Returns the lane ranges of a set of shards, neighbours joined, the lowest last.
fn ranges_of(shards: u64) -> Vec<RangeInclusive<i64>> {
    let mut ranges: Vec<RangeInclusive<i64>> = Vec::new();
    for shard in (0..SHARDS).rev().filter(|shard| shards & (1 << shard) != 0) {
        let (low, high) = lanes_of(shard);
        match ranges.last_mut() {
            Some(last) if high.checked_add(1) == Some(*last.start()) => *last = low..=*last.end(),
            _ => ranges.push(low..=high),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_transaction_that_was_open_for_long_lets_the_sweep_begin_anew_and_hurry() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let mut discovery = Discovery::new(now);
        discovery.next_sweep = now + 100 * second;

        discovery.note_writing(&[7, 8], now);
        discovery.note_writing(&[7], now + second);
        assert!(
            !discovery.hurry,
            "the looks at arrivals reach back to what a short one wrote"
        );
        discovery.note_writing(&[], now + 2 * second);

        assert!(discovery.hurry);
        assert_eq!(discovery.next_sweep, now + 2 * second);
    }

    #[test]
    fn while_nothing_happens_looks_are_left_out_and_none_is_overdue_afterwards() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut discovery = Discovery::new(start);
        discovery.rest(start);
        assert_eq!(discovery.next(true), start, "the first looks are made");

        (discovery.swept, discovery.weights_read) = (Some(start), Some(start));
        discovery.rest(start + second);
        assert_eq!(discovery.next(true), start + 3 * second);
        assert!(discovery.next_writing > start + second);

        let due = discovery.next(true);
        discovery.rest(start + QUIET_POLL_EVERY);
        assert_eq!(
            discovery.next(true),
            due,
            "a look is due although it is quiet"
        );
    }

    #[test]
    fn neighbouring_shards_are_swept_in_one() {
        assert_eq!(ranges_of(u64::MAX), [i64::MIN..=i64::MAX]);
        assert_eq!(ranges_of(0), []);
        let (low, high) = (lanes_of(3).0, lanes_of(4).1);
        assert_eq!(ranges_of(0b1_1000), [low..=high]);
        assert_eq!(ranges_of(0b1_0001).len(), 2);
    }
}
