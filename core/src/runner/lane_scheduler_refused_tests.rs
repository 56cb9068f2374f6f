use super::answer::{MAX_KNOB_WAIT, MAX_PAUSE_WAIT};
use super::tests::{add, grant, scheduler};
use super::*;
use crate::throttle::{AcquireResponse, Grant, Limit};

/// Time between two turns.
const TURN: Duration = Duration::from_millis(5);

const PERMITS: usize = 64;

const HOUR: Duration = Duration::from_secs(3600);

/// A worker whose lanes never run dry, and the throttles that refuse some of them.
struct Simulation {
    scheduler: LaneScheduler,
    now: Instant,
    /// The refusals, by the name of a throttle or by a key.
    refusals: HashMap<String, Grant>,
    /// Number of requests to each throttle, and of lines in them by key.
    asks: HashMap<String, u32>,
    jobs: HashMap<String, u32>,
}

impl Simulation {
    fn new() -> Self {
        Self {
            scheduler: scheduler(),
            now: Instant::now(),
            refusals: HashMap::new(),
            asks: HashMap::new(),
            jobs: HashMap::new(),
        }
    }

    fn add(&mut self, id: i64, throttle: &str) {
        add(&mut self.scheduler, id, throttle, 1.0, self.now);
    }

    /// Adds throttles of one lane each, which refuse it.
    fn add_refusing(&mut self, prefix: &str, count: i64, limit: &Limit) {
        for n in 0..count {
            let name = format!("{prefix}{n}");
            self.add(1_000_000 + n, &name);
            self.refuse(&name, limit, Duration::from_millis(500));
        }
    }

    fn refuse(&mut self, name: &str, limit: &Limit, wait: Duration) {
        let refusal = Grant {
            wait,
            ..grant(0, Some(limit.clone()))
        };
        self.refusals.insert(name.to_owned(), refusal);
    }

    /// Takes turns for a time, and counts requests and jobs from its beginning.
    fn run(&mut self, time: Duration) {
        (self.asks, self.jobs) = Default::default();
        let end = self.now + time;
        while self.now < end {
            self.turn(PERMITS);
        }
    }

    fn turn(&mut self, permits: usize) {
        let planned = self.scheduler.plan(self.now, permits);
        let wanted = planned.iter().flat_map(|one| &one.ask.lanes);
        assert!(wanted.map(|lane| lane.want as usize).sum::<usize>() <= permits);
        for one in planned {
            let name = one.ask.throttle.as_str();
            *self.asks.entry(name.to_owned()).or_default() += 1;
            let lanes = one.ask.lanes.iter().map(|lane| {
                *self.asks.entry(lane.key.clone()).or_default() += 1;
                let refusal = self
                    .refusals
                    .get(name)
                    .or_else(|| self.refusals.get(&lane.key));
                refusal.cloned().unwrap_or_else(|| grant(lane.want, None))
            });
            let answer = AcquireResponse {
                lanes: lanes.collect(),
                ..AcquireResponse::default()
            };
            self.scheduler.answered(&one, &answer, self.now);
            for ((id, lane), grant) in one.lanes.iter().zip(&one.ask.lanes).zip(&answer.lanes) {
                self.take(*id, grant.granted);
                *self.jobs.entry(name.to_owned()).or_default() += grant.granted;
                *self.jobs.entry(lane.key.clone()).or_default() += grant.granted;
            }
        }
        self.now += TURN;
    }

    fn take(&mut self, id: i64, jobs: u32) {
        if jobs == 0 {
            return;
        }
        let claim = self.scheduler.claim(id, jobs, self.now, HOUR);
        let place = |job_id| LaneCursor {
            priority: 1,
            job_id,
        };
        let taken: Vec<LaneCursor> = (1..=i64::from(jobs)).map(place).collect();
        self.scheduler.claimed(&claim, &taken, false, self.now);
        taken.iter().for_each(|_| self.scheduler.ended(id));
    }

    /// Returns the time after which a throttle or a key gets its first job.
    fn until_served(&mut self, name: &str) -> Duration {
        self.refusals.remove(name);
        let begun = self.now;
        self.jobs.clear();
        while self.jobs.get(name).copied().unwrap_or(0) == 0 {
            assert!(self.now < begun + HOUR, "{name} is never served");
            self.turn(PERMITS);
        }
        self.now - begun
    }

    fn jobs(&self, name: &str) -> usize {
        self.jobs.get(name).copied().unwrap_or(0) as usize
    }

    /// Returns the number of requests to throttles, or of lines for keys, that begin with `prefix`.
    fn asks(&self, prefix: &str) -> u32 {
        let asked = self
            .asks
            .iter()
            .filter(|(name, _)| name.starts_with(prefix));
        asked.map(|(_, asks)| asks).sum()
    }

    /// Returns the number of jobs for which there were permits in a time.
    fn permits(time: Duration) -> usize {
        PERMITS * (time.as_millis() / TURN.as_millis()) as usize
    }
}

fn unknown() -> Limit {
    Limit::Unknown {
        name: Name::new("x").unwrap(),
    }
}

fn paused() -> Limit {
    Limit::Paused {
        until_ms: 0,
        why: "429".into(),
        name: None,
    }
}

fn slots_of_key() -> Limit {
    Limit::Concurrency {
        name: Name::new("t").unwrap(),
        key: true,
    }
}

#[test]
fn thousands_of_throttles_that_do_not_exist_take_a_small_part_of_permits_and_requests() {
    let time = Duration::from_secs(20);
    let mut world = Simulation::new();
    world.add_refusing("unknown", 5000, &unknown());
    world.add(1, "healthy");
    world.run(Duration::from_secs(2));

    world.run(time);

    let (jobs, asks) = (world.jobs("healthy"), world.asks("unknown"));
    assert!(jobs >= Simulation::permits(time) * 9 / 10, "{jobs} jobs");
    let per_s = f64::from(asks) / time.as_secs_f64();
    let most = f64::from(UNKNOWN_CHECKS_PER_S) * 1.02;
    assert!(per_s <= most, "{per_s} requests a second");
    assert!(per_s >= 0.9 * most, "{per_s} requests a second");
    let asked = world.asks.keys().filter(|name| name.starts_with("unknown"));
    assert_eq!(asked.count(), 5000, "each has its turn");
    assert_eq!(
        world.scheduler.due(),
        1,
        "the others slow no look and no claim down"
    );
}

#[test]
fn throttles_that_exist_and_grant_nothing_hold_nobody_up() {
    let (time, name) = (Duration::from_secs(3), Name::new("x").unwrap());
    let stopped = Limit::Stopped {
        name: name.clone(),
        why: String::new(),
    };
    let concurrency = Limit::Concurrency {
        name: name.clone(),
        key: false,
    };
    let paused = Limit::Paused {
        until_ms: 0,
        why: String::new(),
        name: Some(name),
    };
    for limit in [
        stopped,
        concurrency,
        paused,
        Limit::Throttle,
        Limit::StoreLost,
    ] {
        let mut world = Simulation::new();
        world.add_refusing("refusing", 5000, &limit);
        world.add(1, "healthy");
        world.run(Duration::from_secs(2));

        world.run(time);

        let jobs = world.jobs("healthy");
        assert!(
            jobs >= Simulation::permits(time) * 3 / 4,
            "{jobs} jobs beside {limit:?}"
        );
    }
}

#[test]
fn names_that_nobody_asked_for_before_take_half_of_the_permits_at_most() {
    let mut world = Simulation::new();
    world.add(1, "healthy");
    world.run(Duration::from_secs(1));
    world.add_refusing("unknown", 10_000, &unknown());

    let time = Duration::from_millis(500);
    world.run(time);

    let (jobs, asks) = (world.jobs("healthy"), world.asks("unknown"));
    assert!(jobs >= Simulation::permits(time) * 2 / 5, "{jobs} jobs");
    assert!(
        asks as usize >= Simulation::permits(time) * 2 / 5,
        "{asks} requests: others that come are served as well"
    );
}

#[test]
fn where_permits_come_one_by_one_their_parts_are_kept() {
    let mut world = Simulation::new();
    world.add_refusing("unknown", 1000, &unknown());
    world.add(1, "healthy");
    world.run(Duration::from_secs(2));
    world.jobs.clear();

    (0..4000).for_each(|_| world.turn(1));

    let jobs = world.jobs("healthy");
    assert!(jobs >= 3000, "{jobs} jobs of 4000 permits");
}

#[test]
fn a_throttle_that_is_created_serves_its_jobs_within_half_a_second_and_among_thousands_in_turn() {
    for (names, longest) in [(1, 400), (150, 400), (5000, 10_000)] {
        let mut world = Simulation::new();
        world.add_refusing("unknown", names, &unknown());
        world.add(1, "healthy");
        world.run(Duration::from_secs(3));

        for name in ["unknown0", &format!("unknown{}", names / 2)] {
            let waited = world.until_served(name);
            let longest = Duration::from_millis(longest) + 4 * TURN;
            assert!(waited <= longest, "{waited:?} among {names}");
        }
    }
}

#[test]
fn throttles_that_come_back_together_are_found_fast() {
    let mut world = Simulation::new();
    world.add_refusing("unknown", 5000, &unknown());
    world.run(Duration::from_secs(2));
    world.refusals.clear();

    // Those that were found have work for all permits, so others have a part.
    world.run(Duration::from_secs(2));

    let served = world.jobs.iter().filter(|(_, jobs)| **jobs > 0);
    let served = served.filter(|(name, _)| name.starts_with("unknown"));
    assert_eq!(served.count(), 5000);
}

#[test]
fn thousands_of_paused_keys_leave_the_throttle_to_the_others() {
    let (keys, time) = (15_000, Duration::from_secs(20));
    let mut world = Simulation::new();
    for id in 1_000_000..1_000_000 + keys {
        world.add(id, "t");
        world.refuse(&id.to_string(), &paused(), HOUR);
    }
    world.add(7, "t");
    world.run(Duration::from_secs(10));

    world.run(time);

    let jobs = world.jobs("7");
    assert!(jobs >= Simulation::permits(time) * 3 / 4, "{jobs} jobs");
    let per_s = f64::from(world.asks("1")) / time.as_secs_f64();
    let most = f64::from(LANE_CHECKS_PER_S) * 1.02;
    assert!(per_s <= most && per_s >= 0.9 * most, "{per_s} a second");

    let waited = world.until_served("1000500");
    assert!(waited <= Duration::from_secs(8), "{waited:?}");
}

#[test]
fn a_key_that_is_resumed_is_seen_within_two_seconds() {
    let mut world = Simulation::new();
    for id in 1000..4000 {
        world.add(id, "t");
        world.refuse(&id.to_string(), &paused(), HOUR);
    }
    world.add(7, "t");
    world.run(Duration::from_secs(10));

    for key in ["1000", "2500", "3999"] {
        let waited = world.until_served(key);
        assert!(waited <= MAX_PAUSE_WAIT + 4 * TURN, "{waited:?}");
    }
}

#[test]
fn the_end_of_a_pause_is_met_in_time_however_many_are_paused() {
    let mut world = Simulation::new();
    for id in 10_000..25_000 {
        world.add(id, "t");
        world.refuse(&id.to_string(), &paused(), HOUR);
    }
    world.run(Duration::from_secs(10));
    world.add(7, "t");
    let end = world.now + Duration::from_secs(11);
    while world.now < end {
        let left = end - world.now;
        world.refuse("7", &paused(), left);
        world.turn(PERMITS);
    }

    let waited = world.until_served("7");

    assert!(waited <= 2 * TURN, "{waited:?}");
}

#[test]
fn a_key_whose_job_ends_here_is_asked_for_at_once() {
    let mut world = Simulation::new();
    world.add(1, "t");
    world.turn(1);
    world.refuse("1", &slots_of_key(), Duration::from_millis(50));
    world.scheduler.hold(1, 1);
    world.turn(1);
    world.turn(1);
    assert_eq!(world.scheduler.due(), 0);

    world.scheduler.ended(1);

    assert_eq!(world.scheduler.due(), 1);
}

#[test]
fn a_throttle_that_grants_nothing_does_not_hold_the_tags_of_newcomers_back() {
    let mut world = Simulation::new();
    world.add(1, "healthy");
    world.add_refusing("unknown", 3000, &unknown());
    world.run(Duration::from_secs(5));
    world.add(2, "newcomer");

    world.run(Duration::from_secs(1));

    let (old, new) = (world.jobs("healthy"), world.jobs("newcomer"));
    assert!(old.abs_diff(new) < PERMITS, "{old} and {new}");
}

#[test]
fn a_throttle_that_is_checked_is_asked_for_several_lanes_where_nobody_wants_the_permits() {
    for (permits, lanes) in [(64, 8), (3, 3)] {
        let mut world = Simulation::new();
        for id in 10..20 {
            world.add(id, "t");
        }
        world.refuse("t", &unknown(), TURN);
        world.turn(permits);
        world.asks.clear();

        world.now += MAX_KNOB_WAIT;
        world.turn(permits);

        assert_eq!((world.asks("t"), world.asks("1")), (1, lanes));
    }
}

#[test]
fn nobody_wakes_up_in_vain() {
    for limit in [unknown(), Limit::Throttle, paused()] {
        let mut world = Simulation::new();
        world.add_refusing("refusing", 1500, &limit);
        let mut in_vain = 0;
        for _ in 0..500 {
            let due = world.scheduler.next_due(world.now).unwrap();
            world.now = world.now.max(due);
            world.asks.clear();
            world.turn(PERMITS);
            world.now -= TURN;
            in_vain += usize::from(world.asks.is_empty());
        }
        assert!(in_vain <= 10, "{in_vain} turns beside {limit:?}");
    }
}

#[test]
fn throttles_without_lanes_are_forgotten_and_so_are_lanes_whose_jobs_are_gone() {
    let mut world = Simulation::new();
    world.add(1, "kept");
    world.add_refusing("unknown", 100, &unknown());
    world.run(Duration::from_secs(1));
    assert_eq!(world.scheduler.by_name.len(), 101);
    let still_there = [ReadyPriorities {
        lane_id: 1,
        priorities: 0b10,
        head: 9,
    }];

    for _ in 0..=MISSED_AFTER {
        world.scheduler.seen(&still_there, world.now);
        world.scheduler.swept();
    }

    let names: Vec<&str> = world.scheduler.by_name.keys().map(Name::as_str).collect();
    assert_eq!(names, ["kept"]);
    assert_eq!((world.scheduler.lanes.len(), world.scheduler.due()), (1, 1));
    world.run(Duration::from_secs(1));
    assert_eq!(world.asks("unknown"), 0);

    // Their places are used again.
    world.add_refusing("other", 100, &unknown());
    assert_eq!(world.scheduler.rings.len(), 101);
    assert!(world.until_served("other42") <= MAX_KNOB_WAIT);
}

#[test]
fn an_answer_that_comes_after_its_throttle_was_forgotten_changes_no_other() {
    let (mut scheduler, now) = (scheduler(), Instant::now());
    add(&mut scheduler, 1, "gone", 1.0, now);
    let requested = scheduler.plan(now, 1).remove(0);
    (0..=MISSED_AFTER).for_each(|_| scheduler.swept());
    let answer = AcquireResponse {
        lanes: vec![grant(0, Some(unknown()))],
        ..AcquireResponse::default()
    };

    scheduler.answered(&requested, &answer, now);
    assert_eq!(scheduler.next_due(now), None);

    add(&mut scheduler, 2, "next", 1.0, now);
    scheduler.answered(&requested, &answer, now);
    assert_eq!(scheduler.plan(now, 1).remove(0).lanes, [2]);
}

#[test]
fn a_lane_of_costly_jobs_gets_its_share_beside_cheap_ones_that_take_each_token() {
    const RPS: f64 = 20.0;
    const COST: f64 = 8.0;
    let mut simulation = Simulation::new();
    for id in 1..=7 {
        simulation.add(id, "mail");
    }
    (0..50).for_each(|_| simulation.scheduler.learn_cost(7, COST));
    let (mut tokens, mut jobs) = (0.0_f64, [0_u32; 8]);
    for _ in 0..20_000 / TURN.as_millis() {
        tokens = (tokens + RPS * TURN.as_secs_f64()).min(RPS);
        for one in simulation.scheduler.plan(simulation.now, PERMITS) {
            let mut lanes = Vec::new();
            for lane in &one.ask.lanes {
                let granted = lane.want.min((tokens / lane.cost + 1e-9).max(0.0) as u32);
                tokens -= f64::from(granted) * lane.cost;
                let wait = ((lane.cost - tokens) / RPS).max(0.0);
                lanes.push(Grant {
                    wait: Duration::from_secs_f64(wait),
                    ..grant(granted, (granted < lane.want).then_some(Limit::Throttle))
                });
            }
            let answer = AcquireResponse {
                lanes,
                at_us: 1,
                ..AcquireResponse::default()
            };
            simulation.scheduler.answered(&one, &answer, simulation.now);
            for ((id, lane), grant) in one.lanes.iter().zip(&one.ask.lanes).zip(&answer.lanes) {
                simulation.take(*id, grant.granted);
                jobs[*id as usize] += grant.granted;
                // The rest of what a job costs is charged when it is claimed.
                let cost = if *id == 7 { COST } else { 1.0 };
                tokens -= f64::from(grant.granted) * (cost - lane.cost);
            }
        }
        simulation.now += TURN;
    }
    let spent = f64::from(jobs[1..7].iter().sum::<u32>()) + COST * f64::from(jobs[7]);
    assert!((380.0..=420.0).contains(&spent), "{jobs:?}");
    // A seventh of the 400 tokens each.
    assert!((5..=8).contains(&jobs[7]), "{jobs:?}");
    assert!(jobs[1..7].iter().all(|jobs| *jobs >= 45), "{jobs:?}");
}

#[test]
fn a_costly_lane_whose_tokens_are_taken_elsewhere_begins_with_one_if_the_rest_can_be_charged() {
    // A store that decides without windows, one with windows, and a lost one.
    for (has_windows, at_us) in [(false, 1), (true, 1), (false, 0)] {
        let mut simulation = Simulation::new();
        simulation.add(1, "mail");
        (0..50).for_each(|_| simulation.scheduler.learn_cost(1, 40.0));
        let begun = simulation.now;
        let mut first_cheap = None;
        while simulation.now < begun + Duration::from_secs(10) {
            for one in simulation.scheduler.plan(simulation.now, PERMITS) {
                if one.ask.lanes[0].cost <= 1.0 {
                    first_cheap.get_or_insert(simulation.now - begun);
                }
                // Others take each token, so the end of the wait moves with each check.
                let refusal = Grant {
                    wait: Duration::from_secs(2),
                    ..grant(0, Some(Limit::Throttle))
                };
                let answer = AcquireResponse {
                    lanes: vec![refusal],
                    has_windows,
                    at_us,
                    ..AcquireResponse::default()
                };
                simulation.scheduler.answered(&one, &answer, simulation.now);
            }
            simulation.now += TURN;
        }
        match has_windows || at_us == 0 {
            true => assert_eq!(first_cheap, None),
            false => {
                let third = Duration::from_secs(4)..Duration::from_secs(6);
                assert!(first_cheap.is_some_and(|after| third.contains(&after)));
            }
        }
    }
}
