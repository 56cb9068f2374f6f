//! The scheduler of lanes with work: their order and their waits. Pure;
//! time is an argument.
//!
//! Shares follow start-time fair queueing (Goyal, Vin, Cheng 1996): each lane carries a tag that
//! grows by cost / weight with every job it gets, and the lowest tag is next. A lane that comes
//! with work starts at the tag of the lane being served, so it is next within one round and has
//! saved nothing up while it was away. Throttles share a worker's permits the same way. Lanes and
//! throttles that were refused come back when their wait ends; until then they are checked in turn.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use ring::{Rank, Ring};

use super::ids::IdMap;
use super::lane::{Lane, LaneStatus, LaneWalk, Tag};
use super::waits::Waits;
use crate::jobs::{LaneClaim, LaneCursor, ReadyLane, ReadyPriorities, shard_of};
use crate::throttle::{AcquireRequest, Name};

/// Interval of reports on a throttle whose running jobs are counted.
const HOLD_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Number of idle sweeps after which a lane is forgotten.
const FORGET_AFTER: u32 = 5;

/// Number of sweeps without a sighting after which the jobs of a lane are gone. The lanes of other
/// workers are not seen at each.
const MISSED_AFTER: u32 = 30;

/// Checks a second of lanes that wait. Each is a line in a request for tokens.
const LANE_CHECKS_PER_S: u32 = 2000;

/// Checks a second of throttles that wait. Each is a call of Redis.
const RING_CHECKS_PER_S: u32 = 1000;

/// Checks a second of throttles that do not exist. Any caller that may enqueue can invent their
/// names, so these checks take none from the throttles that exist.
const UNKNOWN_CHECKS_PER_S: u32 = 500;

mod answer;
mod plan;
mod reports;
mod ring;
mod rings;

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

/// The lanes that have work, by throttle.
pub struct LaneScheduler {
    lanes: IdMap<Lane>,
    rings: Vec<Ring>,
    by_name: HashMap<Name, usize>,
    /// Places of throttles that were dropped, for those to come.
    vacant: Vec<usize>,
    /// Throttles that may be asked now, besides some that were until now.
    open: Vec<usize>,
    /// Throttles with something to report, besides some that had until now.
    reporting: Vec<usize>,
    /// Throttles that wait for the answers of jobs that went first after a refusal.
    probing_rings: BTreeSet<usize>,
    /// Lanes that were refused.
    waiting: Waits<i64>,
    /// Throttles that were refused.
    blocked: Waits<usize>,
    /// Throttles that do not exist.
    unknown: Waits<usize>,
    /// Number of due lanes, without those of throttles that do not exist.
    due: usize,
    /// Number of plans, which decides the parts of a permit.
    plans: usize,
    /// Number of checks, which decides the kind of the next.
    checks: usize,
    /// The lowest tag of throttles that granted jobs, at which a newcomer starts.
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
            vacant: Vec::new(),
            open: Vec::new(),
            reporting: Vec::new(),
            probing_rings: BTreeSet::new(),
            waiting: Waits::new(LANE_CHECKS_PER_S),
            blocked: Waits::new(RING_CHECKS_PER_S),
            unknown: Waits::new(UNKNOWN_CHECKS_PER_S),
            due: 0,
            plans: 0,
            checks: 0,
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
        let pass = self.pass;
        let lane = self.lane_of(named.lane_id, throttle, named.key, named.weight);
        lane.pass = pass;
        lane.note(seen.priorities, now);
        if lane.status == LaneStatus::Idle {
            lane.last = seen.head;
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
        self.due = 0;
        for id in due {
            self.place(id);
        }
    }

    /// Returns true if a notification of one of the lanes does not show whether this worker serves
    /// the new job.
    pub fn ignores_notifications<'a>(&self, lanes: impl IntoIterator<Item = &'a i64>) -> bool {
        lanes
            .into_iter()
            .any(|id| self.lanes.get(id).is_some_and(Lane::ignores_notifications))
    }

    /// Records the end of a sweep over all lanes; forgets lanes that have been idle for several, or
    /// have lost their jobs meanwhile, and throttles without lanes.
    pub fn swept(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        let is_gone = |(id, lane): &(&i64, &Lane)| {
            let most = match lane.status {
                LaneStatus::Idle => FORGET_AFTER,
                _ => MISSED_AFTER,
            };
            self.pass.wrapping_sub(lane.pass) > most
                && lane.held == 0
                && lane.claims == 0
                && !self.rings[lane.ring].released.contains(id)
        };
        let gone: Vec<i64> = self
            .lanes
            .iter()
            .filter(is_gone)
            .map(|(id, _)| *id)
            .collect();
        self.forget(&gone);
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

    /// Returns the number of due lanes, without those of throttles that do not exist.
    pub fn due(&self) -> usize {
        self.due
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
        let (ring, status) = (lane.ring, lane.status);
        if self.probing_rings.remove(&ring) {
            self.block(ring, None);
        }
        if was_probing && matches!(status, LaneStatus::Waiting(_)) {
            self.stand(lane_id, LaneStatus::Due);
        }
    }

    /// Returns true if some lane or throttle waits for answers.
    pub fn probes(&self) -> bool {
        !self.probing.is_empty() || !self.probing_rings.is_empty()
    }

    /// Moves the estimated cost of the lane's jobs towards `mean`.
    pub fn learn_cost(&mut self, lane_id: i64, mean: f64) {
        if let Some(lane) = self.lanes.get_mut(&lane_id) {
            lane.learn_cost(mean);
        }
    }

    /// Returns the time at which the next waiting lane may be asked for, or the next report is due.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        let is_open = |place: &usize| self.rings[*place].is_open();
        let asks = self.open.iter().any(is_open).then_some(now);
        let waits = [
            self.waiting.next(now),
            self.blocked.next(now),
            self.unknown.next(now),
        ];
        let asks = asks.into_iter().chain(waits.into_iter().flatten());
        asks.chain(self.next_reports(now)).min()
    }

    // --- internals ---

    /// Keeps a lane that just woke up from being asked for again until its first claim is answered.
    fn begin_first_claim(&mut self, lane_id: i64) {
        let is_first = |lane: &Lane| lane.is_fresh() && lane.status == LaneStatus::Due;
        if self.lanes.get(&lane_id).is_some_and(is_first) {
            self.stand(lane_id, LaneStatus::FirstClaim);
        }
    }

    /// Marks lanes as due, and opens throttles, when their wait is over.
    fn wake(&mut self, now: Instant) {
        while let Some(id) = self.waiting.take_ended(now) {
            self.stand(id, LaneStatus::Due);
        }
        while let Some(place) = self.blocked.take_ended(now) {
            self.block(place, None);
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

    /// Returns true if another worker looks after the lane.
    fn is_guest(&self, id: i64) -> bool {
        self.owned & (1 << shard_of(id)) == 0
    }

    fn unplace(&mut self, id: i64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        match lane.status {
            LaneStatus::Idle | LaneStatus::FirstClaim => {}
            LaneStatus::Due => {
                let (ring, rank) = (&mut self.rings[lane.ring], rank(id, lane));
                let was_due = ring.due.remove(&rank) || ring.guests.remove(&rank);
                self.due -= usize::from(was_due && !ring.is_unknown());
            }
            LaneStatus::Waiting(wait) => self.waiting.remove(id, &wait),
        }
    }

    fn place(&mut self, id: i64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        match lane.status {
            LaneStatus::Idle | LaneStatus::FirstClaim => {}
            LaneStatus::Due => {
                let (place, rank) = (lane.ring, rank(id, lane));
                let is_guest = self.is_guest(id);
                let ring = &mut self.rings[place];
                let is_new = match is_guest {
                    true => ring.guests.insert(rank),
                    false => ring.due.insert(rank),
                };
                self.due += usize::from(is_new && !ring.is_unknown());
                self.list(place);
            }
            LaneStatus::Waiting(wait) => self.waiting.insert(id, &wait),
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
#[path = "lane_scheduler_refused_tests.rs"]
mod refused_tests;

#[cfg(test)]
#[path = "lane_scheduler_reports_tests.rs"]
mod reports_tests;

#[cfg(test)]
#[path = "lane_scheduler_visits_tests.rs"]
mod visits_tests;
