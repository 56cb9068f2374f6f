use super::sharing::*;
use crate::control::ewma::smooth;
use crate::governor::plant_tests::Plant;
use crate::governor::policy::Policy;
use crate::governor::{Bounds, Phase};
use crate::governor::{ControlState, Observation, Plan, SignalSample};
use crate::throttle::RateLimit;

/// Several governors on one load, each with its own throttle.
struct House {
    now: f64,
    background: f64,
    average: f64,
    scraped: Vec<(f64, f64)>,
    sharing: Option<Sharing>,
    rooms: Vec<Room>,
    record: Vec<(f64, f64)>,
    tick_s: u64,
    scrape_s: u64,
    visible_s: f64,
    lag_s: f64,
    noise: f64,
    seed: u32,
}

struct Room {
    name: String,
    policy: Policy,
    bounds: Bounds,
    state: ControlState,
    cost: f64,
    demand: f64,
    person: Option<f64>,
    plan: Plan,
}

impl House {
    /// Creates a house like [`Plant::usual`], with one room for each cost.
    fn new(costs: &[f64], shared: bool) -> Self {
        let plant = Plant::usual();
        let rooms: Vec<Room> = costs
            .iter()
            .enumerate()
            .map(|(n, &cost)| {
                let name = ["alpha", "beta", "gamma"][n].to_owned();
                let state =
                    ControlState::new(&plant.policy, plant.bounds, RateLimit::PerSecond(10.0), 0.0);
                let plan = Plan {
                    rps: 10.0,
                    ..Plan::default()
                };
                Room {
                    name,
                    policy: plant.policy.clone(),
                    bounds: plant.bounds,
                    state,
                    cost,
                    demand: f64::INFINITY,
                    person: None,
                    plan,
                }
            })
            .collect();
        let sharing =
            shared.then(|| Sharing::of(rooms.iter().map(|r| (r.name.as_str(), &r.policy))));
        Self {
            now: 0.0,
            background: 0.2,
            average: 0.2,
            scraped: Vec::new(),
            sharing,
            rooms,
            record: Vec::new(),
            tick_s: 5,
            scrape_s: 15,
            visible_s: 20.0,
            lag_s: 60.0,
            noise: 0.0,
            seed: 1,
        }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1.0;
            let ours: f64 = self
                .rooms
                .iter()
                .map(|r| r.cost * r.plan.rps.min(r.demand))
                .sum();
            self.average = smooth(self.average, self.background + ours, 1.0, self.lag_s);
            self.record.push((ours, self.average));
            if (self.now as u64).is_multiple_of(self.scrape_s) {
                self.seed = self
                    .seed
                    .wrapping_mul(1_664_525)
                    .wrapping_add(1_013_904_223);
                let random = f64::from(self.seed >> 8) / f64::from(1u32 << 23) - 1.0;
                self.scraped
                    .push((self.now, self.average * (1.0 + self.noise * random)));
            }
            for n in 0..self.rooms.len() {
                // They tick one after the other, as separate processes do.
                if (self.now as u64 + 2 * n as u64).is_multiple_of(self.tick_s) {
                    self.tick(n);
                }
            }
        }
    }

    fn tick(&mut self, n: usize) {
        let (now, room) = (self.now, &mut self.rooms[n]);
        let visible = self
            .scraped
            .iter()
            .filter(|(at, _)| at + self.visible_s <= now);
        let readings = visible.rev().take(12).map(|&(at, value)| SignalSample {
            signal: "load".to_owned(),
            value: Some(value),
            at,
        });
        let seen = Observation {
            now,
            readings: readings.collect(),
            achieved_rps: Some(room.plan.rps.min(room.demand)),
            limiting_share: Some(if room.demand < room.plan.rps {
                0.0
            } else {
                1.0
            }),
            knob_rps: room.person.take().map(RateLimit::new),
            shared: self
                .sharing
                .as_ref()
                .and_then(|sharing| sharing.role(&room.name, now)),
            ..Observation::default()
        };
        room.plan = room.state.tick(&room.policy, room.bounds, &seen);
        if let Some(sharing) = &mut self.sharing {
            sharing.post(&room.name, crate::governor::shared::tick(&room.state, now));
        }
    }

    fn over(&self, from: usize) -> f64 {
        self.record[from..]
            .iter()
            .map(|(_, average)| (average - 1.0).max(0.0))
            .sum()
    }

    fn mean(&self, from: usize) -> f64 {
        self.record[from..]
            .iter()
            .map(|(_, average)| *average)
            .sum::<f64>()
            / (self.record.len() - from) as f64
    }
}

/// Steps the load of others up and down, and the cost of a job too.
fn day(house: &mut House, n: usize) {
    if n.is_multiple_of(1800) {
        house.background = if n.is_multiple_of(3600) { 0.2 } else { 0.6 };
    }
    if n == 5000 || n == 9000 {
        house
            .rooms
            .iter_mut()
            .for_each(|room| room.cost *= if n == 5000 { 10.0 } else { 0.1 });
    }
}

fn lived(costs: &[f64], shared: bool, change: impl Fn(&mut House, usize)) -> House {
    let mut house = House::new(costs, shared);
    house.noise = 0.1;
    for n in 0..14_400 {
        change(&mut house, n);
        house.run(1);
    }
    house
}

/// Returns the mean difference of the load from that of `other`, in setpoints.
fn apart(a: &House, other: &House) -> f64 {
    let off = a
        .record
        .iter()
        .zip(&other.record)
        .map(|(a, b)| (a.1 - b.1).abs());
    off.sum::<f64>() / a.record.len() as f64
}

fn ratio(house: &House) -> f64 {
    house.rooms[0].plan.rps / house.rooms[1].plan.rps
}

#[test]
fn two_that_share_a_load_behave_as_one_and_keep_their_shares() {
    let one = lived(&[0.02], false, day);
    let two = lived(&[0.01, 0.01], true, day);
    let strangers = lived(&[0.01, 0.01], false, day);

    // The load equals that of one governor, and the overload exceeds it only by noise.
    assert!(apart(&two, &one) < 0.01, "{}", apart(&two, &one));
    assert!(
        two.over(0) < 1.15 * one.over(0),
        "{} and {}",
        two.over(0),
        one.over(0)
    );
    assert!((ratio(&two) - 1.0).abs() < 0.05, "{}", ratio(&two));
    assert!(
        (ratio(&strangers).ln()).abs() > 0.2,
        "left alone they drift apart: {}",
        ratio(&strangers)
    );
    assert_eq!(two.rooms[1].state.links["load"].throttle, "alpha");
    assert!(
        two.rooms[1].plan.reason.contains("following alpha"),
        "{}",
        two.rooms[1].plan.reason
    );
    assert!(
        two.rooms
            .iter()
            .all(|room| room.plan.terms["findings"] == serde_json::json!(["shared"]))
    );
    assert!(
        strangers
            .rooms
            .iter()
            .all(|room| !room.plan.terms.contains_key("findings"))
    );
}

#[test]
fn a_leader_that_has_nothing_to_do_hands_over_and_comes_back_without_a_bump() {
    let mut house = House::new(&[0.01, 0.01], true);
    house.run(1800);
    house.rooms[0].demand = 0.5;
    house.run(1800);
    assert!(
        house.rooms[1].state.links.is_empty(),
        "{:?}",
        house.rooms[1].state.links
    );
    assert!(
        (house.mean(3000) - 1.0).abs() < 0.05,
        "the other takes the room: {}",
        house.mean(3000)
    );
    assert!(
        house.rooms[1].plan.rps > 60.0,
        "{}",
        house.rooms[1].plan.rps
    );

    house.rooms[0].demand = f64::INFINITY;
    let back = house.record.len();
    house.run(1800);
    let peak = house.record[back..]
        .iter()
        .map(|(_, average)| *average)
        .fold(0.0, f64::max);
    assert!(peak < 1.6, "{peak}");
    assert_eq!(
        house
            .rooms
            .iter()
            .filter(|room| room.state.links.is_empty())
            .count(),
        1,
        "one leads, one follows"
    );
    assert!((house.mean(back + 1200) - 1.0).abs() < 0.05);
}

#[test]
fn a_persons_hand_on_one_is_not_followed_by_the_other() {
    let mut house = House::new(&[0.01, 0.01], true);
    house.run(1800);
    let before = house.rooms[1].plan.rps;
    house.rooms[0].person = Some(10.0);
    house.run(20);
    assert!(
        (house.rooms[1].plan.rps / before - 1.0).abs() < 0.1,
        "{} from {before}",
        house.rooms[1].plan.rps
    );
    house.run(1800);
    assert!(
        (house.mean(3000) - 1.0).abs() < 0.05,
        "{}",
        house.mean(3000)
    );
    assert!(
        ratio(&house) < 0.5,
        "the share that the person gave it is kept: {}",
        ratio(&house)
    );
}

#[test]
fn a_follower_restarts_after_its_leader_and_with_its_share() {
    let mut house = House::new(&[0.01, 0.005], true);
    house.run(1800);
    let share = ratio(&house);
    house.rooms.iter_mut().for_each(|room| room.cost *= 20.0);
    let (mut open, mut after) = ((None, None), 0);
    for _ in 0..900 {
        house.run(1);
        let is_open = |n: usize| house.rooms[n].plan.breaker == Phase::Open;
        if is_open(0) && is_open(1) {
            open = (Some(house.now), open.1);
        }
        if open.0.is_some() && open.1.is_none() && !is_open(0) {
            open.1 = Some(house.now);
        }
        after += u32::from(open.0.is_some() && is_open(0) && !is_open(1));
    }
    assert!(open.1.is_some() && after == 0, "{open:?} {after}");
    house.run(900);
    assert!(
        (ratio(&house) / share - 1.0).abs() < 0.1,
        "{} and {share}",
        ratio(&house)
    );
    assert!((house.mean(3000) - 1.0).abs() < 0.1);
}

fn parsed(signal: &str) -> Policy {
    Policy::parse(
        &format!("[[signal]]\nname = \"a\"\nsetpoint = 1.0\n{signal}\n"),
        "f",
    )
    .unwrap()
    .unwrap()
}

#[test]
fn the_same_signal_is_the_same_query_depth_or_probe_at_the_same_setpoint() {
    let same = |a: &str, b: &str| {
        Sharing::of([("a", &parsed(a)), ("b", &parsed(b))])
            .shared_signals()
            .count()
            == 2
    };
    assert!(same(
        "query = \"sum(rate(x[1m]))\"",
        "query = \"sum( rate(x[1m]) ) \"\nlag_s = 5"
    ));
    assert!(same(
        "query = \"p\"\nprobe = \"http://x/m\"\nprobe_metric = \"l\"",
        "query = \"q\"\nprobe = \"http://x/m\"\nprobe_metric = \"l\""
    ));
    assert!(same(
        "source = \"depth\"\nquery = \"mail\"",
        "source = \"depth\"\nquery = \"mail\""
    ));
    assert!(!same("query = \"x{a='b c'}\"", "query = \"x{a='bc'}\""));
    assert!(!same(
        "query = \"mail\"",
        "source = \"depth\"\nquery = \"mail\""
    ));
    let work = "source = \"feedback\"\nkind = \"latency\"";
    assert!(
        !same(work, work),
        "what a throttle's own work says is its own"
    );
    let lower = Policy::parse(
        "[[signal]]\nname = \"a\"\nsetpoint = 0.8\nquery = \"q\"\n",
        "f",
    )
    .unwrap()
    .unwrap();
    assert_eq!(
        Sharing::of([("a", &parsed("query = \"q\"")), ("b", &lower)])
            .shared_signals()
            .count(),
        0,
        "one gives way first, on purpose"
    );
}

#[test]
fn a_governor_that_is_away_neither_leads_nor_counts() {
    let policy = parsed("query = \"q\"");
    let mut sharing = Sharing::of([("a", &policy), ("b", &policy)]);
    let state = ControlState::new(
        &policy,
        Bounds {
            min: 1.0,
            max: 10.0,
            safe_rps: 1.0,
        },
        RateLimit::PerSecond(5.0),
        0.0,
    );
    assert_eq!(sharing.role("b", 100.0), None);
    sharing.post("a", crate::governor::shared::tick(&state, 100.0));
    assert_eq!(sharing.role("b", 105.0).unwrap().leaders["a"].throttle, "a");
    assert_eq!(
        sharing.role("b", 120.0),
        None,
        "it has not decided for a while"
    );
    sharing.post("a", crate::governor::shared::tick(&state, 120.0));
    sharing.leave("a");
    assert_eq!(sharing.role("b", 121.0), None, "a person has it");
}
