//! Answers of throttles: what they grant, and the waits of lanes and throttles that they refuse.

use std::time::{Duration, Instant};

use super::ring::{Block, MIN_APPETITE};
use super::{LaneScheduler, PlannedAcquire};
use crate::runner::lane::LaneStatus;
use crate::runner::waits::Wait;
use crate::throttle::{AcquireResponse, Grant, Limit, OverLimit};

/// Longest time to the next check of a wait caused by a knob, because a person may turn it at any
/// time.
pub(super) const MAX_KNOB_WAIT: Duration = Duration::from_millis(400);

/// Longest time to the next check of a paused key, because a person may resume it.
pub(super) const MAX_PAUSE_WAIT: Duration = Duration::from_secs(2);

/// Shortest wait, so that a fast throttle is served in small batches; its bucket keeps the tokens
/// meanwhile.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// Longest wait, because the store may say anything.
const MAX_WAIT: Duration = Duration::from_secs(86_400);

impl LaneScheduler {
    /// Applies an answer: charges the grants, and sets the waits of lanes and throttles.
    pub fn answered(&mut self, requested: &PlannedAcquire, answer: &AcquireResponse, now: Instant) {
        let drops = answer.over_limit == OverLimit::Drop;
        let (mut granted_all, mut wanted, mut wanted_of_ring) = (0, 0, 0);
        let (mut refused, mut probes) = (None, false);
        let block = self.rings[requested.ring].block;
        let is_check = block.is_some_and(|block| block.wait.end.is_some());
        let mut turn = match drops {
            true => None,
            false => self.first_due(&requested.lanes),
        };
        for ((id, demand), grant) in requested
            .lanes
            .iter()
            .zip(&requested.ask.lanes)
            .zip(&answer.lanes)
        {
            let (want, granted) = (demand.want as usize, grant.granted as usize);
            let is_own = grant.limit.as_ref().is_some_and(is_of_lane);
            granted_all += granted;
            // A lane that is refused by itself says nothing of the throttle.
            wanted += if is_own && granted == 0 { 0 } else { want };
            wanted_of_ring += if is_own { granted } else { want };
            let wait = self.lane_answered(*id, grant, drops, now);
            if wait.is_none()
                && !is_own
                && let Some(limit) = &grant.limit
            {
                refused = Some((grant, limit));
                probes |= matches!(limit, Limit::Probing { .. });
            }
            let cost = self.full_cost(*id, demand.cost);
            self.charge(*id, grant.granted, cost.min(answer.max_cost));
            let is_first = turn.take_if(|first| *first == *id).is_some();
            // Rolling windows are exact, and a lost store charges nothing later.
            let may_begin = answer.at_us > 0 && !answer.has_windows;
            if grant.granted > 0 || !may_begin {
                self.turns_over(*id);
            } else if is_first {
                self.turn_lost(*id, grant, is_check, now);
            }
            self.hold(*id, i64::from(grant.granted));
            if let Some(wait) = wait {
                self.stand(*id, LaneStatus::Waiting(wait));
            }
        }
        let place = requested.ring;
        if !self.is_ring(place, &requested.ask.throttle) {
            return;
        }
        self.ring_answered(place, refused, granted_all > 0, now);
        if probes {
            self.probing_rings.insert(place);
        }
        let ring = &mut self.rings[place];
        if answer.weight > 0.0 {
            ring.weight = answer.weight;
        }
        ring.counts = answer.limits_concurrency;
        if wanted > 0 {
            ring.visits.granted(granted_all, wanted, now);
        }
        // An answer without the store says nothing about dropping.
        if answer.at_us > 0 {
            ring.drops = drops;
        }
        // Asking for much more than a throttle gives only makes its answers expensive.
        if !drops && granted_all < wanted_of_ring {
            ring.appetite = (2 * granted_all).max(MIN_APPETITE);
        } else if drops || granted_all > 0 {
            ring.appetite = ring.appetite.saturating_mul(2).clamp(MIN_APPETITE, 1 << 20);
        }
    }

    /// Returns the lane whose turn it is, among lanes in the order of their request.
    fn first_due(&self, lanes: &[i64]) -> Option<i64> {
        let is_due = |id: &&i64| {
            let lane = self.lanes.get(*id);
            lane.is_some_and(|lane| lane.status == LaneStatus::Due)
        };
        lanes.iter().find(is_due).copied()
    }

    /// Returns the cost of a job of a lane that asked for `asked` tokens.
    fn full_cost(&self, id: i64, asked: f64) -> f64 {
        match self.lanes.get(&id) {
            Some(lane) if lane.demand().1 < lane.cost => lane.cost,
            _ => asked,
        }
    }

    /// Forgets the turns that a lane has lost.
    fn turns_over(&mut self, id: i64) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            (lane.turns_lost, lane.short_until) = (0, None);
        }
    }

    /// Counts the turns of a lane whose jobs cost more than the throttle has: without tokens that
    /// nobody else takes they would wait for ever.
    ///
    /// A check before the end of a wait takes no turn. The tokens that others take move that end
    /// with each check, so the lane takes a turn after the end that was reported at its last lost
    /// turn.
    fn turn_lost(&mut self, id: i64, grant: &Grant, is_check: bool, now: Instant) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let is_short =
            matches!(grant.limit, Some(Limit::Throttle | Limit::Tier { .. })) && lane.cost > 1.0;
        if is_short && (!is_check || lane.short_until.is_some_and(|end| end <= now)) {
            lane.turns_lost = lane.turns_lost.saturating_add(1);
            lane.short_until = Some(now + grant.wait.clamp(MIN_WAIT, MAX_WAIT));
        }
    }

    /// Records the answer to a lane; returns its wait, if it must wait by itself.
    fn lane_answered(&mut self, id: i64, grant: &Grant, drops: bool, now: Instant) -> Option<Wait> {
        self.probing.remove(&id);
        let limit = grant.limit.as_ref();
        let lane = self.lanes.get_mut(&id)?;
        if matches!(limit, Some(Limit::Probing { key: true, .. })) {
            self.probing.insert(id);
        }
        let was_checked = matches!(lane.status, LaneStatus::Waiting(_));
        let is_again = lane.was_refused && grant.granted == 0;
        lane.was_refused = grant.granted == 0 && limit.is_some_and(is_of_lane);
        lane.wants_slot = matches!(limit, Some(Limit::Concurrency { key: true, .. }));
        if was_checked && grant.granted > 0 {
            self.waiting.reward();
        }
        let wait = match limit {
            // The other lanes must not wait for the next token: their jobs are to be dropped as
            // well.
            Some(
                limit @ (Limit::Key
                | Limit::Throttle
                | Limit::Tier { .. }
                | Limit::Concurrency { .. }),
            ) if drops => Some(Wait::until(now + until_check(grant, limit))),
            Some(limit) if is_of_lane(limit) => {
                Some(wait_after(grant, limit, is_again, was_checked, now))
            }
            _ => None,
        };
        if was_checked && wait.is_none() {
            self.stand(id, LaneStatus::Due);
        }
        wait
    }

    /// Records an answer of a throttle, with a refusal that concerns all of its lanes if there was
    /// one.
    fn ring_answered(
        &mut self,
        place: usize,
        refused: Option<(&Grant, &Limit)>,
        has_granted: bool,
        now: Instant,
    ) {
        let ring = &mut self.rings[place];
        let is_again = ring.grants == Some(false) && !has_granted;
        ring.grants = Some(has_granted);
        let before = ring.block;
        if let Some(before) = before.filter(|_| has_granted) {
            self.waits_of(&before).reward();
        }
        let block = refused.map(|(grant, limit)| Block {
            wait: wait_after(grant, limit, is_again, before.is_some(), now),
            is_unknown: matches!(limit, Limit::Unknown { .. }),
        });
        self.block(place, block);
    }
}

/// Returns true if a limit concerns one lane alone.
fn is_of_lane(limit: &Limit) -> bool {
    matches!(
        limit,
        Limit::Key
            | Limit::Learned
            | Limit::Probing { key: true, .. }
            | Limit::Paused { name: None, .. }
            | Limit::Concurrency { key: true, .. }
    )
}

/// Returns the wait after a refusal; `is_again` if the answer before granted nothing either, and
/// `was_checked` if that was expected of this one.
fn wait_after(
    grant: &Grant,
    limit: &Limit,
    is_again: bool,
    was_checked: bool,
    now: Instant,
) -> Wait {
    let check = now + until_check(grant, limit);
    match limit {
        // These mostly end by a manual action.
        Limit::Stopped { .. } | Limit::Unknown { .. } => Wait::for_check(check),
        // The end of these is a guess, which counts once.
        Limit::Concurrency { .. }
        | Limit::Probing { .. }
        | Limit::Holders { .. }
        | Limit::StoreLost => match is_again {
            true => Wait::for_check(check),
            false => Wait::until(check),
        },
        // The end of these is known, unless it came and others were served.
        Limit::Throttle
        | Limit::Tier { .. }
        | Limit::Key
        | Limit::Learned
        | Limit::Paused { .. } => {
            if is_again && !was_checked {
                return Wait::for_check(check);
            }
            let end = now + grant.wait.clamp(MIN_WAIT, MAX_WAIT);
            Wait {
                end: Some(end),
                check: (check < end).then_some(check),
            }
        }
    }
}

/// Returns the time until what was refused is worth another try.
fn until_check(grant: &Grant, limit: &Limit) -> Duration {
    let longest = match limit {
        Limit::Paused { .. } | Limit::Learned => MAX_PAUSE_WAIT,
        _ => MAX_KNOB_WAIT,
    };
    let shortest = match limit {
        // There is no hurry.
        Limit::Stopped { .. } | Limit::Unknown { .. } | Limit::StoreLost => {
            Duration::from_millis(200)
        }
        _ => MIN_WAIT,
    };
    grant.wait.clamp(shortest, longest)
}
