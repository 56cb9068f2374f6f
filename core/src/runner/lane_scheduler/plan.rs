//! Planning: which lanes are asked for, and their waits after an answer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use super::{LaneScheduler, MIN_APPETITE, PlannedAcquire, Rank};
use crate::runner::ids::IdMap;
use crate::runner::lane::{Lane, LaneStatus, Tag};
use crate::throttle::{
    AcquireRequest, AcquireResponse, Grant, Holder, LaneRequest, Limit, OverLimit,
};

/// Longest wait caused by a knob, because a person may turn it at any time.
pub(super) const MAX_KNOB_WAIT: Duration = Duration::from_millis(400);

/// Longest wait for a paused key, because a person may resume it.
pub(super) const MAX_PAUSE_WAIT: Duration = Duration::from_secs(2);

/// Shortest wait, so that a fast throttle is served in small batches; its bucket keeps the tokens
/// meanwhile.
pub(super) const MIN_WAIT: Duration = Duration::from_millis(5);

impl LaneScheduler {
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
                if ring.not_before.is_none_or(|at| at <= now) {
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
                    visit: ring.visits.jobs(lanes.len(), permits),
                    first_visit: ring.visits.first_jobs(lanes.len(), permits),
                });
                let most = left.min(ring.appetite - turn.jobs);
                let Some((lane, jobs)) = choice.next(&self.lanes, most as u32) else {
                    continue;
                };
                turn.give(lane, jobs);
                left -= jobs as usize;
                rings.push(Reverse((Tag(tag.0 + f64::from(jobs) / ring.weight), place)));
            }
        }
        let mut requested: Vec<PlannedAcquire> = chosen
            .into_iter()
            .filter(|(_, turn)| turn.jobs > 0)
            .map(|(ring, turn)| self.ask(ring, turn))
            .collect();
        requested.sort_by(|a, b| a.ask.throttle.cmp(&b.ask.throttle));
        requested
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
    pub fn answered(&mut self, requested: &PlannedAcquire, answer: &AcquireResponse, now: Instant) {
        let drops = answer.over_limit == OverLimit::Drop;
        let (mut wanted, mut granted_all) = (0, 0);
        for ((id, wish), grant) in requested
            .lanes
            .iter()
            .zip(&requested.ask.lanes)
            .zip(&answer.lanes)
        {
            wanted += wish.want as usize;
            granted_all += grant.granted as usize;
            self.charge(*id, grant.granted, wish.cost.min(answer.max_cost));
            self.hold(*id, i64::from(grant.granted));
            self.probing.remove(id);
            let Some(limit) = &grant.limit else { continue };
            let until = now + wait(grant, limit);
            match limit {
                Limit::Probing { key: true, .. } => _ = self.probing.insert(*id),
                Limit::Probing { key: false, .. } => self.rings[requested.ring].probes = true,
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
                _ => self.rings[requested.ring].not_before = Some(until),
            }
        }
        let ring = &mut self.rings[requested.ring];
        if answer.weight > 0.0 {
            ring.weight = answer.weight;
        }
        ring.counts = answer.limits_concurrency;
        ring.visits.granted(granted_all, wanted, now);
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
}

/// One throttle's lanes in a plan, each with the number of jobs to ask for.
#[derive(Default)]
struct Turn {
    order: Vec<i64>,
    wants: IdMap<u32>,
    jobs: usize,
}

impl Turn {
    fn give(&mut self, lane: i64, jobs: u32) {
        let wants = self.wants.entry(lane).or_insert(0);
        if *wants == 0 {
            self.order.push(lane);
        }
        *wants += jobs;
        self.jobs += jobs as usize;
    }
}

/// A choice of a throttle's lanes, visit by visit, lowest tag first.
struct Choice<'a> {
    fresh: std::collections::btree_set::Iter<'a, Rank>,
    again: BinaryHeap<Reverse<(Rank, u32)>>,
    next: Option<Rank>,
    /// Most jobs of a visit, and of the first visit of a lane that woke up.
    visit: u32,
    first_visit: u32,
}

impl Choice<'_> {
    /// Returns the next lane, and the jobs to ask it for: at least one, at most `most`.
    fn next(&mut self, lanes: &IdMap<Lane>, most: u32) -> Option<(i64, u32)> {
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
        let (visit, appetite) = match lane.is_fresh() {
            true => (self.first_visit, lane.appetite.max(self.first_visit)),
            false => (self.visit, lane.appetite),
        };
        let jobs = visit.min(appetite.saturating_sub(given)).min(most).max(1);
        if given + jobs < appetite {
            let share = f64::from(jobs) * lane.cost / lane.weight;
            self.again
                .push(Reverse(((Tag(tag.0 + share), order, id), given + jobs)));
        }
        Some((id, jobs))
    }
}

fn wait(grant: &Grant, limit: &Limit) -> Duration {
    let longest = match limit {
        Limit::Paused { .. } | Limit::Learned => MAX_PAUSE_WAIT,
        _ => MAX_KNOB_WAIT,
    };
    let shortest = match limit {
        // These waits mostly end by a manual action, so there is no hurry.
        Limit::Stopped { .. } | Limit::Unknown { .. } | Limit::StoreLost => {
            Duration::from_millis(200)
        }
        _ => MIN_WAIT,
    };
    grant.wait.clamp(shortest, longest)
}
