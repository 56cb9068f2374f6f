//! The counter of a walk over the waiting jobs. Pure: pages come in, changed figures go out.
//!
//! The walk passes over a long queue in many pages. A lane's figure is replaced once the walk has
//! left that lane, so the sum over all lanes is never older than one walk takes, and a walk that is
//! half-way has not lost the other half.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// The four states in which the walk counts a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobTable {
    /// Jobs that may run as soon as tokens allow.
    Ready,
    /// Jobs that wait for a time.
    Scheduled,
    /// Jobs held by a worker under a lease.
    Running,
    /// Jobs that are dead letters.
    Dead,
}

/// All parts, in the order of their numbers.
pub const JOB_TABLES: [JobTable; 4] = [
    JobTable::Ready,
    JobTable::Scheduled,
    JobTable::Running,
    JobTable::Dead,
];

/// The jobs of one lane in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneCount {
    /// The id of the lane.
    pub lane_id: i64,
    /// The number of jobs.
    pub jobs: i64,
    /// The smallest id among them, which is that of the oldest job.
    pub oldest: i64,
}

/// The directory's entry for a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The id of the lane.
    pub lane_id: i64,
    /// The name of its throttle.
    pub throttle: String,
    /// The depth written in the directory.
    pub depth: i64,
    /// The day of that write, in days since 1970.
    pub day: i64,
}

/// The figures of one throttle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The number of jobs by [`JobTable`].
    pub jobs: [i64; 4],
    /// The id of the oldest ready job, if there is one.
    pub oldest: Option<i64>,
}

#[derive(Debug)]
struct LaneCounter {
    throttle: u32,
    ready: i64,
    oldest: i64,
    /// The depth written in the directory.
    written: i64,
    /// The day of that write, in days since 1970.
    day: i64,
    /// True if the lane is queued in `changed`.
    queued: bool,
    /// True if a job of the lane was seen since the current round began.
    seen: bool,
    /// True if a job of the lane was seen in the round before.
    seen_before: bool,
}

#[derive(Debug, Default)]
struct Throttle {
    now: Figures,
    /// The counts of the walk in progress, for the parts that are replaced as a whole.
    counting: [i64; 4],
    written: Option<Figures>,
}

/// The figures of all lanes and throttles between two pages.
#[derive(Debug, Default)]
pub struct DepthCounter {
    lanes: BTreeMap<i64, LaneCounter>,
    numbers: HashMap<String, u32>,
    names: Vec<String>,
    throttles: Vec<Throttle>,
    /// The lane that the walk over the ready jobs has reached, with its count so far.
    open: Option<LaneCount>,
    changed: VecDeque<i64>,
    ended: [bool; 4],
    ended_ever: [bool; 4],
}

impl DepthCounter {
    /// Returns the entries of `found` whose throttle is not known yet.
    pub fn unknown_lanes<'a>(&self, found: &'a [LaneCount]) -> Vec<&'a LaneCount> {
        found
            .iter()
            .filter(|one| !self.lanes.contains_key(&one.lane_id))
            .collect()
    }

    /// Records an entry of the directory, unless its lane is known.
    pub fn introduce(&mut self, entry: &DirectoryEntry) {
        let throttle = self.number(&entry.throttle);
        let lane = LaneCounter {
            throttle,
            ready: 0,
            oldest: i64::MAX,
            written: entry.depth,
            day: entry.day,
            queued: false,
            seen: false,
            seen_before: true,
        };
        self.lanes.entry(entry.lane_id).or_insert(lane);
    }

    /// Records a page of ready jobs, which come in the order of their lanes.
    pub fn ready(&mut self, page: &[LaneCount], today: i64) {
        for one in page {
            match &mut self.open {
                Some(open) if open.lane_id == one.lane_id => {
                    open.jobs += one.jobs;
                    open.oldest = open.oldest.min(one.oldest);
                }
                _ => {
                    let before = self.open.replace(*one);
                    self.leave(before, Some(one.lane_id), today);
                }
            }
        }
    }

    /// Records a page of jobs of another part.
    pub fn others(&mut self, part: JobTable, page: &[LaneCount], today: i64) {
        for one in page {
            let Some(lane) = self.lanes.get_mut(&one.lane_id) else {
                continue;
            };
            lane.seen = true;
            self.throttles[lane.throttle as usize].counting[part as usize] += one.jobs;
            self.refresh(one.lane_id, today);
        }
    }

    /// Ends the walk over a part.
    pub fn end(&mut self, part: JobTable, today: i64) {
        if part == JobTable::Ready {
            let before = self.open.take();
            self.leave(before, None, today);
            for throttle in &mut self.throttles {
                throttle.now.oldest = None;
            }
            for lane in self.lanes.values().filter(|lane| lane.ready > 0) {
                let oldest = &mut self.throttles[lane.throttle as usize].now.oldest;
                *oldest = Some(oldest.map_or(lane.oldest, |oldest| oldest.min(lane.oldest)));
            }
        } else {
            for throttle in &mut self.throttles {
                throttle.now.jobs[part as usize] =
                    std::mem::take(&mut throttle.counting[part as usize]);
            }
        }
        self.ended[part as usize] = true;
        self.ended_ever[part as usize] = true;
    }

    /// Returns true once every part was walked to its end; before that the figures are incomplete.
    pub fn is_whole(&self) -> bool {
        self.ended_ever.iter().all(|ended| *ended)
    }

    /// Ends a round and returns true if every part has come to its end since the last round.
    ///
    /// The end of a round forgets lanes that have had no job for two rounds.
    pub fn round(&mut self) -> bool {
        if !self.ended.iter().all(|ended| *ended) {
            return false;
        }
        self.ended = [false; 4];
        self.lanes.retain(|_, lane| {
            let keep = lane.seen || lane.seen_before || lane.ready > 0 || lane.written > 0;
            lane.seen_before = std::mem::take(&mut lane.seen);
            keep
        });
        true
    }

    /// Takes at most `max` lanes whose depth is to be written, as pairs of lane and depth; they
    /// count as written.
    pub fn take_lanes(&mut self, max: usize, today: i64) -> Vec<(i64, i64)> {
        let mut taken = Vec::new();
        while taken.len() < max
            && let Some(id) = self.changed.pop_front()
        {
            let Some(lane) = self.lanes.get_mut(&id) else {
                continue;
            };
            lane.queued = false;
            // The lane may have changed back since it was queued.
            if lane.written != lane.ready || lane.day != today {
                (lane.written, lane.day) = (lane.ready, today);
                taken.push((id, lane.ready));
            }
        }
        taken
    }

    /// Returns the number of lanes that wait to be written.
    pub fn lanes_waiting(&self) -> usize {
        self.changed.len()
    }

    /// Takes at most `max` throttles whose figures are to be written; they count as written.
    pub fn take_throttles(&mut self, max: usize) -> Vec<(&str, Figures)> {
        let fresh = self
            .throttles
            .iter_mut()
            .zip(&self.names)
            .filter(|(throttle, _)| throttle.written != Some(throttle.now));
        let mut taken = Vec::new();
        for (throttle, name) in fresh.take(max) {
            throttle.written = Some(throttle.now);
            taken.push((name.as_str(), throttle.now));
        }
        taken
    }

    /// Registers a throttle whose stored figures, written by an earlier walker, must be brought in
    /// line.
    pub fn expect(&mut self, throttle: &str) {
        self.number(throttle);
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.names.push(name.to_owned());
        self.throttles.push(Throttle::default());
        number
    }

    /// Sets the figure of the lane that the walk has left, and clears the lanes between it and the
    /// next, which have no ready job.
    fn leave(&mut self, done: Option<LaneCount>, next: Option<i64>, today: i64) {
        let from = match done {
            Some(done) => {
                self.set_ready(done.lane_id, done.jobs, done.oldest, today);
                Excluded(done.lane_id)
            }
            None => Unbounded,
        };
        if let (Excluded(from), Some(to)) = (from, next)
            && from >= to
        {
            return;
        }
        let between = self.lanes.range((from, next.map_or(Unbounded, Excluded)));
        let empty: Vec<i64> = between
            .filter(|(_, lane)| lane.ready > 0 || lane.written > 0)
            .map(|(id, _)| *id)
            .collect();
        for id in empty {
            self.set_ready(id, 0, i64::MAX, today);
        }
    }

    fn set_ready(&mut self, id: i64, jobs: i64, oldest: i64, today: i64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        self.throttles[lane.throttle as usize].now.jobs[JobTable::Ready as usize] +=
            jobs - lane.ready;
        (lane.ready, lane.oldest) = (jobs, oldest);
        lane.seen |= jobs > 0;
        self.refresh(id, today);
    }

    fn refresh(&mut self, id: i64, today: i64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let is_due = lane.written != lane.ready || lane.seen && lane.day != today;
        if is_due && !lane.queued {
            lane.queued = true;
            self.changed.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TODAY: i64 = 20_000;

    fn found(lane_id: i64, jobs: i64, oldest: i64) -> LaneCount {
        LaneCount {
            lane_id,
            jobs,
            oldest,
        }
    }

    fn counter(lanes: &[(i64, &str)]) -> DepthCounter {
        let mut counter = DepthCounter::default();
        for (lane_id, throttle) in lanes {
            counter.introduce(&DirectoryEntry {
                lane_id: *lane_id,
                throttle: (*throttle).to_owned(),
                depth: 0,
                day: TODAY,
            });
        }
        counter
    }

    fn figures(counter: &mut DepthCounter) -> Vec<(String, [i64; 4], Option<i64>)> {
        counter
            .take_throttles(100)
            .into_iter()
            .map(|(name, figures)| (name.to_owned(), figures.jobs, figures.oldest))
            .collect()
    }

    #[test]
    fn a_lane_that_is_cut_by_the_end_of_a_page_is_counted_as_one() {
        let mut counter = counter(&[(1, "a"), (2, "a"), (3, "b")]);
        counter.ready(&[found(1, 2, 50), found(2, 3, 10)], TODAY);
        counter.ready(&[found(2, 4, 5), found(3, 1, 70)], TODAY);
        counter.end(JobTable::Ready, TODAY);

        assert_eq!(counter.take_lanes(10, TODAY), [(1, 2), (2, 7), (3, 1)]);
        assert_eq!(
            figures(&mut counter),
            [
                ("a".into(), [9, 0, 0, 0], Some(5)),
                ("b".into(), [1, 0, 0, 0], Some(70))
            ]
        );
    }

    #[test]
    fn a_lane_that_the_walk_passes_over_is_empty_and_one_that_lies_ahead_keeps_its_figure() {
        let mut counter = counter(&[(1, "a"), (2, "a"), (3, "a"), (4, "a")]);
        counter.ready(
            &[
                found(1, 1, 1),
                found(2, 1, 2),
                found(3, 1, 3),
                found(4, 1, 4),
            ],
            TODAY,
        );
        counter.end(JobTable::Ready, TODAY);
        counter.take_lanes(10, TODAY);

        counter.ready(&[found(3, 5, 3)], TODAY);

        assert_eq!(
            counter.take_lanes(10, TODAY),
            [(1, 0), (2, 0)],
            "3 is not left behind yet, 4 lies ahead"
        );
        assert_eq!(figures(&mut counter)[0].1[0], 2);
        counter.end(JobTable::Ready, TODAY);
        assert_eq!(counter.take_lanes(10, TODAY), [(3, 5), (4, 0)]);
        assert_eq!(figures(&mut counter)[0].1[0], 5);
    }

    #[test]
    fn only_what_changed_is_written_and_no_more_than_asked_for() {
        let mut counter = counter(&[(1, "a"), (2, "a"), (3, "a")]);
        for _ in 0..2 {
            counter.ready(&[found(1, 1, 1), found(2, 1, 2), found(3, 1, 3)], TODAY);
            counter.end(JobTable::Ready, TODAY);
        }
        assert_eq!(counter.take_lanes(2, TODAY).len(), 2);
        assert_eq!(
            (counter.lanes_waiting(), counter.take_lanes(2, TODAY).len()),
            (1, 1)
        );
        assert_eq!(figures(&mut counter).len(), 1);

        counter.ready(&[found(1, 1, 1), found(2, 1, 2), found(3, 1, 3)], TODAY);
        counter.end(JobTable::Ready, TODAY);

        assert!(counter.take_lanes(10, TODAY).is_empty() && figures(&mut counter).is_empty());
        counter.ready(&[found(1, 1, 1)], TODAY + 1);
        counter.ready(&[found(2, 1, 2)], TODAY + 1);
        assert_eq!(
            counter.take_lanes(10, TODAY + 1),
            [(1, 1)],
            "a lane that is in use is written once a day"
        );
    }

    #[test]
    fn the_other_parts_are_replaced_when_their_walk_ends() {
        let mut counter = counter(&[(1, "a"), (2, "b")]);
        counter.others(JobTable::Dead, &[found(1, 3, 1)], TODAY);
        counter.others(JobTable::Dead, &[found(1, 2, 9), found(2, 1, 8)], TODAY);
        assert!(
            figures(&mut counter)
                .iter()
                .all(|(_, jobs, _)| *jobs == [0; 4])
        );
        counter.end(JobTable::Dead, TODAY);
        assert_eq!(
            figures(&mut counter)
                .iter()
                .map(|(_, jobs, _)| jobs[3])
                .collect::<Vec<_>>(),
            [5, 1]
        );

        counter.end(JobTable::Dead, TODAY);

        assert_eq!(
            figures(&mut counter)
                .iter()
                .map(|(_, jobs, _)| jobs[3])
                .collect::<Vec<_>>(),
            [0, 0]
        );
        assert!(!counter.is_whole());
    }

    #[test]
    fn a_lane_without_jobs_is_forgotten_after_two_rounds_and_its_old_figure_is_taken_back_first() {
        let mut counter = DepthCounter::default();
        counter.introduce(&DirectoryEntry {
            lane_id: 7,
            throttle: "a".into(),
            depth: 12,
            day: TODAY,
        });
        let round = |counter: &mut DepthCounter| {
            JOB_TABLES.iter().for_each(|part| counter.end(*part, TODAY));
            assert!(counter.round() && counter.is_whole());
        };

        round(&mut counter);
        assert_eq!(counter.take_lanes(10, TODAY), [(7, 0)]);
        round(&mut counter);
        round(&mut counter);

        assert_eq!(counter.unknown_lanes(&[found(7, 1, 1)]).len(), 1);
        assert!(!counter.round(), "a round needs the end of every part");
    }
}
