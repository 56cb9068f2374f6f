//! Planning: the lanes that are asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use super::ring::{MIN_APPETITE, Rank};
use super::{LaneScheduler, PlannedAcquire};
use crate::runner::ids::IdMap;
use crate::runner::lane::{Lane, LaneStatus, Tag};
use crate::throttle::{AcquireRequest, Holder, LaneRequest};

/// Part of the permits for checks of lanes and throttles that wait.
const CHECK_PART: usize = 4;

/// Part of the permits for throttles that granted nothing the last time, or were never asked.
const TRIAL_PART: usize = 2;

/// Time after which a check is repeated of which no answer came.
const CHECK_AGAIN: Duration = Duration::from_millis(400);

/// The kinds of waits, of which checks are made in turn.
const WAITS: [WaitKind; 3] = [WaitKind::Lane, WaitKind::Blocked, WaitKind::Unknown];

#[derive(Clone, Copy)]
enum WaitKind {
    Lane,
    Blocked,
    Unknown,
}

impl LaneScheduler {
    /// Chooses the lanes to ask tokens for, for at most `permits` jobs in total.
    pub fn plan(&mut self, now: Instant, permits: usize) -> Vec<PlannedAcquire> {
        self.plans = self.plans.wrapping_add(1);
        self.wake(now);
        self.leave_guests();
        let rings = &mut self.rings;
        self.open.retain(|place| {
            let ring = &mut rings[*place];
            ring.is_listed = ring.is_open();
            ring.is_listed
        });
        let mut chosen: IdMap<Turn, usize> = IdMap::default();
        let (mut left, mut checked) = (permits, Vec::new());
        // Behind a long queue checks would never be made. Most are in vain, so they take a part.
        let part = self.part(permits, CHECK_PART);
        left -= self.check(now, part, &mut chosen, &mut checked);
        let mut trials = self.part(permits, TRIAL_PART);
        for guests in [false, true] {
            self.choose(guests, permits, &mut left, &mut trials, &mut chosen);
        }
        left -= self.check(now, left, &mut chosen, &mut checked);
        self.ask_more(&checked, left, &mut chosen);
        let mut requested: Vec<PlannedAcquire> = chosen
            .into_iter()
            .filter(|(_, turn)| turn.jobs > 0)
            .map(|(ring, turn)| self.ask(ring, turn))
            .collect();
        requested.sort_by(|a, b| a.ask.throttle.cmp(&b.ask.throttle));
        requested
    }

    /// Returns one of so many parts of the permits. The remainder is given in some plans only.
    fn part(&self, permits: usize, of: usize) -> usize {
        permits / of + usize::from(self.plans % of < permits % of)
    }

    /// Chooses lanes that are due, lowest tag first.
    fn choose(
        &mut self,
        guests: bool,
        permits: usize,
        left: &mut usize,
        trials: &mut usize,
        chosen: &mut IdMap<Turn, usize>,
    ) {
        // A throttle that grants nothing is not charged, so its tag must neither hold up that of
        // newcomers nor stay below those of others.
        let mut granting: Option<Tag> = None;
        let mut ready: Vec<Reverse<(Tag, usize)>> = Vec::new();
        for place in self.open.iter().copied() {
            let ring = &mut self.rings[place];
            let Some((lowest, ..)) = ring.ready(guests).first() else {
                continue;
            };
            ring.begin = ring.begin.max(lowest.0);
            ring.tag = ring.tag.max(self.begin);
            let tag = Tag(ring.tag);
            if ring.grants == Some(true) {
                granting = Some(granting.map_or(tag, |least| least.min(tag)));
            }
            ready.push(Reverse((tag, place)));
        }
        if let Some(least) = granting {
            self.begin = least.0;
        }
        for Reverse((tag, place)) in &mut ready {
            if tag.0 < self.begin {
                *tag = Tag(self.begin);
                self.rings[*place].tag = self.begin;
            }
        }
        let mut rings = BinaryHeap::from(ready);
        let mut turns: IdMap<Choice<'_>, usize> = IdMap::default();
        let mut aside = Vec::new();
        loop {
            while *left > 0
                && let Some(Reverse((tag, place))) = rings.pop()
            {
                let ring = &self.rings[place];
                let is_trial = ring.grants != Some(true);
                if is_trial && *trials == 0 {
                    aside.push(Reverse((tag, place)));
                    continue;
                }
                let lanes = ring.ready(guests);
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
                let most = (*left).min(ring.appetite - turn.jobs);
                let most = if is_trial { most.min(*trials) } else { most };
                let Some((lane, jobs)) = choice.next(&self.lanes, most as u32) else {
                    continue;
                };
                turn.give(lane, jobs);
                *left -= jobs as usize;
                if is_trial {
                    *trials -= jobs as usize;
                }
                rings.push(Reverse((Tag(tag.0 + f64::from(jobs) / ring.weight), place)));
            }
            if aside.is_empty() || *left == 0 {
                return;
            }
            // Nobody else wants the rest.
            rings.extend(aside.drain(..));
            *trials = *left;
        }
    }

    /// Chooses waits to be checked, one job of one lane each, of all kinds in turn; returns the
    /// number of jobs, and adds the throttles that wait to `checked`.
    fn check(
        &mut self,
        now: Instant,
        permits: usize,
        chosen: &mut IdMap<Turn, usize>,
        checked: &mut Vec<usize>,
    ) -> usize {
        let (mut used, mut in_vain) = (0, 0);
        while used < permits && in_vain < WAITS.len() {
            let kind = WAITS[self.checks % WAITS.len()];
            self.checks = self.checks.wrapping_add(1);
            let again = now + CHECK_AGAIN;
            let taken = match kind {
                WaitKind::Lane => self.waiting.take_check(now, again).map(|id| {
                    let place = self.check_lane(id, again);
                    place.map(|place| (place, id))
                }),
                WaitKind::Blocked => self
                    .blocked
                    .take_check(now, again)
                    .map(|place| self.check_ring(place, again, checked)),
                WaitKind::Unknown => self
                    .unknown
                    .take_check(now, again)
                    .map(|place| self.check_ring(place, again, checked)),
            };
            match taken {
                None => in_vain += 1,
                Some(None) => in_vain = 0,
                Some(Some((place, id))) => {
                    in_vain = 0;
                    let turn = chosen.entry(place).or_default();
                    if turn.jobs < self.rings[place].appetite {
                        turn.give(id, 1);
                        used += 1;
                    }
                }
            }
        }
        used
    }

    /// Asks throttles that are checked for further lanes, with the permits that nobody wants.
    fn ask_more(&self, checked: &[usize], mut left: usize, chosen: &mut IdMap<Turn, usize>) {
        for place in checked {
            let ring = &self.rings[*place];
            let turn = chosen.entry(*place).or_default();
            let guests = ring.guests.iter().filter(|_| !ring.drops);
            for (.., id) in ring.due.iter().chain(guests).take(MIN_APPETITE) {
                if left > 0 && !turn.wants.contains_key(id) {
                    turn.give(*id, 1);
                    left -= 1;
                }
            }
        }
    }

    /// Returns the throttle of a lane that is to be checked, if it may be asked.
    fn check_lane(&mut self, id: i64, again: Instant) -> Option<usize> {
        let lane = self.lanes.get_mut(&id)?;
        if let LaneStatus::Waiting(wait) = &mut lane.status {
            wait.check = Some(again);
        }
        let (place, ring) = (lane.ring, &self.rings[lane.ring]);
        if ring.drops && self.is_guest(id) {
            self.stand(id, LaneStatus::Idle);
            return None;
        }
        ring.block.is_none().then_some(place)
    }

    /// Returns a throttle that is to be checked, with the lane to ask for. A throttle without work
    /// need not wait.
    fn check_ring(
        &mut self,
        place: usize,
        again: Instant,
        checked: &mut Vec<usize>,
    ) -> Option<(usize, i64)> {
        let ring = &mut self.rings[place];
        if let Some(block) = &mut ring.block {
            block.wait.check = Some(again);
        }
        let guests = ring.guests.first().filter(|_| !ring.drops);
        let Some((.., id)) = ring.due.first().or(guests).copied() else {
            self.block(place, None);
            self.leave_guests();
            return None;
        };
        checked.push(place);
        Some((place, id))
    }

    fn ask(&self, place: usize, turn: Turn) -> PlannedAcquire {
        let ring = &self.rings[place];
        let lanes = turn.order.iter().map(|id| {
            let lane = &self.lanes[id];
            let (most, cost) = lane.demand();
            LaneRequest {
                key: lane.key.to_string(),
                want: turn.wants[id].min(most),
                cost,
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
