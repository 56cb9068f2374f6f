//! The board of lanes that have work: who is asked for next, and who must wait until when. Pure; time is an argument.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use crate::jobs::postgres::ReadyLane;
use crate::throttle::store::MAX_LANES_PER_ASK;
use crate::throttle::{Answer, Ask, Grant, LaneAsk, Limit, Name};

/// A person may turn a knob at any time, so no wait that a knob caused is taken longer than this.
const MAX_KNOB_WAIT: Duration = Duration::from_millis(400);

/// A paused key is looked at again at least this often, in case somebody resumed it.
const MAX_PAUSE_WAIT: Duration = Duration::from_secs(2);

/// Waits are rounded up to this, so that a fast throttle is served in small batches; its bucket keeps the tokens meanwhile.
const MIN_WAIT: Duration = Duration::from_millis(5);

/// How strongly a newly seen cost counts in the estimate of a lane's mean cost.
const COST_WEIGHT: f64 = 0.3;

struct Lane {
    key: String,
    not_before: Option<Instant>,
    cost: f64,
}

#[derive(Default)]
struct Ring {
    order: VecDeque<i64>,
    not_before: Option<Instant>,
}

/// One throttle's ask with the lanes that it stands for.
#[derive(Debug)]
pub struct Asked {
    /// What to ask the store.
    pub ask: Ask,
    /// The lanes, in the order of the ask.
    pub lanes: Vec<i64>,
}

/// The lanes that have work, by throttle, each throttle's in round-robin order.
#[derive(Default)]
pub struct Board {
    lanes: HashMap<i64, Lane>,
    rings: BTreeMap<Name, Ring>,
    turn: usize,
}

impl Board {
    /// Takes over what the queue says now. Lanes that stay keep their place, their waits and what was learned of them.
    pub fn refresh(&mut self, ready: Vec<ReadyLane>) {
        let present: HashSet<i64> = ready.iter().map(|lane| lane.lane_id).collect();
        for ring in self.rings.values_mut() {
            ring.order.retain(|lane| present.contains(lane));
        }
        let placed: HashSet<i64> = self.rings.values().flat_map(|ring| ring.order.iter().copied()).collect();
        self.lanes.retain(|lane, _| present.contains(lane));
        for lane in ready {
            let Ok(throttle) = Name::new(lane.throttle) else { continue };
            self.lanes.entry(lane.lane_id).or_insert(Lane { key: lane.key, not_before: None, cost: 1.0 });
            if !placed.contains(&lane.lane_id) {
                self.rings.entry(throttle).or_default().order.push_back(lane.lane_id);
            }
        }
        self.rings.retain(|_, ring| !ring.order.is_empty());
    }

    /// True when no lane has work.
    pub fn is_empty(&self) -> bool {
        self.rings.is_empty()
    }

    /// Chooses what to ask for, for at most `permits` jobs in all. Throttles share the permits and take turns at the remainder.
    pub fn plan(&mut self, now: Instant, permits: usize) -> Vec<Asked> {
        let due: Vec<Name> = self
            .rings
            .iter()
            .filter(|(_, ring)| ring.not_before.is_none_or(|at| at <= now))
            .filter(|(_, ring)| ring.order.iter().any(|lane| self.is_due(*lane, now)))
            .map(|(name, _)| name.clone())
            .collect();
        if due.is_empty() || permits == 0 {
            return Vec::new();
        }
        self.turn = self.turn.wrapping_add(1);
        let mut left = permits;
        let mut asked = Vec::new();
        for place in 0..due.len() {
            let name = &due[(place + self.turn) % due.len()];
            let share = left.div_ceil(due.len() - place);
            if share == 0 {
                break;
            }
            let one = self.ask_for(name, now, share);
            left -= one.ask.lanes.iter().map(|lane| lane.want as usize).sum::<usize>().min(left);
            asked.push(one);
        }
        asked
    }

    fn is_due(&self, lane: i64, now: Instant) -> bool {
        self.lanes.get(&lane).is_some_and(|lane| lane.not_before.is_none_or(|at| at <= now))
    }

    fn ask_for(&self, name: &Name, now: Instant, share: usize) -> Asked {
        let lanes: Vec<i64> = self.rings[name]
            .order
            .iter()
            .copied()
            .filter(|lane| self.is_due(*lane, now))
            .take(share.min(MAX_LANES_PER_ASK))
            .collect();
        let each = share / lanes.len();
        let extra = share % lanes.len();
        let wants = lanes.iter().enumerate().map(|(place, id)| {
            let lane = &self.lanes[id];
            LaneAsk { key: lane.key.clone(), want: (each + usize::from(place < extra)) as u32, cost: lane.cost }
        });
        Asked { ask: Ask { throttle: name.clone(), lanes: wants.collect() }, lanes: lanes.clone() }
    }

    /// Takes note of an answer: lanes that got something go to the back, lanes that must wait get their time.
    pub fn answered(&mut self, asked: &Asked, answer: &Answer, now: Instant) {
        let Some(ring) = self.rings.get_mut(&asked.ask.throttle) else { return };
        for (id, grant) in asked.lanes.iter().zip(&answer.lanes) {
            if grant.granted > 0 {
                ring.order.retain(|lane| lane != id);
                ring.order.push_back(*id);
            }
            let Some(limit) = &grant.limit else { continue };
            let until = now + wait(grant, limit);
            match limit {
                Limit::Key | Limit::Paused { .. } => {
                    if let Some(lane) = self.lanes.get_mut(id) {
                        lane.not_before = Some(until);
                    }
                }
                _ => ring.not_before = Some(until),
            }
        }
    }

    /// Takes note that a lane gave fewer jobs than were granted: it is empty until the queue says otherwise.
    pub fn drained(&mut self, lane: i64) {
        for ring in self.rings.values_mut() {
            ring.order.retain(|other| *other != lane);
        }
        self.rings.retain(|_, ring| !ring.order.is_empty());
    }

    /// Learns what a job of the lane costs.
    pub fn learn_cost(&mut self, lane: i64, mean: f64) {
        if let Some(lane) = self.lanes.get_mut(&lane) {
            lane.cost += (mean - lane.cost) * COST_WEIGHT;
            if (lane.cost - mean).abs() < 1e-3 * mean {
                lane.cost = mean;
            }
        }
    }

    /// When the next lane may be asked for again, among those that wait.
    pub fn next_due(&self, now: Instant) -> Option<Instant> {
        self.rings
            .values()
            .filter_map(|ring| {
                let lane =
                    ring.order.iter().filter_map(|id| self.lanes.get(id)).map(|lane| lane.not_before.unwrap_or(now)).min()?;
                Some(lane.max(ring.not_before.unwrap_or(now)))
            })
            .min()
    }
}

fn wait(grant: &Grant, limit: &Limit) -> Duration {
    let longest = match limit {
        Limit::Paused { .. } => MAX_PAUSE_WAIT,
        _ => MAX_KNOB_WAIT,
    };
    let shortest = match limit {
        // There is nothing to wait for but a person, so do not hurry.
        Limit::Stopped { .. } | Limit::Unknown { .. } | Limit::StoreLost => Duration::from_millis(200),
        _ => MIN_WAIT,
    };
    grant.wait.clamp(shortest, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(id: i64, throttle: &str, key: &str) -> ReadyLane {
        ReadyLane { lane_id: id, throttle: throttle.into(), key: key.into() }
    }

    fn answer(grants: &[(u32, Option<Limit>)]) -> Answer {
        let lanes = grants
            .iter()
            .map(|(granted, limit)| Grant {
                granted: *granted,
                wait: Duration::from_millis(100),
                limit: limit.clone(),
                charge_us: Vec::new(),
            })
            .collect();
        Answer { lanes, effective_rps: 1.0, at_us: 0, seq: 0 }
    }

    #[test]
    fn lanes_of_a_slow_throttle_take_turns() {
        let mut board = Board::default();
        board.refresh(vec![lane(1, "t", "a"), lane(2, "t", "b"), lane(3, "t", "c")]);
        let mut now = Instant::now();
        let mut served = Vec::new();

        for _ in 0..6 {
            let asked = board.plan(now, 8).remove(0);
            served.push(asked.lanes[0]);
            let one_token = answer(&[(1, Some(Limit::Throttle)), (0, Some(Limit::Throttle)), (0, Some(Limit::Throttle))]);
            board.answered(&asked, &one_token, now);
            assert!(board.plan(now, 8).is_empty(), "nothing is asked before the throttle's wait has passed");
            now += Duration::from_millis(100);
        }

        assert_eq!(served, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn a_paused_lane_is_not_asked_for_and_holds_nobody_up() {
        let mut board = Board::default();
        board.refresh(vec![lane(1, "t", "a"), lane(2, "t", "b")]);
        let now = Instant::now();
        let asked = board.plan(now, 2).remove(0);

        board.answered(&asked, &answer(&[(0, Some(Limit::Paused { until_ms: 0, why: "429".into() })), (1, None)]), now);

        assert_eq!(board.plan(now, 2).remove(0).lanes, [2]);
        assert_eq!(board.plan(now + MAX_PAUSE_WAIT, 2).remove(0).lanes, [1, 2]);
    }

    #[test]
    fn throttles_share_the_permits() {
        let mut board = Board::default();
        board.refresh(vec![lane(1, "a", ""), lane(2, "b", "")]);

        let wants: Vec<u32> = board.plan(Instant::now(), 9).iter().map(|asked| asked.ask.lanes[0].want).collect();

        assert_eq!(wants.iter().sum::<u32>(), 9);
        assert!(wants.iter().all(|want| *want >= 4), "{wants:?}");
    }

    #[test]
    fn a_drained_lane_comes_back_with_the_next_look_and_keeps_its_cost() {
        let mut board = Board::default();
        board.refresh(vec![lane(1, "t", "")]);
        board.learn_cost(1, 11.0);
        board.drained(1);
        assert!(board.is_empty());

        board.refresh(vec![lane(1, "t", "")]);

        assert!((board.plan(Instant::now(), 1)[0].ask.lanes[0].cost - 4.0).abs() < 1e-9);
    }

    #[test]
    fn permits_are_never_exceeded() {
        let mut board = Board::default();
        board.refresh((0..200).map(|id| lane(id, if id % 2 == 0 { "a" } else { "b" }, &id.to_string())).collect());

        for permits in 1..300 {
            let wanted: u32 = board.plan(Instant::now(), permits).iter().flat_map(|a| &a.ask.lanes).map(|lane| lane.want).sum();
            assert!(wanted as usize <= permits, "{wanted} of {permits}");
        }
    }
}
