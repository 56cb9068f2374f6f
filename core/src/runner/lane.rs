//! One lane as the scheduler knows it: its share, its wait, and the place in it where the next
//! claim begins. Pure; time is an argument.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use super::visits::MAX_VISIT;
use super::waits::Wait;
use crate::jobs::{LaneCursor, ReadyPriorities};

/// Longest time for which more urgent priorities may pass over a lower one, before one batch of it
/// goes first.
const AGEING: Duration = Duration::from_secs(2);

/// Jobs first asked for in a lane: the one of the notification. Its claim looks for another.
const MIN_APPETITE: u32 = 1;

/// Weight of a new sample in the estimate of a lane's mean cost.
const COST_WEIGHT: f64 = 0.3;

/// Turns that cheaper jobs may take from a lane whose next job costs more than there is.
const TURNS_LOST: u8 = 3;

/// Number of passed jobs above which a notification does not begin a walk from the head.
const FEW_PASSED: u32 = 1000;

/// Shortest and longest time between two walks from the head past jobs that others serve, and the
/// share of it for each passed job: jobs that came back, or committed late, wait for the next walk.
const WALK_AGAIN_MIN: Duration = Duration::from_secs(2);
const WALK_AGAIN_MAX: Duration = Duration::from_secs(30);
const WALK_AGAIN_PER_JOB: Duration = Duration::from_micros(400);

/// A look into a lane by a worker that runs only some of its jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneWalk {
    /// The last job that was looked at.
    pub to: LaneCursor,
    /// The newest job that was looked at.
    pub newest: i64,
    /// Number of jobs that this worker does not serve.
    pub passed: u32,
    /// True if no job is left behind.
    pub is_end: bool,
}

/// The part of a lane that was looked at, and that holds only jobs of other workers.
#[derive(Debug)]
struct PassedJobs {
    to: LaneCursor,
    newest: i64,
    jobs: u32,
    begun: Instant,
    /// The first place at which jobs have come since.
    news: Option<LaneCursor>,
}

impl PassedJobs {
    fn again_at(&self) -> Instant {
        self.begun + (WALK_AGAIN_PER_JOB * self.jobs).clamp(WALK_AGAIN_MIN, WALK_AGAIN_MAX)
    }
}

/// A position in virtual time, ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tag(pub f64);

impl Eq for Tag {}

impl PartialOrd for Tag {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Tag {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The state of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStatus {
    /// No known work.
    Idle,
    /// Work that may be asked for.
    Due,
    /// Work of unknown depth: its first claim is in progress, and tells if there is more. Most
    /// lanes that wake up have one job, for which a second claim would be in vain.
    FirstClaim,
    /// Work that was refused and must wait.
    Waiting(Wait),
}

/// The scheduler's record of a lane.
#[derive(Debug)]
pub struct Lane {
    /// Index of its throttle in the scheduler.
    pub ring: usize,
    /// The rate-limit key.
    pub key: Box<str>,
    /// Share relative to the other lanes of its throttle.
    pub weight: f64,
    /// Estimated mean cost of a job, in tokens.
    pub cost: f64,
    /// Turns in a row at which the throttle had tokens for less than one job.
    pub turns_lost: u8,
    /// The end of the wait that was told at the last of them.
    pub short_until: Option<Instant>,
    /// Position in virtual time.
    pub tag: f64,
    /// Position among lanes of the same tag.
    pub order: i64,
    /// The last job taken from the lane or seen in it, which sets its position in the next round.
    pub last: i64,
    pub status: LaneStatus,
    /// True if the last answer granted nothing, because of the lane itself.
    pub was_refused: bool,
    /// True if it waits until a job of its own key ends.
    pub wants_slot: bool,
    /// Jobs that run in this process.
    pub held: u32,
    /// Claims in progress.
    pub claims: u32,
    /// Most jobs asked for at once. The number of ready jobs is unknown, so this doubles while
    /// there are more.
    pub appetite: u32,
    /// The last sweep that found work.
    pub pass: u32,
    after: LaneCursor,
    visits: u32,
    head_at: Option<Instant>,
    noted: Option<Instant>,
    priorities: u8,
    served: Option<Box<[Instant; 4]>>,
    passed: Option<Box<PassedJobs>>,
}

impl Lane {
    /// Returns a lane of the throttle at index `ring`, without work.
    pub fn new(ring: usize, key: String, weight: f32) -> Self {
        Self {
            ring,
            key: key.into_boxed_str(),
            weight: f64::from(weight).max(1e-3),
            cost: 1.0,
            turns_lost: 0,
            short_until: None,
            tag: 0.0,
            order: 0,
            last: 0,
            status: LaneStatus::Idle,
            was_refused: false,
            wants_slot: false,
            held: 0,
            claims: 0,
            appetite: MIN_APPETITE,
            pass: 0,
            after: LaneCursor::default(),
            visits: 0,
            head_at: None,
            noted: None,
            priorities: 0,
            served: None,
            passed: None,
        }
    }

    /// Returns true if a sighting of the lane may stand for jobs of this worker: for jobs that have
    /// come since the lane was walked, or if it is time to walk again.
    pub fn is_news(&mut self, seen: &ReadyPriorities, now: Instant) -> bool {
        let Some(passed) = &mut self.passed else {
            return true;
        };
        if now >= passed.again_at() {
            return true;
        }
        if seen.head == i64::MAX {
            // A notification does not name the job.
            if passed.jobs <= FEW_PASSED {
                self.passed = None;
                return true;
            }
            return false;
        }
        let place = LaneCursor {
            priority: seen.priorities.trailing_zeros() as i16,
            job_id: seen.head - 1,
        };
        let is_news = place >= passed.to || seen.head > passed.newest;
        if is_news {
            passed.news = Some(passed.news.map_or(place, |before| before.min(place)));
        }
        is_news
    }

    /// Returns true if so many jobs of other workers were passed that a notification means
    /// nothing.
    pub fn ignores_notifications(&self) -> bool {
        self.passed
            .as_ref()
            .is_some_and(|passed| passed.jobs > FEW_PASSED)
    }

    /// Returns the place where a look made now begins: at a priority that was passed over for too
    /// long, behind the jobs of other workers, or, now and then, at the head.
    pub fn begin_walk(&mut self, now: Instant) -> LaneCursor {
        self.visits = self.visits.saturating_add(1);
        if let Some(aged) = self.aged(now) {
            if let Some(served) = &mut self.served {
                served[aged as usize] = now;
            }
            return LaneCursor {
                priority: aged,
                job_id: 0,
            };
        }
        if let Some(passed) = &mut self.passed
            && now < passed.again_at()
        {
            if let Some(news) = passed.news.take() {
                passed.to = passed.to.min(news);
            }
            return passed.to;
        }
        self.passed = Some(Box::new(PassedJobs {
            to: LaneCursor::default(),
            newest: 0,
            jobs: 0,
            begun: now,
            news: None,
        }));
        LaneCursor::default()
    }

    /// Records the jobs taken after a look made at `asked_at` that began at `began`, with `is_dry`
    /// if none that was looked at is left; returns true if no job for this worker is left, as far
    /// as is known.
    pub fn walked(
        &mut self,
        began: LaneCursor,
        taken: &[LaneCursor],
        walk: &LaneWalk,
        is_dry: bool,
        asked_at: Instant,
    ) -> bool {
        self.last = taken
            .iter()
            .map(|place| place.job_id)
            .max()
            .unwrap_or(self.last);
        if let Some(served) = &mut self.served {
            for place in taken {
                served[place.priority.clamp(0, 3) as usize] = asked_at;
            }
        }
        if !is_dry {
            self.grow(taken.len());
        }
        let mut is_whole = false;
        if let Some(passed) = &mut self.passed
            && began <= passed.to
        {
            if walk.to > passed.to {
                passed.to = walk.to;
                passed.jobs = passed.jobs.saturating_add(walk.passed);
            }
            passed.newest = passed.newest.max(walk.newest);
            is_whole = walk.is_end && passed.news.is_none();
        }
        let is_empty = is_dry && is_whole && self.noted.is_none_or(|at| at < asked_at);
        if is_empty {
            self.rest_empty();
        }
        is_empty
    }

    /// Forgets that jobs of other workers were passed.
    pub fn forget_passed(&mut self) {
        self.passed = None;
    }

    /// Asks for twice as many jobs from now on, if as many were taken as were asked for.
    fn grow(&mut self, taken: usize) {
        if taken as u32 >= self.appetite {
            self.appetite = (taken as u32).saturating_mul(2);
        }
    }

    fn rest_empty(&mut self) {
        self.appetite = MIN_APPETITE;
        self.turns_lost = 0;
        self.short_until = None;
        self.visits = 0;
        self.priorities = 0;
        self.served = None;
    }

    /// Records that there are jobs of these priorities, one bit each.
    pub fn note(&mut self, priorities: u8, now: Instant) {
        self.noted = Some(now);
        let fresh = priorities & !self.priorities;
        self.priorities |= priorities;
        if self.priorities.count_ones() > 1 {
            let served = self.served.get_or_insert_with(|| Box::new([now; 4]));
            for priority in (0..4).filter(|priority| fresh & (1 << priority) != 0) {
                served[priority] = now;
            }
        }
        // A claim that begins behind the last job would miss jobs more urgent than those being
        // served.
        if fresh & ((1 << self.after.priority) - 1) != 0 {
            self.after = LaneCursor::default();
        }
    }

    /// Returns the place where a claim made now begins: at a priority that was passed over for too
    /// long, behind the last job taken, or, at least every `head_every`, at the head.
    pub fn begin(&mut self, now: Instant, head_every: Duration) -> LaneCursor {
        if let Some(aged) = self.aged(now) {
            return LaneCursor {
                priority: aged,
                job_id: 0,
            };
        }
        match self.head_at {
            Some(at) if now.duration_since(at) < head_every => self.after,
            _ => {
                // Set at the beginning of the claim, so that of two concurrent claims only one
                // walks from the head.
                self.head_at = Some(now);
                LaneCursor::default()
            }
        }
    }

    /// Returns true if nothing was claimed from the lane since it woke up.
    pub fn is_fresh(&self) -> bool {
        self.visits == 0
    }

    /// Returns true if a claim of `jobs` made now should look for one more. A lane that has been
    /// served for long is likely to have another, so looks become rare.
    pub fn look(&mut self, jobs: u32) -> bool {
        self.visits = self.visits.saturating_add(1);
        jobs <= MAX_VISIT && self.visits.is_power_of_two()
    }

    fn aged(&self, now: Instant) -> Option<i16> {
        let served = self.served.as_ref()?;
        let first = self.priorities.trailing_zeros() as usize;
        (first + 1..4)
            .filter(|priority| {
                self.priorities & (1 << priority) != 0
                    && now.duration_since(served[*priority]) >= AGEING
            })
            .min_by_key(|priority| served[*priority])
            .map(|priority| priority as i16)
    }

    /// Records the jobs taken by a claim made at `asked_at` that began at `began`; returns true if
    /// the lane is now empty, as far as is known.
    pub fn took(
        &mut self,
        began: LaneCursor,
        taken: &[LaneCursor],
        is_short: bool,
        asked_at: Instant,
    ) -> bool {
        let now = asked_at;
        self.last = taken
            .iter()
            .map(|place| place.job_id)
            .max()
            .unwrap_or(self.last);
        let at_head = began == LaneCursor::default();
        if let Some(served) = &mut self.served {
            for place in taken {
                served[place.priority.clamp(0, 3) as usize] = now;
            }
        }
        // A claim reaches a priority only when no job of the more urgent ones is left.
        let reached = if is_short {
            4
        } else {
            taken.iter().map(|place| place.priority).max().unwrap_or(4)
        };
        for priority in began.priority + i16::from(began.job_id > 0)..reached {
            self.priorities &= !(1 << priority);
        }
        if !is_short {
            self.grow(taken.len());
        }
        if is_short {
            // Jobs noted before the last claim from the head were reached by it, or lie behind it.
            // Jobs noted after this claim was made are not in its answer.
            let from_head = at_head || (began == self.after && self.noted < self.head_at);
            let is_empty = from_head && self.noted.is_none_or(|at| at < asked_at);
            self.after = LaneCursor::default();
            self.head_at = None;
            if is_empty {
                self.rest_empty();
            }
            return is_empty;
        }
        // Claims overlap, so an answer may be older than the place to which another claim has
        // moved. After a turn of an aged priority the next claim begins where it would have begun
        // without that turn.
        let last = taken.iter().copied().max().unwrap_or_default();
        if at_head {
            self.after = last;
        } else if began <= self.after {
            self.after = self.after.max(last);
        }
        false
    }

    /// Returns the most jobs to ask for, and the tokens to ask for each. After some lost turns it
    /// is one job that begins with one token: its other tokens are charged when it is claimed.
    pub fn demand(&self) -> (u32, f64) {
        match self.turns_lost >= TURNS_LOST {
            true => (1, self.cost.min(1.0)),
            false => (u32::MAX, self.cost),
        }
    }

    /// Moves the estimated cost of a job towards `mean`.
    pub fn learn_cost(&mut self, mean: f64) {
        self.cost += (mean - self.cost) * COST_WEIGHT;
        if (self.cost - mean).abs() < 1e-3 * mean {
            self.cost = mean;
        }
    }
}

#[cfg(test)]
#[path = "lane_tests.rs"]
mod tests;
