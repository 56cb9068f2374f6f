//! The board of lanes that have work: the order in which they are asked for, and their waits. Pure;
//! time is an argument.
//!
//! Shares follow start-time fair queueing (Goyal, Vin, Cheng 1996): each lane carries a tag that
//! grows by cost / weight with every job it gets, and the lowest tag is next. A lane that comes
//! with work starts at the tag of the lane being served, so it is next within one round and has
//! saved nothing up while it was away. Throttles share a worker's permits the same way.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use super::lane::{Lane, LaneStatus, Tag};
use crate::jobs::{LaneClaim, LaneCursor, ReadyLane, ReadyPriorities, shard_of};
use crate::throttle::{
    AcquireRequest, AcquireResponse, Grant, Holder, LaneRequest, Limit, Name, OverLimit,
};

/// Longest wait caused by a knob, because a person may turn it at any time.
const MAX_KNOB_WAIT: Duration = Duration::from_millis(400);

/// Longest wait for a paused key, because a person may resume it.
const MAX_PAUSE_WAIT: Duration = Duration::from_secs(2);

/// Shortest wait, so that a fast throttle is served in small batches; its bucket keeps the tokens
/// meanwhile.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// Fewest jobs asked of a throttle, however little it granted the last time.
const MIN_APPETITE: usize = 8;

/// Interval of reports on a throttle whose running jobs are counted.
const HOLD_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of reports on a throttle whose running jobs are not counted, because a person may begin
/// to count at any time.
const UNCOUNTED_REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// Pause before a failed report is sent again.
const REPORT_RETRY_DELAY: Duration = Duration::from_millis(250);

/// Number of idle sweeps after which a lane is forgotten.
const FORGET_AFTER: u32 = 5;

/// The ask of one throttle, with the lanes that it stands for.
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
    /// The end of a rest in which other workers serve the throttle, because this worker could run
    /// none of its jobs.
    backoff_until: Option<Instant>,
    appetite: usize,
    held: u32,
    /// Lanes of which jobs are held.
    holding: BTreeSet<i64>,
    counts: bool,
    /// True while the throttle waits for the answers of jobs that went first after a refusal.
    probes: bool,
    drops: bool,
    /// Lanes that hold fewer jobs than last reported.
    released: BTreeSet<i64>,
    told: Option<Instant>,
    /// Earliest time of the next report after one that failed.
    unheard_until: Option<Instant>,
}

/// The lanes that have work, by throttle.
pub struct LaneScheduler {
    lanes: HashMap<i64, Lane>,
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
    /// Returns an empty board of a worker, which `holder` identifies in counts of running jobs, and
    /// whose reports lapse after `ttl`.
    pub fn new(holder: String, ttl: Duration) -> Self {
        Self {
            lanes: HashMap::new(),
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
                    lane.note(seen.priorities, now);
                    if lane.standing == LaneStatus::Idle {
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
        if self.lanes[&named.lane_id].standing == LaneStatus::Idle {
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
            .filter(|(_, lane)| lane.standing == LaneStatus::Due)
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

    /// Leaves a throttle to other workers until the given time; afterwards a single job shows if
    /// there is work for this one.
    pub fn rest(&mut self, throttle: &str, until: Instant) {
        let Some(ring) = Name::new(throttle)
            .ok()
            .and_then(|name| self.by_name.get(&name).copied())
        else {
            return;
        };
        let ring = &mut self.rings[ring];
        if ring.backoff_until.is_none_or(|at| at < until) {
            ring.backoff_until = Some(until);
            ring.appetite = 1;
        }
    }

    /// Records the end of a sweep over all lanes, and forgets lanes that have been idle for
    /// several.
    pub fn swept(&mut self) {
        self.pass = self.pass.wrapping_add(1);
        let (pass, rings) = (self.pass, &self.rings);
        self.lanes.retain(|id, lane| {
            let is_busy = lane.standing != LaneStatus::Idle
                || lane.held > 0
                || rings[lane.ring].released.contains(id);
            is_busy || pass.wrapping_sub(lane.pass) <= FORGET_AFTER
        });
    }

    // --- planning ---

    /// Chooses the lanes to ask tokens for, for at most `permits` jobs in total.
    pub fn plan(&mut self, now: Instant, permits: usize) -> Vec<PlannedAcquire> {
        self.wake(now);
        self.leave_guests();
        let mut chosen: HashMap<usize, Turn> = HashMap::new();
        let mut left = permits;
        for guests in [false, true] {
            let mut rings: BinaryHeap<Reverse<(Tag, usize)>> = BinaryHeap::new();
            for (place, ring) in self.rings.iter_mut().enumerate() {
                let lanes = if guests { &ring.guests } else { &ring.due };
                let Some((lowest, ..)) = lanes.first() else {
                    continue;
                };
                ring.begin = ring.begin.max(lowest.0);
                if ring
                    .not_before
                    .max(ring.backoff_until)
                    .is_none_or(|at| at <= now)
                {
                    ring.tag = ring.tag.max(self.begin);
                    rings.push(Reverse((Tag(ring.tag), place)));
                }
            }
            if let Some(Reverse((lowest, _))) = rings.peek() {
                self.begin = lowest.0;
            }
            let mut turns: HashMap<usize, Choice<'_>> = HashMap::new();
            while left > 0
                && let Some(Reverse((tag, place))) = rings.pop()
            {
                let ring = &self.rings[place];
                let lanes = if guests { &ring.guests } else { &ring.due };
                let turn = chosen.entry(place).or_default();
                if turn.jobs >= ring.appetite {
                    continue;
                }
                let choice = turns.entry(place).or_insert_with(|| Choice {
                    fresh: lanes.iter(),
                    again: BinaryHeap::new(),
                    next: None,
                });
                let Some(lane) = choice.next(&self.lanes) else {
                    continue;
                };
                turn.give(lane);
                left -= 1;
                rings.push(Reverse((Tag(tag.0 + 1.0 / ring.weight), place)));
            }
        }
        let mut asked: Vec<PlannedAcquire> = chosen
            .into_iter()
            .filter(|(_, turn)| turn.jobs > 0)
            .map(|(ring, turn)| self.ask(ring, turn))
            .collect();
        asked.sort_by(|a, b| a.ask.throttle.cmp(&b.ask.throttle));
        asked
    }

    fn ask(&self, place: usize, turn: Turn) -> PlannedAcquire {
        let ring = &self.rings[place];
        let lanes = turn.order.iter().map(|id| {
            let lane = &self.lanes[id];
            LaneRequest {
                key: lane.key.to_string(),
                want: turn.wants[id],
                cost: lane.cost,
                held: lane.held,
            }
        });
        let holder = Holder {
            id: self.holder.0.clone(),
            ttl: self.holder.1,
            held: ring.held,
        };
        let ask = AcquireRequest {
            throttle: ring.name.clone(),
            lanes: lanes.collect(),
            holder: Some(holder),
        };
        PlannedAcquire {
            ask,
            lanes: turn.order,
            drops: ring.drops,
            ring: place,
        }
    }

    /// Applies an answer: charges the grants, and sets the waits of lanes and throttles.
    pub fn answered(&mut self, asked: &PlannedAcquire, answer: &AcquireResponse, now: Instant) {
        let drops = answer.over_limit == OverLimit::Drop;
        let (mut wanted, mut granted_all) = (0, 0);
        for ((id, wish), grant) in asked.lanes.iter().zip(&asked.ask.lanes).zip(&answer.lanes) {
            wanted += wish.want as usize;
            granted_all += grant.granted as usize;
            self.charge(*id, grant.granted, wish.cost.min(answer.max_cost));
            self.hold(*id, i64::from(grant.granted));
            self.probing.remove(id);
            let Some(limit) = &grant.limit else { continue };
            let until = now + wait(grant, limit);
            match limit {
                Limit::Probing { key: true, .. } => _ = self.probing.insert(*id),
                Limit::Probing { key: false, .. } => self.rings[asked.ring].probes = true,
                _ => {}
            }
            match limit {
                Limit::Key
                | Limit::Learned
                | Limit::Probing { key: true, .. }
                | Limit::Paused { name: None, .. }
                | Limit::Concurrency { key: true, .. } => {
                    self.stand(*id, LaneStatus::Waiting(until));
                }
                // The other lanes must not wait for the next token: their jobs are to be dropped as
                // well.
                Limit::Throttle | Limit::Tier { .. } | Limit::Concurrency { .. } if drops => {
                    self.stand(*id, LaneStatus::Waiting(until));
                }
                _ => self.rings[asked.ring].not_before = Some(until),
            }
        }
        let ring = &mut self.rings[asked.ring];
        if answer.weight > 0.0 {
            ring.weight = answer.weight;
        }
        ring.counts = answer.limits_concurrency;
        // An answer without the store says nothing about dropping.
        if answer.at_us > 0 {
            ring.drops = drops;
        }
        // Asking for much more than a throttle gives only makes its answers expensive.
        ring.appetite = if drops || granted_all >= wanted {
            ring.appetite.saturating_mul(2).clamp(MIN_APPETITE, 1 << 20)
        } else {
            (2 * granted_all).max(MIN_APPETITE)
        };
    }

    /// Returns the claim of a granted lane, with the place where it begins.
    pub fn claim(
        &mut self,
        lane_id: i64,
        jobs: u32,
        now: Instant,
        head_every: Duration,
    ) -> LaneClaim {
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
        taken: &[LaneCursor],
        is_dry: bool,
        asked_at: Instant,
    ) {
        let missing = i64::from(claim.jobs) - taken.len() as i64;
        self.hold(claim.lane_id, -missing);
        let Some(lane) = self.lanes.get_mut(&claim.lane_id) else {
            return;
        };
        lane.pass = self.pass;
        lane.claims = lane.claims.saturating_sub(1);
        let is_empty = lane.took(claim.after, taken, is_dry || missing > 0, asked_at);
        match lane.standing {
            _ if is_empty => self.stand(claim.lane_id, LaneStatus::Idle),
            // Of two concurrent claims, the one that found the end was answered first.
            LaneStatus::Idle => self.stand(claim.lane_id, LaneStatus::Due),
            _ => {}
        }
    }

    /// Records that a claim failed.
    pub fn unclaimed(&mut self, claim: &LaneClaim) {
        self.hold(claim.lane_id, -i64::from(claim.jobs));
        if let Some(lane) = self.lanes.get_mut(&claim.lane_id) {
            lane.claims = lane.claims.saturating_sub(1);
        }
    }

    fn hold(&mut self, id: i64, jobs: i64) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        lane.held = (i64::from(lane.held) + jobs).max(0) as u32;
        ring.held = (i64::from(ring.held) + jobs).max(0) as u32;
        if lane.held > 0 {
            ring.holding.insert(id);
        } else {
            ring.holding.remove(&id);
        }
        // A granted job that was not found is a release as well, because the ask reported it as
        // running.
        if jobs < 0 && ring.counts {
            ring.released.insert(id);
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
        if was_probing && matches!(lane.standing, LaneStatus::Waiting(_)) {
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

    /// Returns the reports on running jobs that are due, mostly of throttles whose running jobs are
    /// counted.
    pub fn due_reports(&mut self, now: Instant) -> Vec<HoldReport> {
        let mut all = Vec::new();
        for (place, ring) in self.rings.iter_mut().enumerate() {
            let every = if ring.counts {
                HOLD_REPORT_INTERVAL
            } else {
                UNCOUNTED_REPORT_INTERVAL
            };
            if ring.held > 0 && ring.told.is_none() && !ring.counts {
                ring.told = Some(now);
            }
            let is_due = ring.held > 0
                && ring
                    .told
                    .is_none_or(|told| now.duration_since(told) >= every);
            if (!is_due && ring.released.is_empty())
                || ring.unheard_until.is_some_and(|at| now < at)
            {
                continue;
            }
            let mut ids = std::mem::take(&mut ring.released);
            if is_due {
                ids.extend(&ring.holding);
            }
            ring.told = Some(now);
            ring.unheard_until = None;
            if ring.counts {
                // A slot freed here may be the one for which this throttle waits.
                ring.not_before = None;
            }
            all.push(ring.hold_report(place, ring.held, ids, |id| {
                self.lanes.get(&id).map(|lane| (&*lane.key, lane.held))
            }));
        }
        all
    }

    /// Records that a report failed. It is repeated soon, because keys that are not named keep
    /// their count.
    pub fn retry_report(&mut self, word: &HoldReport, now: Instant) {
        let ring = &mut self.rings[word.ring];
        ring.released.extend(&word.ids);
        ring.unheard_until = Some(now + REPORT_RETRY_DELAY);
    }

    /// Returns the last reports of a worker that stops, in which no job runs here any more.
    pub fn final_reports(&mut self) -> Vec<HoldReport> {
        let mut all = Vec::new();
        for (place, ring) in self
            .rings
            .iter_mut()
            .enumerate()
            .filter(|(_, ring)| ring.counts || ring.held > 0)
        {
            let mut ids = std::mem::take(&mut ring.released);
            ids.extend(&ring.holding);
            all.push(ring.hold_report(place, 0, ids, |id| {
                self.lanes.get(&id).map(|lane| (&*lane.key, 0))
            }));
        }
        all
    }

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
            Some(first.max(ring.not_before.max(ring.backoff_until).unwrap_or(now)))
        });
        let words = self
            .rings
            .iter()
            .filter(|ring| ring.counts && ring.held > 0)
            .map(|ring| ring.told.map_or(now, |at| at + HOLD_REPORT_INTERVAL));
        let releases = self
            .rings
            .iter()
            .filter(|ring| !ring.released.is_empty())
            .map(|ring| ring.unheard_until.unwrap_or(now));
        asks.chain(words).chain(releases).min()
    }

    // --- internals ---

    fn throttle_index(&mut self, name: Name) -> usize {
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
            backoff_until: None,
            appetite: MIN_APPETITE * 8,
            held: 0,
            holding: BTreeSet::new(),
            counts: false,
            probes: false,
            drops: false,
            released: BTreeSet::new(),
            told: None,
            unheard_until: None,
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

    /// Makes lanes due whose wait is over.
    fn wake(&mut self, now: Instant) {
        for place in 0..self.rings.len() {
            while let Some((at, id)) = self.rings[place].waiting.first().copied()
                && at <= now
            {
                self.stand(id, LaneStatus::Due);
            }
        }
    }

    /// Changes the standing of a lane, and moves it to the matching set.
    fn stand(&mut self, id: i64, standing: LaneStatus) {
        self.unplace(id);
        if let Some(lane) = self.lanes.get_mut(&id) {
            if standing == LaneStatus::Due {
                lane.order = lane.last;
                lane.tag = lane.tag.max(self.rings[lane.ring].begin);
            }
            lane.standing = standing;
        }
        self.place(id);
    }

    fn unplace(&mut self, id: i64) {
        let Some(lane) = self.lanes.get(&id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        match lane.standing {
            LaneStatus::Idle => {}
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
        match lane.standing {
            LaneStatus::Idle => {}
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

impl Ring {
    /// Returns a report on those lanes of this throttle that are still known.
    fn hold_report<'a>(
        &self,
        place: usize,
        held: u32,
        ids: BTreeSet<i64>,
        lane: impl Fn(i64) -> Option<(&'a str, u32)>,
    ) -> HoldReport {
        let lanes = ids
            .iter()
            .filter_map(|id| lane(*id))
            .map(|(key, held)| (key.to_owned(), held));
        HoldReport {
            throttle: self.name.clone(),
            held,
            lanes: lanes.collect(),
            ids: ids.iter().copied().collect(),
            ring: place,
        }
    }
}

fn rank(id: i64, lane: &Lane) -> Rank {
    (Tag(lane.tag), lane.order, id)
}

/// One throttle's lanes in a plan, each with the number of jobs to ask for.
#[derive(Default)]
struct Turn {
    order: Vec<i64>,
    wants: HashMap<i64, u32>,
    jobs: usize,
}

impl Turn {
    fn give(&mut self, lane: i64) {
        let wants = self.wants.entry(lane).or_insert(0);
        if *wants == 0 {
            self.order.push(lane);
        }
        *wants += 1;
        self.jobs += 1;
    }
}

/// A choice of a throttle's lanes, job by job, lowest tag first.
struct Choice<'a> {
    fresh: std::collections::btree_set::Iter<'a, Rank>,
    again: BinaryHeap<Reverse<(Rank, u32)>>,
    next: Option<Rank>,
}

impl Choice<'_> {
    fn next(&mut self, lanes: &HashMap<i64, Lane>) -> Option<i64> {
        if self.next.is_none() {
            self.next = self.fresh.next().copied();
        }
        let ((tag, order, id), given) = match (self.next, self.again.peek()) {
            (Some(fresh), Some(Reverse((again, _)))) if *again < fresh => self.again.pop()?.0,
            (Some(fresh), _) => {
                self.next = None;
                (fresh, 0)
            }
            (None, _) => self.again.pop()?.0,
        };
        let lane = lanes.get(&id)?;
        if given + 1 < lane.appetite {
            self.again.push(Reverse((
                (Tag(tag.0 + lane.cost / lane.weight), order, id),
                given + 1,
            )));
        }
        Some(id)
    }
}

fn wait(grant: &Grant, limit: &Limit) -> Duration {
    let longest = match limit {
        Limit::Paused { .. } | Limit::Learned => MAX_PAUSE_WAIT,
        _ => MAX_KNOB_WAIT,
    };
    let shortest = match limit {
        // These waits mostly end by an act of a person, so there is no hurry.
        Limit::Stopped { .. } | Limit::Unknown { .. } | Limit::StoreLost => {
            Duration::from_millis(200)
        }
        _ => MIN_WAIT,
    };
    grant.wait.clamp(shortest, longest)
}

#[cfg(test)]
#[path = "lane_scheduler_tests.rs"]
mod tests;
