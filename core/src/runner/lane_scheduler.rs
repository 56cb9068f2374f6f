//! The scheduler of lanes with work: their order and their waits. Pure;
//! time is an argument.
//!
//! Shares follow start-time fair queueing (Goyal, Vin, Cheng 1996): each lane carries a tag that
//! grows by cost / weight with every job it gets, and the lowest tag is next. A lane that comes
//! with work starts at the tag of the lane being served, so it is next within one round and has
//! saved nothing up while it was away. Throttles share a worker's permits the same way.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::ids::{IdMap, IdSet};
use super::lane::{Lane, LaneStatus, LaneWalk, Tag};
use super::visits::Visits;
use crate::jobs::{LaneClaim, LaneCursor, ReadyLane, ReadyPriorities, shard_of};
use crate::throttle::{AcquireRequest, Name};

/// Fewest jobs asked of a throttle, however little it granted the last time.
const MIN_APPETITE: usize = 8;

/// Interval of reports on a throttle whose running jobs are counted.
const HOLD_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of idle sweeps after which a lane is forgotten.
const FORGET_AFTER: u32 = 5;

mod plan;
mod reports;

/// The request of one throttle, with the lanes that it is for.
#[derive(Debug)]
pub struct PlannedAcquire {
    /// The request to the store.
    pub ask: AcquireRequest,
    /// The lanes, in the order of the ask.
    pub lanes: Vec<i64>,
    /// True if jobs without a grant are to be dropped, according to the last answer.
    pub drops: bool,
    ring: usize,
}

/// The jobs that a claim took from a lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneTaken<'a> {
    /// Their places in the lane.
    pub places: &'a [LaneCursor],
    /// Number of jobs that were put back because this worker does not serve them.
    pub put_back: u32,
    /// True if the claim saw that no job is left behind them.
    pub is_dry: bool,
    /// The look before the claim, if there was one.
    pub walk: Option<&'a LaneWalk>,
}

/// A report on the running jobs of one throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct HoldReport {
    pub throttle: Name,
    /// Jobs of the throttle that run here.
    pub held: u32,
    /// Keys whose count fell since the last report; in periodic reports all keys that are held.
    pub lanes: Vec<(String, u32)>,
    ids: Vec<i64>,
    ring: usize,
}

/// The order of lanes in a throttle: the lowest tag, then the oldest job, then the lane's number.
///
/// Jobs that came one after another lie together on the disk, so a round in the order of their
/// arrival reads each page once.
type Rank = (Tag, i64, i64);

/// A throttle with its lanes.
struct Ring {
    name: Name,
    weight: f64,
    tag: f64,
    /// The lowest tag of lanes with work at the last plan, at which a newcomer starts.
    begin: f64,
    due: BTreeSet<Rank>,
    /// Lanes of shards that other workers look after, served when there is nothing else to do.
    guests: BTreeSet<Rank>,
    waiting: BTreeSet<(Instant, i64)>,
    not_before: Option<Instant>,
    appetite: usize,
    held: u32,
    /// Lanes with held jobs.
    holding: IdSet,
    counts: bool,
    /// True while the throttle waits for the answers of jobs that went first after a refusal.
    probes: bool,
    drops: bool,
    /// Lanes that hold fewer jobs than last reported.
    released: BTreeSet<i64>,
    reported_at: Option<Instant>,
    /// Earliest time of the next report after one that failed.
    unheard_until: Option<Instant>,
    visits: Visits,
}

/// The lanes that have work, by throttle.
pub struct LaneScheduler {
    lanes: IdMap<Lane>,
    rings: Vec<Ring>,
    by_name: HashMap<Name, usize>,
    /// The lowest tag of throttles with work at the last plan, at which a newcomer starts.
    begin: f64,
    owned: u64,
    pass: u32,
    /// Lanes that wait for the answers of jobs that went first after a refusal.
    probing: BTreeSet<i64>,
    holder: (String, Duration),
}

impl LaneScheduler {
    /// Returns an empty scheduler of a worker, which `holder` identifies in counts of running jobs,
    /// and whose reports lapse after `ttl`.
    pub fn new(holder: String, ttl: Duration) -> Self {
        Self {
            lanes: IdMap::default(),
            rings: Vec::new(),
            by_name: HashMap::new(),
            begin: 0.0,
            owned: u64::MAX,
            pass: 0,
            probing: BTreeSet::new(),
            holder: (holder, ttl),
        }
    }

    // --- input from the queue ---

    /// Records lanes that have work; returns those whose name is not known.
    pub fn seen(&mut self, found: &[ReadyPriorities], now: Instant) -> Vec<ReadyPriorities> {
        let mut unknown = Vec::new();
        for seen in found {
            match self.lanes.get_mut(&seen.lane_id) {
                Some(lane) => {
                    lane.pass = self.pass;
                    if !lane.is_news(seen, now) {
                        continue;
                    }
                    lane.note(seen.priorities, now);
                    if lane.status == LaneStatus::Idle {
                        lane.last = seen.head;
                        self.stand(seen.lane_id, LaneStatus::Due);
                    }
                }
                None => unknown.push(*seen),
            }
        }
        unknown
    }

    /// Adds a lane that has work, under its name.
    pub fn adopt(&mut self, named: ReadyLane, seen: ReadyPriorities, now: Instant) {
        let Ok(throttle) = Name::new(named.throttle) else {
            return;
        };
        let ring = self.throttle_index(throttle);
        let mut lane = Lane::new(ring, named.key, named.weight);
        lane.pass = self.pass;
        lane.note(seen.priorities, now);
        lane.last = seen.head;
        self.lanes.entry(named.lane_id).or_insert(lane);
        if self.lanes[&named.lane_id].status == LaneStatus::Idle {
            self.stand(named.lane_id, LaneStatus::Due);
        }
    }

    /// Sets the weights of lanes; lanes that are not named weigh 1.
    pub fn weigh(&mut self, weights: &HashMap<i64, f32>) {
        for (id, lane) in &mut self.lanes {
            lane.weight = f64::from(weights.get(id).copied().unwrap_or(1.0));
        }
    }

    /// Sets the shards that this worker looks after, as a bit set.
    pub fn own(&mut self, owned: u64) {
        if owned == self.owned {
            return;
        }
        self.owned = owned;
        let due: Vec<i64> = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.status == LaneStatus::Due)
            .map(|(id, _)| *id)
            .collect();
        for ring in &mut self.rings {
            ring.due.clear();
            ring.guests.clear();
        }
        for id in due {
            self.place(id);
        }
    }

    /// Returns true if a ring for one of the lanes does not tell whether this worker serves the new
    /// job.
    pub fn is_deaf<'a>(&self, lanes: impl IntoIterator<Item = &'a i64>) -> bool {
        lanes
            .into_iter()
            .any(|id| self.lanes.get(id).is_some_and(Lane::is_deaf))
    }

    /// Records the end of a sweep over all lanes, and forgets lanes that have been idle for
    /// several.
    pub fn swept(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        let (pass, rings) = (self.pass, &self.rings);
        self.lanes.retain(|id, lane| {
            let is_busy = lane.status != LaneStatus::Idle
                || lane.held > 0
                || rings[lane.ring].released.contains(id);
            is_busy || pass.wrapping_sub(lane.pass) <= FORGET_AFTER
        });
    }

    // --- planning ---

    /// Returns the claim of a granted lane, with the place where it begins.
    pub fn claim(
        &mut self,
        lane_id: i64,
        jobs: u32,
        now: Instant,
        head_every: Duration,
    ) -> LaneClaim {
        self.begin_first_claim(lane_id);
        let (after, look) = match self.lanes.get_mut(&lane_id) {
            Some(lane) => {
                lane.claims += 1;
                (lane.begin(now, head_every), lane.look(jobs))
            }
            None => (LaneCursor::default(), false),
        };
        LaneClaim {
            lane_id,
            jobs: jobs as i32,
            after,
            look,
        }
    }

    /// Returns the claim of a granted lane of which this worker may serve only some jobs.
    pub fn claim_some(&mut self, lane_id: i64, jobs: u32, now: Instant) -> LaneClaim {
        self.begin_first_claim(lane_id);
        let mut claim = LaneClaim::first(lane_id, jobs as i32);
        if let Some(lane) = self.lanes.get_mut(&lane_id) {
            lane.claims += 1;
            claim.after = lane.begin_walk(now);
        }
        claim
    }

    /// Returns the claim of a granted lane whose jobs only move to other lanes: always from its
    /// head, so that the most urgent goes first.
    pub fn release(&mut self, lane_id: i64, jobs: u32) -> LaneClaim {
        if let Some(lane) = self.lanes.get_mut(&lane_id) {
            lane.claims += 1;
        }
        LaneClaim::first(lane_id, jobs as i32)
    }

    /// Returns the lanes that have work, each with its throttle and key.
    pub fn busy(&self) -> Vec<(i64, Name, String)> {
        let busy = self
            .lanes
            .iter()
            .filter(|(_, lane)| lane.status != LaneStatus::Idle);
        busy.map(|(id, lane)| {
            (
                *id,
                self.rings[lane.ring].name.clone(),
                lane.key.to_string(),
            )
        })
        .collect()
    }

    /// Returns true if no claim of the lane is under way, so that its ready jobs have no tokens.
    pub fn is_unclaimed(&self, lane_id: i64) -> bool {
        self.lanes
            .get(&lane_id)
            .is_some_and(|lane| lane.claims == 0)
    }

    /// Records that the jobs ready in the lane at `asked_at`, when they were asked for, were
    /// dropped.
    pub fn dropped(&mut self, lane_id: i64, asked_at: Instant) {
        let Some(lane) = self.lanes.get_mut(&lane_id) else {
            return;
        };
        if lane.took(LaneCursor::default(), &[], true, asked_at) {
            self.stand(lane_id, LaneStatus::Idle);
        }
    }

    /// Returns the number of due lanes.
    pub fn due(&self) -> usize {
        self.rings
            .iter()
            .map(|ring| ring.due.len() + ring.guests.len())
            .sum()
    }

    /// Records the jobs that a claim made at `asked_at` took from a lane, as places in the lane;
    /// `is_dry` is true if the claim saw that no job is left behind them.
    pub fn claimed(
        &mut self,
        claim: &LaneClaim,
        places: &[LaneCursor],
        is_dry: bool,
        asked_at: Instant,
    ) {
        let taken = LaneTaken {
            places,
            is_dry,
            ..LaneTaken::default()
        };
        self.took(claim, &taken, asked_at);
    }

    /// Records the result of a claim made at `asked_at`.
    pub fn took(&mut self, claim: &LaneClaim, taken: &LaneTaken<'_>, asked_at: Instant) {
        let missing = i64::from(claim.jobs) - taken.places.len() as i64;
        self.hold(claim.lane_id, -missing);
        let Some(lane) = self.lanes.get_mut(&claim.lane_id) else {
            return;
        };
        lane.pass = self.pass;
        lane.claims = lane.claims.saturating_sub(1);
        let is_short = missing > i64::from(taken.put_back);
        if lane.status == LaneStatus::FirstClaim {
            let has_more = taken.places.len() > 1 || !(is_short || taken.is_dry);
            self.rings[lane.ring].visits.first_claim(has_more);
        }
        let is_empty = match taken.walk {
            Some(walk) => {
                let is_dry = is_short || (walk.is_end && missing == 0);
                lane.walked(claim.after, taken.places, walk, is_dry, asked_at)
            }
            None => {
                lane.forget_passed();
                lane.took(
                    claim.after,
                    taken.places,
                    taken.is_dry || is_short,
                    asked_at,
                )
            }
        };
        match lane.status {
            _ if is_empty => self.stand(claim.lane_id, LaneStatus::Idle),
            // Of two concurrent claims, the one that found the end was answered first.
            LaneStatus::Idle | LaneStatus::FirstClaim => self.stand(claim.lane_id, LaneStatus::Due),
            _ => {}
        }
    }

    /// Records that a claim failed.
    pub fn unclaimed(&mut self, claim: &LaneClaim) {
        self.hold(claim.lane_id, -i64::from(claim.jobs));
        let Some(lane) = self.lanes.get_mut(&claim.lane_id) else {
            return;
        };
        lane.claims = lane.claims.saturating_sub(1);
        if lane.status == LaneStatus::FirstClaim {
            self.stand(claim.lane_id, LaneStatus::Due);
        }
    }

    /// Makes lanes due again whose first claim is in progress, after a claim was aborted of which it is
    /// not known which lanes it was for.
    pub fn retry_first_claims(&mut self) {
        let first =
            |(id, lane): (&i64, &Lane)| (lane.status == LaneStatus::FirstClaim).then_some(*id);
        let lanes: Vec<i64> = self.lanes.iter().filter_map(first).collect();
        for id in lanes {
            self.stand(id, LaneStatus::Due);
        }
    }

    /// Records that a job of the lane ended.
    pub fn ended(&mut self, lane_id: i64) {
        self.hold(lane_id, -1);
    }

    /// Records that the throttles received answers of the lane, which need not wait for them any
    /// longer.
    pub fn acknowledge(&mut self, lane_id: i64) {
        let was_probing = self.probing.remove(&lane_id);
        let Some(lane) = self.lanes.get(&lane_id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        if std::mem::take(&mut ring.probes) {
            ring.not_before = None;
        }
        if was_probing && matches!(lane.status, LaneStatus::Waiting(_)) {
            self.stand(lane_id, LaneStatus::Due);
        }
    }

    /// Returns true if some lane or throttle waits for answers.
    pub fn probes(&self) -> bool {
        !self.probing.is_empty() || self.rings.iter().any(|ring| ring.probes)
    }

    /// Moves the estimated cost of the lane's jobs towards `mean`.
    pub fn learn_cost(&mut self, lane_id: i64, mean: f64) {
        if let Some(lane) = self.lanes.get_mut(&lane_id) {
            lane.learn_cost(mean);
        }
    }

    // --- concurrency limits ---

    /// Returns true while some throttle whose running jobs are counted holds jobs.
    pub fn counts(&self) -> bool {
        self.rings.iter().any(|ring| ring.counts && ring.held > 0)
    }

    /// Returns the time at which the next waiting lane may be asked for, or the next report is due.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let asks = self.rings.iter().filter_map(|ring| {
            let first = if ring.due.is_empty() && ring.guests.is_empty() {
                ring.waiting.first()?.0
            } else {
                now
            };
            Some(first.max(ring.not_before.unwrap_or(now)))
        });
        let words = self
            .rings
            .iter()
            .filter(|ring| ring.counts && ring.held > 0)
            .map(|ring| ring.reported_at.map_or(now, |at| at + HOLD_REPORT_INTERVAL));
        let releases = self
            .rings
            .iter()
            .filter(|ring| !ring.released.is_empty())
            .map(|ring| ring.unheard_until.unwrap_or(now));
        asks.chain(words).chain(releases).min()
    }

    // --- internals ---

    /// Keeps a lane that just woke up from being asked for again until its first claim is answered.
    fn begin_first_claim(&mut self, lane_id: i64) {
        let is_first = |lane: &Lane| lane.is_fresh() && lane.status == LaneStatus::Due;
        if self.lanes.get(&lane_id).is_some_and(is_first) {
            self.stand(lane_id, LaneStatus::FirstClaim);
        }
    }

    pub(super) fn throttle_index(&mut self, name: Name) -> usize {
        if let Some(place) = self.by_name.get(&name) {
            return *place;
        }
        self.by_name.insert(name.clone(), self.rings.len());
        self.rings.push(Ring {
            name,
            weight: 1.0,
            tag: 0.0,
            begin: 0.0,
            due: BTreeSet::new(),
            guests: BTreeSet::new(),
            waiting: BTreeSet::new(),
            not_before: None,
            appetite: MIN_APPETITE * 8,
            held: 0,
            holding: IdSet::default(),
            counts: false,
            probes: false,
            drops: false,
            released: BTreeSet::new(),
            reported_at: None,
            unheard_until: None,
            visits: Visits::default(),
        });
        self.rings.len() - 1
    }

    /// Forgets the work in other workers' lanes of throttles that drop: of two workers at one lane,
    /// one might drop jobs for which the other was granted tokens.
    fn leave_guests(&mut self) {
        let dropping = self.rings.iter().filter(|ring| ring.drops);
        let guests: Vec<i64> = dropping
            .flat_map(|ring| ring.guests.iter().map(|(.., id)| *id))
            .collect();
        for id in guests {
            self.stand(id, LaneStatus::Idle);
        }
    }

    /// Marks lanes as due when their wait is over.
    fn wake(&mut self, now: Instant) {
        for place in 0..self.rings.len() {
            while let Some((at, id)) = self.rings[place].waiting.first().copied()
                && at <= now
            {
                self.stand(id, LaneStatus::Due);
            }
        }
    }

    /// Changes the status of a lane, and moves it to the matching set.
    fn stand(&mut self, id: i64, status: LaneStatus) {
        self.unplace(id);
        if let Some(lane) = self.lanes.get_mut(&id) {
            if status == LaneStatus::Due {
                lane.order = lane.last;
                lane.tag = lane.tag.max(self.rings[lane.ring].begin);
            }
            lane.status = status;
        }
        self.place(id);
    }

    fn unplace(&mut self, id: i64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        match lane.status {
            LaneStatus::Idle | LaneStatus::FirstClaim => {}
            LaneStatus::Due => {
                _ = ring.due.remove(&rank(id, lane)) || ring.guests.remove(&rank(id, lane))
            }
            LaneStatus::Waiting(at) => _ = ring.waiting.remove(&(at, id)),
        }
    }

    fn place(&mut self, id: i64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        match lane.status {
            LaneStatus::Idle | LaneStatus::FirstClaim => {}
            LaneStatus::Due if self.owned & (1 << shard_of(id)) == 0 => {
                _ = ring.guests.insert(rank(id, lane))
            }
            LaneStatus::Due => _ = ring.due.insert(rank(id, lane)),
            LaneStatus::Waiting(at) => _ = ring.waiting.insert((at, id)),
        }
    }

    /// Advances the tags of the lane and its throttle by a grant.
    fn charge(&mut self, id: i64, jobs: u32, cost: f64) {
        if jobs == 0 {
            return;
        }
        self.unplace(id);
        if let Some(lane) = self.lanes.get_mut(&id) {
            let ring = &mut self.rings[lane.ring];
            lane.tag += f64::from(jobs) * cost / lane.weight;
            lane.order = lane.last;
            ring.tag += f64::from(jobs) / ring.weight;
        }
        self.place(id);
    }
}

fn rank(id: i64, lane: &Lane) -> Rank {
    (Tag(lane.tag), lane.order, id)
}

#[cfg(test)]
#[path = "lane_scheduler_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "lane_scheduler_reports_tests.rs"]
mod reports_tests;

#[cfg(test)]
#[path = "lane_scheduler_visits_tests.rs"]
mod visits_tests;
