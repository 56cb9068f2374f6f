//! One lane as the board knows it: its share, its wait, and where in it the next claim begins. Pure; time is an argument.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use crate::jobs::postgres::Place;

/// How long a priority may be passed over by more urgent ones before one batch of it goes first.
const AGEING: Duration = Duration::from_secs(2);

/// What a lane is asked for at first: one job that rang, and one more to see whether there is more.
const MIN_APPETITE: u32 = 2;

/// How strongly a newly seen cost counts in the estimate of a lane's mean cost.
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

/// What a lane is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has no work that is known.
    Idle,
    /// It has work.
    Due,
    /// It has work and must wait until then.
    Waiting(Instant),
}

/// A lane.
#[derive(Debug)]
pub struct Lane {
    /// The place of its throttle on the board.
    pub ring: usize,
    /// Its rate-limit key.
    pub key: Box<str>,
    /// Its share beside the other lanes of its throttle.
    pub weight: f64,
    /// What its jobs cost, as far as that is known.
    pub cost: f64,
    /// Its place in virtual time.
    pub tag: f64,
    /// Its place among lanes of the same tag.
    pub order: i64,
    /// The job that was taken of it, or seen in it, last: its place in the next round.
    pub last: i64,
    /// What it is doing.
    pub standing: Standing,
    /// Jobs of it that run in this process.
    pub held: u32,
    /// Claims of it that are under way.
    pub claims: u32,
    /// How many jobs of it are asked for at most: nobody knows how many there are, so it doubles while there are more.
    pub appetite: u32,
    /// The last sweep in which it had work.
    pub pass: u32,
    after: Place,
    visits: u32,
    head_at: Option<Instant>,
    noted: Option<Instant>,
    priorities: u8,
    served: Option<Box<[Instant; 4]>>,
}

impl Lane {
    /// A lane of the throttle at place `ring`, without work.
    pub fn new(ring: usize, key: String, weight: f32) -> Self {
        Self {
            ring,
            key: key.into_boxed_str(),
            weight: f64::from(weight).max(1e-3),
            cost: 1.0,
            tag: 0.0,
            order: 0,
            last: 0,
            standing: Standing::Idle,
            held: 0,
            claims: 0,
            appetite: MIN_APPETITE,
            pass: 0,
            after: Place::default(),
            visits: 0,
            head_at: None,
            noted: None,
            priorities: 0,
            served: None,
        }
    }

    /// Takes note that there are jobs of these priorities, one bit each.
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
        // Something more urgent than what is being served would be missed by a claim that begins behind it.
        if fresh & ((1 << self.after.priority) - 1) != 0 {
            self.after = Place::default();
        }
    }

    /// Where the claim begins that is made now: at a priority that was passed over for too long, behind the last job that was
    /// taken, or, at least every `head_every`, at the head.
    pub fn begin(&mut self, now: Instant, head_every: Duration) -> Place {
        if let Some(aged) = self.aged(now) {
            return Place { priority: aged, job_id: 0 };
        }
        match self.head_at {
            Some(at) if now.duration_since(at) < head_every => self.after,
            _ => {
                // Counted from here, so that of two claims under way at once only one walks from the head.
                self.head_at = Some(now);
                Place::default()
            }
        }
    }

    /// Whether the claim of `jobs` that is made now is to look for one more. A lane that has been served for long is likely to
    /// have another, so the looks become rare.
    pub fn look(&mut self, jobs: u32) -> bool {
        self.visits = self.visits.saturating_add(1);
        jobs == 1 && self.visits.is_power_of_two()
    }

    fn aged(&self, now: Instant) -> Option<i16> {
        let served = self.served.as_ref()?;
        let first = self.priorities.trailing_zeros() as usize;
        (first + 1..4)
            .filter(|priority| self.priorities & (1 << priority) != 0 && now.duration_since(served[*priority]) >= AGEING)
            .min_by_key(|priority| served[*priority])
            .map(|priority| priority as i16)
    }

    /// Takes note of what a claim took that was made at `asked_at` and began at `began`; true if the lane is empty now, as far as
    /// can be told.
    pub fn took(&mut self, began: Place, taken: &[Place], is_short: bool, asked_at: Instant) -> bool {
        let now = asked_at;
        self.last = taken.iter().map(|place| place.job_id).max().unwrap_or(self.last);
        let at_head = began == Place::default();
        if let Some(served) = &mut self.served {
            for place in taken {
                served[place.priority.clamp(0, 3) as usize] = now;
            }
        }
        // A claim comes to a priority only when there is no job left of those before it.
        let reached = if is_short { 4 } else { taken.iter().map(|place| place.priority).max().unwrap_or(4) };
        for priority in began.priority + i16::from(began.job_id > 0)..reached {
            self.priorities &= !(1 << priority);
        }
        if !is_short && taken.len() as u32 >= self.appetite {
            self.appetite = self.appetite.saturating_mul(2);
        }
        if is_short {
            // Whatever was noted before the last claim from the head was reached by it, or lies behind it. What was noted after
            // this claim was made is not in its answer.
            let from_head = at_head || (began == self.after && self.noted < self.head_at);
            let is_empty = from_head && self.noted.is_none_or(|at| at < asked_at);
            self.after = Place::default();
            self.head_at = None;
            if is_empty {
                self.appetite = MIN_APPETITE;
                self.visits = 0;
                self.priorities = 0;
                self.served = None;
            }
            return is_empty;
        }
        // Claims overlap, so an answer may be older than the place that another has moved on. After a turn of an aged priority
        // the next claim begins where it would have begun without it.
        let last = taken.iter().copied().max().unwrap_or_default();
        if at_head {
            self.after = last;
        } else if began <= self.after {
            self.after = self.after.max(last);
        }
        false
    }

    /// Learns what a job costs.
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

    fn place(priority: i16, job_id: i64) -> Place {
        Place { priority, job_id }
    }

    #[test]
    fn a_claim_begins_behind_the_last_job_and_at_the_head_now_and_then() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b10, now);
        assert_eq!(lane.begin(now, every), Place::default());

        assert!(!lane.took(Place::default(), &[place(1, 7), place(1, 9)], false, now));

        assert_eq!(lane.begin(now, every), place(1, 9));
        assert_eq!(lane.begin(now + every, every), Place::default());
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
        assert_eq!(lane.begin(now + every, every), Place::default());
        assert_ne!(lane.begin(now + every, every), Place::default(), "the one before is on its way to the head");
    }

    #[test]
    fn a_lane_that_is_short_behind_its_last_job_and_was_heard_of_since_is_looked_at_from_the_head_before_it_counts_as_empty() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.begin(now, every);
        lane.took(Place::default(), &[place(1, 9)], false, now);
        lane.note(0b10, now);

        assert!(!lane.took(place(1, 9), &[], true, now + every));
        assert_eq!(lane.begin(now + every, every), Place::default());
        assert!(lane.took(Place::default(), &[], true, now + every));
    }

    #[test]
    fn a_lane_of_which_nothing_was_heard_since_its_head_was_claimed_is_empty_when_nothing_is_left_behind_its_last_job() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b10, now);
        lane.begin(now + every, every);
        lane.took(Place::default(), &[place(1, 9)], false, now + every);

        assert!(lane.took(place(1, 9), &[], true, now + every));
    }

    #[test]
    fn a_lane_is_looked_into_at_its_first_jobs_and_then_ever_more_rarely() {
        let mut lane = lane();

        let looks: Vec<u32> = (1..=20).filter(|_| lane.look(1)).collect();

        assert_eq!(looks, [1, 2, 4, 8, 16]);
        assert!(!lane.look(2), "a claim of more tells by itself whether it found as many");
    }

    #[test]
    fn a_more_urgent_job_is_not_hidden_behind_the_place() {
        let (mut lane, now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b100, now);
        lane.took(Place::default(), &[place(2, 9)], false, now);

        lane.note(0b1, now);

        assert_eq!(lane.begin(now, every), Place::default());
    }

    #[test]
    fn a_priority_that_was_passed_over_for_long_goes_first_once() {
        let (mut lane, mut now, every) = (lane(), Instant::now(), Duration::from_secs(1));
        lane.note(0b1001, now);
        assert_eq!(lane.begin(now, every), Place::default());
        now += AGEING;

        assert_eq!(lane.begin(now, every), place(3, 0));
        assert!(!lane.took(place(3, 0), &[place(3, 5)], false, now));

        assert_ne!(lane.begin(now, every), place(3, 0));
        assert_eq!(lane.begin(now + AGEING, every), place(3, 0));
        // Nobody is left there: the lane is not empty for that, and the priority is not tried again.
        assert!(!lane.took(place(3, 0), &[], true, now + AGEING));
        assert_eq!(lane.begin(now + 3 * AGEING, every), Place::default());
    }
}
