use super::sharing::*;
use crate::control::ewma::smooth;
use crate::governor::plant_tests::Plant;
use crate::governor::policy::Policy;
use crate::governor::{Bounds, Phase};
use crate::governor::{ControlState, Observation, Plan, SignalSample};
use crate::throttle::RateLimit;

/// Several governors on one load, each with its own throttle.
struct SharedLoad {
    now: f64,
    background: f64,
    average: f64,
    scraped: Vec<(f64, f64)>,
    sharing: Option<Sharing>,
    members: Vec<Member>,
    record: Vec<(f64, f64)>,
    tick_s: u64,
    scrape_s: u64,
    visible_s: f64,
    lag_s: f64,
    noise: f64,
    seed: u32,
}

struct Member {
    name: String,
    policy: Policy,
    bounds: Bounds,
    state: ControlState,
    cost: f64,
    demand: f64,
    person: Option<f64>,
    plan: Plan,
}

impl SharedLoad {
    /// Creates a load like [`Plant::usual`], with one member for each cost.
    fn new(costs: &[f64], shared: bool) -> Self {
        let plant = Plant::usual();
        let members: Vec<Member> = costs
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
                Member {
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
            shared.then(|| Sharing::of(members.iter().map(|r| (r.name.as_str(), &r.policy))));
        Self {
            now: 0.0,
            background: 0.2,
            average: 0.2,
            scraped: Vec::new(),
            sharing,
            members,
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
                .members
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
            for n in 0..self.members.len() {
                // They tick one after the other, as separate processes do.
                if (self.now as u64 + 2 * n as u64).is_multiple_of(self.tick_s) {
                    self.tick(n);
                }
            }
        }
    }

    fn tick(&mut self, n: usize) {
        let (now, member) = (self.now, &mut self.members[n]);
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
            achieved_rps: Some(member.plan.rps.min(member.demand)),
            limiting_share: Some(if member.demand < member.plan.rps {
                0.0
            } else {
                1.0
            }),
            knob_rps: member.person.take().map(RateLimit::new),
            shared: self
                .sharing
                .as_ref()
                .and_then(|sharing| sharing.role(&member.name, now)),
            ..Observation::default()
        };
        member.plan = member.state.tick(&member.policy, member.bounds, &seen);
        if let Some(sharing) = &mut self.sharing {
            sharing.post(
                &member.name,
                crate::governor::shared::tick(&member.state, now),
            );
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
fn day(load: &mut SharedLoad, n: usize) {
    if n.is_multiple_of(1800) {
        load.background = if n.is_multiple_of(3600) { 0.2 } else { 0.6 };
    }
    if n == 5000 || n == 9000 {
        load.members
            .iter_mut()
            .for_each(|member| member.cost *= if n == 5000 { 10.0 } else { 0.1 });
    }
}

fn lived(costs: &[f64], shared: bool, change: impl Fn(&mut SharedLoad, usize)) -> SharedLoad {
    let mut load = SharedLoad::new(costs, shared);
    load.noise = 0.1;
    for n in 0..14_400 {
        change(&mut load, n);
        load.run(1);
    }
    load
}

/// Returns the mean difference of the load from that of `other`, in setpoints.
fn apart(a: &SharedLoad, other: &SharedLoad) -> f64 {
    let off = a
        .record
        .iter()
        .zip(&other.record)
        .map(|(a, b)| (a.1 - b.1).abs());
    off.sum::<f64>() / a.record.len() as f64
}

fn ratio(load: &SharedLoad) -> f64 {
    load.members[0].plan.rps / load.members[1].plan.rps
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
    assert_eq!(two.members[1].state.links["load"].throttle, "alpha");
    assert!(
        two.members[1].plan.reason.contains("following alpha"),
        "{}",
        two.members[1].plan.reason
    );
    assert!(
        two.members
            .iter()
            .all(|member| member.plan.terms["findings"] == serde_json::json!(["shared"]))
    );
    assert!(
        strangers
            .members
            .iter()
            .all(|member| !member.plan.terms.contains_key("findings"))
    );
}

#[test]
fn a_leader_that_has_nothing_to_do_hands_over_and_comes_back_without_a_bump() {
    let mut load = SharedLoad::new(&[0.01, 0.01], true);
    load.run(1800);
    load.members[0].demand = 0.5;
    load.run(1800);
    assert!(
        load.members[1].state.links.is_empty(),
        "{:?}",
        load.members[1].state.links
    );
    assert!(
        (load.mean(3000) - 1.0).abs() < 0.05,
        "the other takes the member: {}",
        load.mean(3000)
    );
    assert!(
        load.members[1].plan.rps > 60.0,
        "{}",
        load.members[1].plan.rps
    );

    load.members[0].demand = f64::INFINITY;
    let back = load.record.len();
    load.run(1800);
    let peak = load.record[back..]
        .iter()
        .map(|(_, average)| *average)
        .fold(0.0, f64::max);
    assert!(peak < 1.6, "{peak}");
    assert_eq!(
        load.members
            .iter()
            .filter(|member| member.state.links.is_empty())
            .count(),
        1,
        "one leads, one follows"
    );
    assert!((load.mean(back + 1200) - 1.0).abs() < 0.05);
}

#[test]
fn a_persons_hand_on_one_is_not_followed_by_the_other() {
    let mut load = SharedLoad::new(&[0.01, 0.01], true);
    load.run(1800);
    let before = load.members[1].plan.rps;
    load.members[0].person = Some(10.0);
    load.run(20);
    assert!(
        (load.members[1].plan.rps / before - 1.0).abs() < 0.1,
        "{} from {before}",
        load.members[1].plan.rps
    );
    load.run(1800);
    assert!((load.mean(3000) - 1.0).abs() < 0.05, "{}", load.mean(3000));
    assert!(
        ratio(&load) < 0.5,
        "the share that the person gave it is kept: {}",
        ratio(&load)
    );
}

#[test]
fn a_follower_restarts_after_its_leader_and_with_its_share() {
    for model in [false, true] {
        let mut load = SharedLoad::new(&[0.01, 0.005], true);
        for member in &mut load.members {
            member.policy.law.model = model;
        }
        load.run(1800);
        let share = ratio(&load);
        load.members
            .iter_mut()
            .for_each(|member| member.cost *= 20.0);
        let (mut open, mut after) = ((None, None), 0);
        for _ in 0..900 {
            load.run(1);
            let is_open = |n: usize| load.members[n].plan.breaker == Phase::Open;
            if is_open(0) && is_open(1) {
                open = (Some(load.now), open.1);
            }
            if open.0.is_some() && open.1.is_none() && !is_open(0) {
                open.1 = Some(load.now);
            }
            after += u32::from(open.0.is_some() && is_open(0) && !is_open(1));
        }
        assert!(open.1.is_some() && after == 0, "{open:?} {after}");
        load.run(900);
        assert!(
            (ratio(&load) / share - 1.0).abs() < 0.1,
            "{} and {share}",
            ratio(&load)
        );
        assert!((load.mean(3000) - 1.0).abs() < 0.1);
    }
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
