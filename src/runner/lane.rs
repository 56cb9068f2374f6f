//! One lane as the scheduler knows it: its share, its wait, and the place in it where the next
//! claim begins. Pure; time is an argument.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use crate::jobs::LaneCursor;

/// Longest time for which more urgent priorities may pass over a lower one, before one batch of it
/// goes first.
const AGEING: Duration = Duration::from_secs(2);

/// Jobs first asked for in a lane: the one that rang, and one more to see if there is more.
const MIN_APPETITE: u32 = 2;

/// Weight of a new sample in the estimate of a lane's mean cost.
const COST_WEIGHT: f64 = 0.3;

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
    /// Work that must wait until the given time.
    Waiting(Instant),
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
    /// Position in virtual time.
    pub tag: f64,
    /// Position among lanes of the same tag.
    pub order: i64,
    /// The last job taken from the lane or seen in it, which sets its position in the next round.
    pub last: i64,
    pub status: LaneStatus,
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
}

impl Lane {
    /// Returns a lane of the throttle at index `ring`, without work.
    pub fn new(ring: usize, key: String, weight: f32) -> Self {
        Self {
            ring,
            key: key.into_boxed_str(),
            weight: f64::from(weight).max(1e-3),
            cost: 1.0,
            tag: 0.0,
            order: 0,
            last: 0,
            status: LaneStatus::Idle,
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
        }
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

    /// Returns true if a claim of `jobs` made now should look for one more. A lane that has been
    /// served for long is likely to have another, so looks become rare.
    pub fn look(&mut self, jobs: u32) -> bool {
        self.visits = self.visits.saturating_add(1);
        jobs == 1 && self.visits.is_power_of_two()
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
        if !is_short && taken.len() as u32 >= self.appetite {
            self.appetite = self.appetite.saturating_mul(2);
        }
        if is_short {
            // Jobs noted before the last claim from the head were reached by it, or lie behind it.
            // Jobs noted after this claim was made are not in its answer.
            let from_head = at_head || (began == self.after && self.noted < self.head_at);
            let is_empty = from_head && self.noted.is_none_or(|at| at < asked_at);
            self.after = LaneCursor::default();
            self.head_at = None;
            if is_empty {
                self.appetite = MIN_APPETITE;
                self.visits = 0;
                self.priorities = 0;
                self.served = None;
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

    /// Moves the estimated cost of a job towards `mean`.
    pub fn learn_cost(&mut self, mean: f64) {
        self.cost += (mean - self.cost) * COST_WEIGHT;
        if (self.cost - mean).abs() < 1e-3 * mean {
            self.cost = mean;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        Lane::new(0, "a".into(), 1.0)
    }

    fn place(priority: i16, job_id: i64) -> LaneCursor {
        LaneCursor { priority, job_id }
    }

    #[test]
    fn a_claim_begins_behind_the_last_job_and_at_the_head_now_and_then() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b10, now);
        assert_eq!(lane.begin(now, every), LaneCursor::default());

        assert!(!lane.took(
            LaneCursor::default(),
            &[place(1, 7), place(1, 9)],
            false,
            now
        ));

        assert_eq!(lane.begin(now, every), place(1, 9));
        assert_eq!(lane.begin(now + every, every), LaneCursor::default());
    }

    #[test]
    fn of_two_claims_under_way_at_once_one_begins_at_the_head_and_both_move_the_place_on() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b10, now);
        let first = lane.begin(now, every);
        lane.took(first, &[place(1, 9)], false, now);
        let (one, other) = (lane.begin(now, every), lane.begin(now, every));

        lane.took(other, &[place(1, 12)], false, now);
        lane.took(one, &[place(1, 10)], false, now);

        assert_eq!(lane.begin(now, every), place(1, 12));
        assert_eq!(lane.begin(now + every, every), LaneCursor::default());
        assert_ne!(
            lane.begin(now + every, every),
            LaneCursor::default(),
            "the one before is on its way to the head"
        );
    }

    #[test]
    fn a_lane_that_is_short_behind_its_last_job_and_was_heard_of_since_is_looked_at_from_the_head_before_it_counts_as_empty()
     {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.begin(now, every);
        lane.took(LaneCursor::default(), &[place(1, 9)], false, now);
        lane.note(0b10, now);

        assert!(!lane.took(place(1, 9), &[], true, now + every));
        assert_eq!(lane.begin(now + every, every), LaneCursor::default());
        assert!(lane.took(LaneCursor::default(), &[], true, now + every));
    }

    #[test]
    fn a_lane_of_which_nothing_was_heard_since_its_head_was_claimed_is_empty_when_nothing_is_left_behind_its_last_job()
     {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b10, now);
        lane.begin(now + every, every);
        lane.took(LaneCursor::default(), &[place(1, 9)], false, now + every);

        assert!(lane.took(place(1, 9), &[], true, now + every));
    }

    #[test]
    fn a_lane_is_looked_into_at_its_first_jobs_and_then_ever_more_rarely() {
        let mut lane = lane();

        let looks: Vec<u32> = (1..=20).filter(|_| lane.look(1)).collect();

        assert_eq!(looks, [1, 2, 4, 8, 16]);
        assert!(
            !lane.look(2),
            "a claim of more tells by itself whether it found as many"
        );
    }

    #[test]
    fn a_more_urgent_job_is_not_hidden_behind_the_place() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b100, now);
        lane.took(LaneCursor::default(), &[place(2, 9)], false, now);

        lane.note(0b1, now);

        assert_eq!(lane.begin(now, every), LaneCursor::default());
    }

    #[test]
    fn a_priority_that_was_passed_over_for_long_goes_first_once() {
        let (mut lane, mut now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b1001, now);
        assert_eq!(lane.begin(now, every), LaneCursor::default());
        now += AGEING;

        assert_eq!(lane.begin(now, every), place(3, 0));
        assert!(!lane.took(place(3, 0), &[place(3, 5)], false, now));

        assert_ne!(lane.begin(now, every), place(3, 0));
        assert_eq!(lane.begin(now + AGEING, every), place(3, 0));
        // No job is left at that priority: this does not make the lane empty, and the priority is
        // not tried again.
        assert!(!lane.took(place(3, 0), &[], true, now + AGEING));
        assert_eq!(lane.begin(now + 3 * AGEING, every), LaneCursor::default());
    }
}
