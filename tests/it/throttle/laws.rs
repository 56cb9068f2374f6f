//! The laws of throttles, each proved in memory and in Redis, and what is true of Redis alone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Error, Grant, Holder, KeyOutcomes, KnobsFile,
    LaneRequest, Limit, MemoryStore, Name, Quota, RedisStore, Refund, Scope, Status, Store,
    UpstreamRefusal, seed,
};

use crate::support::redis_server::Server;

/// Where virtual time begins, unix microseconds.
pub const START: i64 = 1_795_000_000_000_000;

/// A store on virtual time, and the means to write into it as a person would.
pub struct World {
    pub store: Arc<dyn Store>,
    pub now: Arc<AtomicI64>,
    raw: Raw,
}

enum Raw {
    Memory(Arc<MemoryStore>),
    Redis {
        client: Box<redis::Client>,
        url: String,
        prefix: String,
        _server: Option<Server>,
    },
}

impl World {
    pub fn memory() -> Self {
        let now = Arc::new(AtomicI64::new(START));
        let clock = now.clone();
        let store = Arc::new(MemoryStore::new(Arc::new(move || {
            clock.load(Ordering::SeqCst)
        })));
        Self {
            store: store.clone(),
            now,
            raw: Raw::Memory(store),
        }
    }

    pub fn redis() -> Self {
        let server = Server::start();
        let mut world = Self::redis_at(&server.url(), "t:");
        if let Raw::Redis { _server, .. } = &mut world.raw {
            *_server = Some(server);
        }
        world
    }

    pub fn redis_at(url: &str, prefix: &str) -> Self {
        let now = Arc::new(AtomicI64::new(START));
        let store = client(url, prefix, &now);
        let client = Box::new(redis::Client::open(url).expect("a URL"));
        let raw = Raw::Redis {
            client,
            url: url.to_owned(),
            prefix: prefix.to_owned(),
            _server: None,
        };
        Self { store, now, raw }
    }

    /// Another client of the same store, as another process would be.
    pub fn another(&self) -> Arc<dyn Store> {
        match &self.raw {
            Raw::Memory(store) => store.clone(),
            Raw::Redis { url, prefix, .. } => client(url, prefix, &self.now),
        }
    }

    pub fn write(&self, throttle: &str, field: &str, text: &str) {
        match &self.raw {
            Raw::Memory(store) => store.write_raw(&name(throttle), field, text),
            Raw::Redis { .. } => {
                self.redis_command(&["HSET", &self.knobs_key(throttle), field, text])
            }
        }
    }

    pub fn remove(&self, throttle: &str, field: &str) {
        match &self.raw {
            Raw::Memory(store) => store.remove_raw(&name(throttle), field),
            Raw::Redis { .. } => self.redis_command(&["HDEL", &self.knobs_key(throttle), field]),
        }
    }

    pub fn knobs(&self, throttle: &str, fields: &[(&str, &str)]) {
        fields
            .iter()
            .for_each(|(field, text)| self.write(throttle, field, text));
    }

    pub fn pass(&self, time: Duration) {
        self.now
            .fetch_add(time.as_micros() as i64, Ordering::SeqCst);
    }

    async fn take(&self, throttle: &str, want: u32) -> AcquireResponse {
        self.store.acquire(&ask(throttle, &[("", want, 1.0)])).await
    }

    /// Jobs that may begin.
    async fn began(&self, throttle: &str, want: u32) -> u32 {
        self.store
            .acquire(&work(throttle, &[("", want, 1.0)]))
            .await
            .lanes[0]
            .granted
    }

    async fn granted(&self, throttle: &str, want: u32) -> u32 {
        self.take(throttle, want).await.lanes[0].granted
    }

    /// Gives back units of a grant of the key `k` of throttle `a`.
    async fn refund(&self, grant: &Grant, units: u32) {
        let refund = Refund {
            key: "k",
            grant,
            units,
            cost: 1.0,
        };
        self.store
            .refund_many(&name("a"), &[refund])
            .await
            .expect("a store");
    }

    async fn status(&self, throttle: &str) -> Status {
        self.store
            .status(&name(throttle))
            .await
            .expect("a store")
            .expect("a throttle")
    }

    /// Takes everything there is and lets `time` pass in small steps; answers what was granted.
    async fn drink(&self, throttle: &str, time: Duration) -> f64 {
        let (step, mut taken) = (time / 200, 0.0);
        for _ in 0..200 {
            self.pass(step);
            taken += f64::from(self.granted(throttle, 1_000_000).await);
        }
        taken
    }

    fn knobs_key(&self, throttle: &str) -> String {
        let Raw::Redis { prefix, .. } = &self.raw else {
            unreachable!("memory has no keys")
        };
        format!("{prefix}throttle:{throttle}:knobs")
    }

    fn redis_command(&self, words: &[&str]) {
        let Raw::Redis { client, .. } = &self.raw else {
            unreachable!("memory takes no commands")
        };
        let mut command = redis::cmd(words[0]);
        command
            .arg(&words[1..])
            .exec(&mut client.get_connection().expect("a connection"))
            .expect("a command");
    }
}

fn client(url: &str, prefix: &str, now: &Arc<AtomicI64>) -> Arc<dyn Store> {
    let clock = now.clone();
    let store = RedisStore::connect(url, prefix)
        .expect("a URL")
        .with_bound(Duration::from_secs(20));
    Arc::new(store.with_clock(Arc::new(move || clock.load(Ordering::SeqCst))))
}

pub fn name(text: &str) -> Name {
    Name::new(text).expect("a name")
}

pub fn ask(throttle: &str, lanes: &[(&str, u32, f64)]) -> AcquireRequest {
    let lane = |(key, want, cost): &(&str, u32, f64)| LaneRequest {
        key: (*key).to_owned(),
        want: *want,
        cost: *cost,
        held: 0,
    };
    AcquireRequest {
        throttle: name(throttle),
        lanes: lanes.iter().map(lane).collect(),
        holder: None,
    }
}

pub fn fields(fields: &[(&str, &str)]) -> BTreeMap<String, Option<String>> {
    fields
        .iter()
        .map(|(field, text)| ((*field).to_owned(), Some((*text).to_owned())))
        .collect()
}

fn stop_of(throttle: &str) -> Limit {
    Limit::Stopped {
        name: name(throttle),
        why: String::new(),
    }
}

fn change(given: &[(&str, &str)]) -> Change {
    Change {
        fields: fields(given),
        by: "test".to_owned(),
        why: "a test".to_owned(),
        create: true,
        ..Change::default()
    }
}

/// Proves each law once in memory and once in Redis.
macro_rules! laws {
    ($($law:ident),* $(,)?) => {
        mod in_memory { $(#[tokio::test] async fn $law() { super::$law(super::World::memory()).await; })* }
        mod in_redis { $(#[tokio::test] async fn $law() { super::$law(super::World::redis()).await; })* }
    };
}

pub(crate) use laws;

laws! {
    rates_are_exact,
    a_throttle_nobody_knows_grants_nothing_and_says_so,
    a_hash_without_rps_runs_at_safe_rps,
    a_new_throttle_starts_with_one_token_and_an_idle_key_full,
    zero_stops_and_minus_one_is_unlimited,
    a_cut_frees_nothing,
    a_stop_resumes_empty,
    a_pause_resumes_empty,
    a_typo_runs_at_safe_rps_and_is_visible,
    a_lapsed_lease_runs_at_safe_rps,
    a_parent_limits_its_children_and_is_charged_for_what_they_got,
    a_parent_takes_effect_at_once_and_a_missing_one_stops_its_children,
    a_circle_of_parents_still_answers,
    lanes_of_one_ask_share_in_order,
    keys_have_a_rate_of_their_own,
    an_answer_tells_whether_the_levels_alone_decide,
    jobs_without_a_key_have_no_key_rate,
    a_paused_key_waits_and_the_later_end_wins,
    the_told_wait_is_exact,
    a_dear_job_runs_from_a_full_bucket_and_leaves_a_debt,
    refunds_give_back_exactly_what_was_charged,
    settling_charges_the_difference,
    who_borrows_takes_what_the_parent_has_to_spare_and_no_more,
    who_does_not_borrow_keeps_to_its_own_rate,
    siblings_that_keep_to_their_rate_never_wait_for_a_borrower,
    four_levels_are_charged_in_one_call,
    a_refusal_pauses_the_key_and_one_job_goes_first,
    a_refusal_of_the_account_pauses_everything_below_it,
    a_strangers_word_slows_down_no_more_than_is_trusted,
    no_answer_pauses_for_longer_than_the_knob_allows,
    load_that_is_shed_pauses_the_key_and_teaches_no_rate,
    a_naive_throttle_lets_the_refused_job_wait_by_itself,
    a_passive_throttle_does_not_hold_keys_to_their_rate,
    whoever_takes_the_pause_off_takes_off_the_refusal_too,
    a_quota_that_is_told_slows_its_key_and_is_forgotten_with_its_window,
    a_quota_that_is_told_stops_its_key_for_a_minute_at_most_and_a_stranger_stops_no_lane_of_many,
    only_keys_that_were_refused_are_remembered,
    peeking_charges_nothing,
    peeking_at_many_lanes_promises_no_token_twice,
    counters_tell_tokens_used_and_time_limited,
    a_clock_that_steps_back_does_not_stop_the_flow,
    setting_writes_the_three_together_and_counts,
    setting_is_refused_when_somebody_was_faster,
    setting_refuses_min_above_max_and_unknown_throttles,
    leaving_auto_ends_the_lease,
    a_new_mode_takes_the_end_of_the_last_one_away,
    seeding_writes_what_is_absent_and_never_a_live_edit,
    names_are_known_in_order,
}

async fn rates_are_exact(world: World) {
    for rps in [
        "0.0001", "0.02", "0.3", "1.5", "7.3", "120", "9950", "10000",
    ] {
        world.knobs(rps, &[("rps", rps)]);
        let ideal = 1000.0;
        world.take(rps, 1).await;
        let end =
            world.now.load(Ordering::SeqCst) + (ideal * 1e6 / rps.parse::<f64>().unwrap()) as i64;
        let mut taken = 0.0;
        // A consumer that comes when it was told to, three microseconds late.
        while world.now.load(Ordering::SeqCst) < end {
            let lane = world.take(rps, 1_000_000).await.lanes[0].clone();
            taken += f64::from(lane.granted);
            world.pass(lane.wait + Duration::from_micros(3));
        }

        assert!(
            (taken - ideal).abs() <= ideal * 0.002,
            "{rps} tokens/s gave {taken} where {ideal} were due"
        );
    }
}

async fn a_throttle_nobody_knows_grants_nothing_and_says_so(world: World) {
    let answer = world.take("ghost", 5).await;

    assert_eq!(answer.lanes[0].granted, 0);
    assert_eq!(
        answer.lanes[0].limit,
        Some(Limit::Unknown {
            name: name("ghost")
        })
    );
    assert!(answer.lanes[0].wait <= Duration::from_secs(1));
    assert_eq!(world.store.status(&name("ghost")).await.unwrap(), None);
}

async fn a_hash_without_rps_runs_at_safe_rps(world: World) {
    world.knobs("a", &[("burst", "1"), ("safe_rps", "3")]);

    assert_eq!(world.take("a", 0).await.effective_rps, 3.0);
    assert_eq!(world.status("a").await.problems[0].field, "rps");
}

async fn a_new_throttle_starts_with_one_token_and_an_idle_key_full(world: World) {
    world.knobs("a", &[("rps", "50"), ("key_rps", "5")]);
    assert_eq!(world.granted("a", 100).await, 1);
    world.pass(Duration::from_secs(10));

    let answer = world.store.acquire(&ask("a", &[("k", 100, 1.0)])).await;

    assert_eq!(answer.lanes[0].granted, 5);
    assert_eq!(answer.lanes[0].limit, Some(Limit::Key));
}

async fn zero_stops_and_minus_one_is_unlimited(world: World) {
    world.knobs("a", &[("rps", "0")]);
    let stopped = world.take("a", 5).await;
    world.write("a", "rps", "-1");
    let unlimited = world.take("a", 5_000_000).await;

    assert_eq!((stopped.effective_rps, stopped.lanes[0].granted), (0.0, 0));
    assert_eq!(stopped.lanes[0].limit, Some(stop_of("a")));
    assert!(
        stopped.lanes[0].wait <= Duration::from_secs(1),
        "a person's edit is seen within a second"
    );
    assert_eq!(
        (unlimited.effective_rps, unlimited.lanes[0].granted),
        (-1.0, 5_000_000)
    );
}

async fn a_cut_frees_nothing(world: World) {
    world.knobs("a", &[("rps", "100")]);
    world.drink("a", Duration::from_secs(2)).await;
    for rps in ["10", "1", "0.01"] {
        world.write("a", "rps", rps);
        assert_eq!(world.granted("a", 1000).await, 0, "{rps}");
    }
}

async fn a_stop_resumes_empty(world: World) {
    world.knobs("a", &[("rps", "20"), ("burst", "5")]);
    world.take("a", 1).await;
    world.write("a", "rps", "0");
    world.pass(Duration::from_secs(60));
    world.take("a", 1).await;
    world.write("a", "rps", "20");

    assert_eq!(world.granted("a", 1000).await, 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.granted("a", 1000).await, 20);

    // The same through the front door, with nobody asking meanwhile.
    world
        .store
        .set(&name("a"), &change(&[("rps", "0")]))
        .await
        .unwrap();
    world.pass(Duration::from_secs(60));
    world
        .store
        .set(&name("a"), &change(&[("rps", "20")]))
        .await
        .unwrap();
    assert_eq!(world.granted("a", 1000).await, 0);
}

async fn a_pause_resumes_empty(world: World) {
    world.knobs("a", &[("rps", "20")]);
    world
        .store
        .set(&name("a"), &change(&[("paused", "1")]))
        .await
        .unwrap();
    assert_eq!(world.take("a", 1).await.lanes[0].limit, Some(stop_of("a")));
    world.pass(Duration::from_secs(60));
    world
        .store
        .set(&name("a"), &change(&[("paused", "0")]))
        .await
        .unwrap();

    assert_eq!(world.granted("a", 1000).await, 0);
    assert_eq!(world.status("a").await.knobs.rps, 20.0);
}

async fn a_typo_runs_at_safe_rps_and_is_visible(world: World) {
    for (field, text) in [
        ("rps", "ten"),
        ("burst", "NaN"),
        ("window", "-1"),
        ("key_rps", "1e99"),
        ("key_burst", ""),
    ] {
        world.knobs(field, &[("rps", "100"), ("safe_rps", "4")]);
        world.write(field, field, text);

        let answer = world.take(field, 1).await;
        let status = world.status(field).await;

        assert_eq!(answer.effective_rps, 4.0, "{field}");
        assert_eq!(
            (status.effective_rps, status.problems[0].field.as_str()),
            (4.0, field)
        );
        let taken = world.drink(field, Duration::from_secs(100)).await;
        assert!((398.0..=402.0).contains(&taken), "{field}: {taken}");
    }
}

async fn a_lapsed_lease_runs_at_safe_rps(world: World) {
    let until = (START / 1000 + 5000).to_string();
    world.knobs(
        "a",
        &[
            ("rps", "100"),
            ("safe_rps", "4"),
            ("valid_until", &until),
            ("mode", "auto"),
        ],
    );
    assert_eq!(world.take("a", 1).await.effective_rps, 100.0);
    world.pass(Duration::from_millis(5001));

    assert_eq!(world.take("a", 1).await.effective_rps, 4.0);
    assert!(world.status("a").await.lease_lapsed);
    world.write("a", "mode", "manual");
    assert_eq!(world.take("a", 1).await.effective_rps, 100.0);
}

async fn a_parent_limits_its_children_and_is_charged_for_what_they_got(world: World) {
    world.knobs("root", &[("rps", "3")]);
    world.knobs("child", &[("rps", "1000"), ("parent", "root")]);
    world.take("root", 1).await;
    world.take("child", 1).await;
    world.pass(Duration::from_secs(10));

    let answer = world.take("child", 1000).await;

    assert_eq!(answer.lanes[0].granted, 3);
    assert_eq!(
        answer.lanes[0].limit,
        Some(Limit::Tier { name: name("root") })
    );
    assert_eq!(answer.lanes[0].charge_us.len(), 3);
    assert_eq!(world.granted("root", 1).await, 0);
    assert_eq!(
        world.status("child").await.used,
        3.0,
        "the child is charged for three, not for a thousand"
    );
    assert_eq!(
        world.status("child").await.limited_us,
        0.0,
        "it is not the child that limits"
    );
    world.pass(Duration::from_secs(1));
    assert!(world.status("root").await.limited_us > 0.0);
}

async fn a_parent_takes_effect_at_once_and_a_missing_one_stops_its_children(world: World) {
    world.knobs("child", &[("rps", "1000")]);
    world.take("child", 1).await;
    world.write("child", "parent", "root");
    let unknown = world.take("child", 1).await;
    world.write("root", "rps", "0");
    let stopped = world.take("child", 1).await;
    world.remove("child", "parent");
    world.pass(Duration::from_secs(1));

    assert_eq!(
        unknown.lanes[0].limit,
        Some(Limit::Unknown { name: name("root") })
    );
    assert_eq!(stopped.lanes[0].limit, Some(stop_of("root")));
    assert_eq!(stopped.effective_rps, 1000.0);
    assert_eq!(world.granted("child", 1).await, 1);
}

async fn a_circle_of_parents_still_answers(world: World) {
    world.knobs("a", &[("rps", "10"), ("parent", "b")]);
    world.knobs("b", &[("rps", "10"), ("parent", "a")]);
    world.knobs("self", &[("rps", "10"), ("parent", "self")]);

    assert_eq!(world.granted("a", 1).await, 1);
    assert_eq!(world.granted("self", 1).await, 1);
}

async fn lanes_of_one_ask_share_in_order(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    let answer = world
        .store
        .acquire(&ask(
            "a",
            &[("x", 4, 1.0), ("y", 2, 2.0), ("z", 9, 1.0), ("w", 0, 1.0)],
        ))
        .await;

    let granted: Vec<u32> = answer.lanes.iter().map(|lane| lane.granted).collect();
    assert_eq!(granted, [4, 2, 2, 0]);
    assert_eq!(answer.lanes[1].limit, None);
    assert_eq!(answer.lanes[2].limit, Some(Limit::Throttle));
    assert_eq!(
        answer.lanes[3].limit, None,
        "who wants nothing waits for nothing"
    );
}

async fn keys_have_a_rate_of_their_own(world: World) {
    world.knobs(
        "a",
        &[("rps", "1000"), ("key_rps", "2"), ("key_burst", "1")],
    );
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    let answer = world
        .store
        .acquire(&ask("a", &[("x", 9, 1.0), ("y", 9, 1.0), ("x", 9, 1.0)]))
        .await;

    let granted: Vec<u32> = answer.lanes.iter().map(|lane| lane.granted).collect();
    assert_eq!(granted, [2, 2, 0], "one key named twice is still one key");
    assert_eq!(answer.lanes[0].wait, Duration::from_millis(500));
}

async fn an_answer_tells_whether_the_levels_alone_decide(world: World) {
    world.knobs("a", &[("rps", "50"), ("parent", "b")]);
    world.knobs("b", &[("rps", "100")]);
    let decide = async || world.take("a", 1).await.levels_decide;

    assert!(decide().await);
    assert!(
        !world.take("ghost", 1).await.levels_decide,
        "nobody decides"
    );
    world
        .store
        .pause_key(&name("a"), "k", Duration::from_secs(5), "a test")
        .await
        .unwrap();
    assert!(!decide().await, "a key of it is paused");
    world.store.resume_key(&name("a"), "k").await.unwrap();
    assert!(decide().await);
    for key_rps in ["5", "0"] {
        world.write("a", "key_rps", key_rps);
        assert!(!decide().await, "keys have a rate of {key_rps}");
    }
}

async fn jobs_without_a_key_have_no_key_rate(world: World) {
    world.knobs("a", &[("rps", "1000"), ("key_rps", "2")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    assert_eq!(world.granted("a", 500).await, 500);
}

async fn a_paused_key_waits_and_the_later_end_wins(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    let pause = |delay, why| {
        let store = world.store.clone();
        async move {
            store
                .pause_key(&name("a"), "k", Duration::from_secs(delay), why)
                .await
                .unwrap()
        }
    };
    let end = pause(60, "429: slow | down").await;
    assert_eq!(pause(5, "shorter").await, end);

    let answer = world
        .store
        .acquire(&ask("a", &[("k", 1, 1.0), ("other", 1, 1.0)]))
        .await;

    assert_eq!(end, START / 1000 + 60_000);
    let paused = Limit::Paused {
        until_ms: end,
        why: "429: slow | down".to_owned(),
        name: None,
    };
    assert_eq!(
        (answer.lanes[0].granted, &answer.lanes[0].limit),
        (0, &Some(paused))
    );
    assert_eq!(answer.lanes[0].wait, Duration::from_secs(60));
    assert_eq!(answer.lanes[1].granted, 1);
    assert!(world.store.resume_key(&name("a"), "k").await.unwrap());
    assert!(!world.store.resume_key(&name("a"), "k").await.unwrap());
    assert_eq!(
        world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
    pause(5, "again").await;
    world.pass(Duration::from_secs(5));
    assert_eq!(
        world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
}

async fn the_told_wait_is_exact(world: World) {
    for (rps, cost) in [
        ("0.01", 1.0),
        ("3", 1.0),
        ("7.7", 2.5),
        ("900", 1.0),
        ("3", 50.0),
    ] {
        world.knobs(rps, &[("rps", rps)]);
        world.drink(rps, Duration::from_secs(1)).await;
        let one = ask(rps, &[("", 1, cost)]);
        let refused = world.store.acquire(&one).await.lanes[0].clone();
        assert_eq!(refused.granted, 0);

        world.pass(refused.wait - Duration::from_micros(3));
        assert_eq!(
            world.store.acquire(&one).await.lanes[0].granted,
            0,
            "{rps} {cost}"
        );
        world.pass(Duration::from_micros(3));
        assert_eq!(
            world.store.acquire(&one).await.lanes[0].granted,
            1,
            "{rps} {cost}"
        );
    }
}

async fn a_dear_job_runs_from_a_full_bucket_and_leaves_a_debt(world: World) {
    world.knobs("a", &[("rps", "5")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(10));

    let dear = world.store.acquire(&ask("a", &[("", 3, 8.0)])).await;
    let cheap = world.take("a", 1).await;

    assert_eq!(dear.lanes[0].granted, 1);
    assert_eq!(
        dear.lanes[0].wait,
        Duration::from_millis(1600),
        "until it is full again"
    );
    assert_eq!(
        cheap.lanes[0].wait,
        Duration::from_millis(800),
        "three tokens of debt and one more"
    );
}

async fn refunds_give_back_exactly_what_was_charged(world: World) {
    world.knobs("root", &[("rps", "10")]);
    world.knobs("a", &[("rps", "10"), ("key_rps", "10"), ("parent", "root")]);
    world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    world.pass(Duration::from_secs(5));
    let request = ask("a", &[("k", 10, 1.0)]);
    let grant = world.store.acquire(&request).await.lanes[0].clone();
    assert_eq!(grant.granted, 10);

    world.write("a", "rps", "1000");
    world.refund(&grant, 4).await;

    assert_eq!(world.status("a").await.used, 7.0);
    assert_eq!(world.status("root").await.used, 7.0);
    let again = world.store.acquire(&request).await;
    assert_eq!(again.lanes[0].granted, 4, "time is given back, not more");
    for _ in 0..50 {
        world.refund(&grant, 10).await;
    }
    assert_eq!(
        world
            .store
            .acquire(&ask("a", &[("k", 1000, 1.0)]))
            .await
            .lanes[0]
            .granted,
        10,
        "never fuller than full"
    );
}

async fn settling_charges_the_difference(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));

    world
        .store
        .settle_many(&name("a"), &[("", 40.0)])
        .await
        .unwrap();
    let refused = world.take("a", 1).await;
    world
        .store
        .settle_many(&name("a"), &[("", -35.0)])
        .await
        .unwrap();

    assert_eq!(refused.lanes[0].wait, Duration::from_millis(3100));
    assert_eq!(world.granted("a", 100).await, 5);
    assert_eq!(world.status("a").await.used, 11.0);
    let lost = world.store.settle_many(&name("ghost"), &[("", 1.0)]).await;
    assert!(matches!(lost, Err(Error::Unknown(ghost)) if ghost == name("ghost")));
}

async fn peeking_at_many_lanes_promises_no_token_twice(world: World) {
    world.knobs(
        "a",
        &[("rps", "10"), ("key_rps", "100"), ("key_concurrency", "5")],
    );
    let keys: Vec<String> = (0..200).map(|n| format!("k{n}")).collect();
    let lanes: Vec<(&str, u32, f64)> = keys.iter().map(|key| (key.as_str(), 1, 1.0)).collect();
    let holder = Holder {
        id: "w".to_owned(),
        ttl: Duration::from_secs(30),
        held: 0,
    };
    let request = AcquireRequest {
        holder: Some(holder),
        ..ask("a", &lanes)
    };
    let total =
        |answer: &AcquireResponse| answer.lanes.iter().map(|lane| lane.granted).sum::<u32>();
    world.store.acquire(&request).await;
    world.pass(Duration::from_secs(1));

    assert_eq!(total(&world.store.peek(&request).await), 10);
    assert_eq!(total(&world.store.acquire(&request).await), 10);
}

/// What `throttle` takes in a minute of asking every 10 ms for whatever there is.
async fn minute_of(world: &World, throttle: &str) -> f64 {
    world.drink(throttle, Duration::from_secs(2)).await;
    world.drink(throttle, Duration::from_secs(60)).await / 60.0
}

async fn who_borrows_takes_what_the_parent_has_to_spare_and_no_more(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "child",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "true")],
    );

    let alone = minute_of(&world, "child").await;

    assert!((99.0..=101.0).contains(&alone), "{alone}");
    world.write("parent", "rps", "-1");
    assert_eq!(
        world.granted("child", 5000).await,
        5000,
        "a parent without a limit has any number to spare"
    );
    world.write("parent", "rps", "0");
    assert_eq!(
        world.granted("child", 5).await,
        0,
        "and one that is stopped has none"
    );
}

async fn who_does_not_borrow_keeps_to_its_own_rate(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "child",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "false")],
    );
    world.knobs("plain", &[("rps", "20"), ("parent", "parent")]);

    let (child, plain) = (
        minute_of(&world, "child").await,
        minute_of(&world, "plain").await,
    );

    assert!(
        (9.9..=10.1).contains(&child) && (19.9..=20.1).contains(&plain),
        "{child} and {plain}"
    );
}

async fn siblings_that_keep_to_their_rate_never_wait_for_a_borrower(world: World) {
    world.knobs("parent", &[("rps", "100")]);
    world.knobs(
        "greedy",
        &[("rps", "10"), ("parent", "parent"), ("borrow", "1")],
    );
    world.knobs("steady", &[("rps", "60"), ("parent", "parent")]);
    let (mut greedy, mut steady) = (0, 0);

    for _ in 0..6_000 {
        world.pass(Duration::from_millis(10));
        greedy += world.granted("greedy", 1000).await;
        steady += world.granted("steady", 1000).await;
    }

    assert!(
        (3_560..=3_660).contains(&steady),
        "60 a second for a minute: {steady}"
    );
    assert!(
        (2_350..=2_500).contains(&greedy),
        "and what is left of 100: {greedy}"
    );
}

async fn four_levels_are_charged_in_one_call(world: World) {
    for (name, parent) in [("a", ""), ("b", "a"), ("c", "b"), ("d", "c")] {
        world.knobs(name, &[("rps", "40"), ("parent", parent)]);
    }
    world.knobs("d", &[("rps", "100"), ("key_rps", "50")]);
    world.store.acquire(&ask("d", &[("k", 1, 1.0)])).await;
    world.pass(Duration::from_secs(1));

    let answer = world.store.acquire(&ask("d", &[("k", 100, 1.0)])).await;

    assert_eq!(answer.lanes[0].granted, 40);
    assert_eq!(answer.lanes[0].limit, Some(Limit::Tier { name: name("a") }));
    for level in ["a", "b", "c", "d"] {
        assert_eq!(world.status(level).await.used, 41.0, "{level}");
    }
}

/// An ask of somebody who runs jobs.
fn work(throttle: &str, lanes: &[(&str, u32, f64)]) -> AcquireRequest {
    let holder = Some(Holder {
        id: "w".to_owned(),
        ttl: Duration::from_secs(30),
        held: 0,
    });
    AcquireRequest {
        holder,
        ..ask(throttle, lanes)
    }
}

fn refusal(key: &str, scope: Scope, delay_s: u64) -> UpstreamRefusal<'_> {
    let delay = Some(Duration::from_secs(delay_s));
    UpstreamRefusal {
        key,
        scope,
        is_overload: false,
        is_hearsay: false,
        delay,
        jitter: 0.0,
        why: "answered 429",
    }
}

fn success(key: &str, jobs: u32) -> KeyOutcomes<'_> {
    KeyOutcomes {
        key,
        succeeded: jobs,
        tokens: f64::from(jobs),
        ..KeyOutcomes::default()
    }
}

async fn a_refusal_pauses_the_key_and_one_job_goes_first(world: World) {
    world.knobs(
        "a",
        &[("rps", "-1"), ("key_rps", "1000"), ("key_burst", "0")],
    );
    let granted = async |key: &str| {
        world
            .store
            .acquire(&work("a", &[(key, 10, 1.0)]))
            .await
            .lanes
            .remove(0)
    };
    granted("k").await;

    let paused = world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 5))
        .await
        .unwrap();

    assert_eq!((paused.until_ms, paused.alone), (START / 1000 + 5000, None));
    assert!(matches!(
        granted("k").await.limit,
        Some(Limit::Paused { name: None, .. })
    ));
    assert!(granted("other").await.granted > 0, "another key flows");
    world.pass(Duration::from_secs(5));
    let probe = granted("k").await;
    assert_eq!(
        (probe.granted, probe.watched, probe.limit),
        (
            1,
            true,
            Some(Limit::Probing {
                name: name("a"),
                key: true
            })
        )
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(
        granted("k").await.granted,
        0,
        "one at a time, until it is known to be welcome"
    );
    world
        .store
        .ended(&name("a"), &[success("k", 1)])
        .await
        .unwrap();
    assert_eq!(granted("k").await.granted, 2);
    world
        .store
        .ended(&name("a"), &[success("k", 2), success("k", 20)])
        .await
        .unwrap();
    let mut open = 0;
    for _ in 0..1000 {
        world.pass(Duration::from_millis(1));
        let grant = granted("k").await;
        open += grant.granted;
        world
            .store
            .ended(&name("a"), &[success("k", grant.granted)])
            .await
            .unwrap();
    }
    assert!(
        (700..=790).contains(&open),
        "seven tenths of the key's own rate, and growing: {open}"
    );
}

async fn a_refusal_of_the_account_pauses_everything_below_it(world: World) {
    world.knobs("account", &[("rps", "100")]);
    world.knobs("one", &[("rps", "-1"), ("parent", "account")]);
    world.knobs("two", &[("rps", "-1"), ("parent", "account")]);
    world.take("one", 1).await;
    world.take("two", 1).await;

    world
        .store
        .refused(&name("one"), &refusal("k", Scope::Account, 3))
        .await
        .unwrap();

    let limit = world
        .store
        .acquire(&work("two", &[("", 1, 1.0)]))
        .await
        .lanes
        .remove(0)
        .limit;
    let until_ms = START / 1000 + 3000;
    assert_eq!(
        limit,
        Some(Limit::Paused {
            until_ms,
            why: "answered 429".into(),
            name: Some(name("account"))
        })
    );
    world.pass(Duration::from_secs(3));
    assert_eq!(
        world.began("two", 9).await,
        0,
        "a pause is no time in which tokens are saved up"
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(world.began("two", 9).await, 1);
    assert_eq!(
        world.began("one", 9).await,
        0,
        "one job of the account goes first, whoever it is"
    );
    world
        .store
        .ended(&name("two"), &[success("", 1)])
        .await
        .unwrap();
    assert_eq!(world.began("one", 9).await, 2);
    world
        .store
        .ended(&name("one"), &[success("", 8)])
        .await
        .unwrap();
    assert_eq!(world.began("one", 9).await, 9);
}

/// Who waits after a stranger's word, whatever it claims: the job alone, its key, its throttle, or what is above that as well.
async fn a_strangers_word_slows_down_no_more_than_is_trusted(world: World) {
    world.knobs("account", &[("rps", "-1")]);
    let cases = [
        ("", 0),
        ("nonsense", 0),
        ("key", 0),
        ("throttle", 1),
        ("account", 2),
    ];
    for (n, (trust, breadth)) in cases.into_iter().enumerate() {
        for (claimed, scope) in [Scope::Key, Scope::Throttle, Scope::Account]
            .into_iter()
            .enumerate()
        {
            for key in ["k", ""] {
                let (mine, beside) = (format!("m{n}{claimed}{key}"), format!("b{n}{claimed}{key}"));
                let parent = format!("p{n}{claimed}{key}");
                world.knobs(&parent, &[("rps", "-1")]);
                world.knobs(&mine, &[("rps", "-1"), ("parent", &parent)]);
                world.knobs(&beside, &[("rps", "-1"), ("parent", &parent)]);
                if !trust.is_empty() {
                    world.knobs(&mine, &[("trust_scope", trust)]);
                }
                let limit = async |throttle: &str, key: &str| {
                    world
                        .store
                        .acquire(&work(throttle, &[(key, 1, 1.0)]))
                        .await
                        .lanes
                        .remove(0)
                        .limit
                };
                for throttle in [&mine, &beside] {
                    assert_eq!(limit(throttle, "other").await, None);
                }

                let claim = UpstreamRefusal {
                    is_hearsay: true,
                    is_overload: claimed == 1,
                    ..refusal(key, scope, 86_400)
                };
                let paused = world.store.refused(&name(&mine), &claim).await.unwrap();

                let told = format!("trust {trust}, claimed {scope:?}, key {key:?}");
                let reach = claimed.min(breadth);
                let is_alone = key.is_empty() && breadth == 0;
                assert_eq!(paused.alone.is_some(), is_alone, "{told}");
                assert_eq!(limit(&mine, key).await.is_some(), !is_alone, "{told}");
                assert_eq!(limit(&mine, "other").await.is_some(), reach > 0, "{told}");
                assert_eq!(limit(&beside, "other").await.is_some(), reach > 1, "{told}");

                // Whoever is trusted says what he says.
                world
                    .store
                    .refused(
                        &name(&mine),
                        &UpstreamRefusal {
                            is_hearsay: false,
                            ..claim
                        },
                    )
                    .await
                    .unwrap();
                assert_eq!(limit(&mine, "other").await.is_some(), claimed > 0, "{told}");
                assert_eq!(
                    limit(&beside, "other").await.is_some(),
                    claimed > 1,
                    "{told}"
                );
            }
        }
    }
}

async fn no_answer_pauses_for_longer_than_the_knob_allows(world: World) {
    let (day, quarter) = (86_400_000, 900_000);
    let knobs = [
        ("", day, quarter),
        ("1", 1000, 1000),
        ("60.5", 60_500, 60_500),
        ("7200", 7_200_000, 7_200_000),
        ("soon", day, quarter),
    ];
    for (n, (max_pause, of_key, of_throttle)) in knobs.into_iter().enumerate() {
        for (scope, most_ms) in [(Scope::Key, of_key), (Scope::Throttle, of_throttle)] {
            for naive in [false, true] {
                let throttle = format!("t{n}{scope:?}{naive}");
                world.knobs(&throttle, &[("rps", "-1"), ("trust_scope", "throttle")]);
                if !max_pause.is_empty() {
                    world.knobs(&throttle, &[("max_pause", max_pause)]);
                }
                if naive {
                    world.knobs(&throttle, &[("on_429", "active-naive")]);
                }
                let said = [
                    None,
                    Some(0),
                    Some(1),
                    Some(59_999),
                    Some(86_400_000),
                    Some(u64::MAX),
                ];
                for (step, (said, jitter)) in said
                    .iter()
                    .flat_map(|said| [0.0, 0.5, 1.0].map(|jitter| (*said, jitter)))
                    .enumerate()
                {
                    let refused = UpstreamRefusal {
                        delay: said.map(Duration::from_millis),
                        jitter,
                        is_overload: step % 3 == 0,
                        is_hearsay: step % 2 == 0,
                        ..refusal("k", scope, 0)
                    };
                    let until_ms = world
                        .store
                        .refused(&name(&throttle), &refused)
                        .await
                        .unwrap()
                        .until_ms;
                    let now_ms = world.now.load(Ordering::SeqCst) / 1000;
                    assert!(
                        until_ms - now_ms <= most_ms,
                        "{max_pause:?}, {scope:?}: {refused:?} pauses {} ms",
                        until_ms - now_ms
                    );
                    // Every other one comes when the pause is over, so that the strikes grow.
                    if step % 2 == 0 {
                        world.pass(Duration::from_millis((until_ms - now_ms).max(0) as u64 + 1));
                    }
                }
            }
        }
    }
}

async fn load_that_is_shed_pauses_the_key_and_teaches_no_rate(world: World) {
    world.knobs("a", &[("rps", "-1"), ("key_rps", "100")]);
    let shed = UpstreamRefusal {
        is_overload: true,
        ..refusal("k", Scope::Key, 5)
    };
    world.store.refused(&name("a"), &shed).await.unwrap();

    world.pass(Duration::from_secs(4));
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 9, 1.0)]))
            .await
            .lanes[0]
            .granted,
        0
    );
    world.pass(Duration::from_secs(1));
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 9, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1,
        "one goes first all the same"
    );
    world
        .store
        .ended(&name("a"), &[success("k", 8)])
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 90, 1.0)]))
            .await
            .lanes[0]
            .granted,
        90,
        "and then the key's own rate holds"
    );
}

async fn a_naive_throttle_lets_the_refused_job_wait_by_itself(world: World) {
    world.knobs("a", &[("rps", "-1"), ("on_429", "active-naive")]);

    for scope in [Scope::Key, Scope::Throttle] {
        let paused = world
            .store
            .refused(&name("a"), &refusal("k", scope, 5))
            .await
            .unwrap();
        assert_eq!(paused.alone, Some(Duration::from_secs(5)));
    }
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 5, 1.0)]))
            .await
            .lanes[0]
            .granted,
        5
    );
}

async fn a_passive_throttle_does_not_hold_keys_to_their_rate(world: World) {
    world.knobs(
        "a",
        &[
            ("rps", "-1"),
            ("key_rps", "1"),
            ("on_429", "passive-informed"),
        ],
    );
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50
    );

    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 5))
        .await
        .unwrap();
    world.pass(Duration::from_secs(5));

    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1
    );
    world
        .store
        .ended(&name("a"), &[success("k", 8)])
        .await
        .unwrap();
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50,
        "and learns no rate"
    );
}

async fn whoever_takes_the_pause_off_takes_off_the_refusal_too(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Throttle, 60))
        .await
        .unwrap();
    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 60))
        .await
        .unwrap();
    assert_eq!(world.began("a", 5).await, 0);

    world
        .store
        .set(&name("a"), &change(&[("paused", "0")]))
        .await
        .unwrap();
    assert_eq!(world.began("a", 5).await, 5);
    assert!(world.store.resume_key(&name("a"), "k").await.unwrap());
    assert_eq!(
        world
            .store
            .acquire(&work("a", &[("k", 50, 1.0)]))
            .await
            .lanes[0]
            .granted,
        50
    );
}

async fn a_quota_that_is_told_slows_its_key_and_is_forgotten_with_its_window(world: World) {
    world.knobs("a", &[("rps", "-1")]);
    let granted = async || {
        world
            .store
            .acquire(&work("a", &[("k", 1000, 1.0)]))
            .await
            .lanes
            .remove(0)
    };
    let quota = Some(Quota {
        remaining: 20.0,
        reset: Duration::from_secs(10),
    });
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();

    let mut taken = granted().await.granted;
    for _ in 0..99 {
        world.pass(Duration::from_millis(100));
        taken += granted().await.granted;
    }
    assert!((20..=22).contains(&taken), "{taken}");
    world.pass(Duration::from_millis(100));
    assert!(
        granted().await.granted <= 3,
        "the next window begins as this one did"
    );
    world.pass(Duration::from_secs(10));
    assert_eq!(granted().await.granted, 1000);

    let spent = Some(Quota {
        remaining: 0.0,
        reset: Duration::from_secs(10),
    });
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota: spent,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();
    let grant = granted().await;
    assert_eq!(
        (grant.granted, grant.limit, grant.wait),
        (0, Some(Limit::Learned), Duration::from_secs(10))
    );
}

async fn a_quota_that_is_told_stops_its_key_for_a_minute_at_most_and_a_stranger_stops_no_lane_of_many(
    world: World,
) {
    let year = Some(Quota {
        remaining: 0.0,
        reset: Duration::from_secs(31_536_000),
    });
    world.knobs("a", &[("rps", "-1")]);
    let granted = async |key: &str| {
        world
            .store
            .acquire(&work("a", &[(key, 1000, 1.0)]))
            .await
            .lanes
            .remove(0)
            .granted
    };
    for key in ["k", ""] {
        let ended = KeyOutcomes {
            quota: year,
            is_hearsay: true,
            ..success(key, 1)
        };
        world.store.ended(&name("a"), &[ended]).await.unwrap();
    }
    assert_eq!((granted("k").await, granted("").await), (0, 1000));

    let mut probes = 0;
    for _ in 0..600 {
        world.pass(Duration::from_secs(1));
        let probe = granted("k").await;
        probes += probe;
        if probe > 0 {
            world
                .store
                .ended(
                    &name("a"),
                    &[KeyOutcomes {
                        quota: year,
                        is_hearsay: true,
                        ..success("k", probe)
                    }],
                )
                .await
                .unwrap();
        }
    }
    assert!((9..=10).contains(&probes), "one a minute: {probes} in ten");
    world.pass(Duration::from_secs(3600));
    assert_eq!(granted("k").await, 1000, "it counts for an hour");

    world.knobs("a", &[("trust_scope", "throttle")]);
    world
        .store
        .ended(
            &name("a"),
            &[KeyOutcomes {
                quota: year,
                is_hearsay: true,
                ..success("", 1)
            }],
        )
        .await
        .unwrap();
    assert_eq!(granted("").await, 0, "where one stands behind all");
    world.knobs("b", &[("rps", "-1"), ("max_pause", "5")]);
    world
        .store
        .ended(
            &name("b"),
            &[KeyOutcomes {
                quota: year,
                ..success("k", 1)
            }],
        )
        .await
        .unwrap();
    world.pass(Duration::from_secs(5));
    assert_eq!(
        world
            .store
            .acquire(&work("b", &[("k", 1000, 1.0)]))
            .await
            .lanes[0]
            .granted,
        1000,
        "no longer than the knob says"
    );
}

async fn only_keys_that_were_refused_are_remembered(world: World) {
    world.knobs("a", &[("rps", "-1"), ("key_rps", "100")]);
    world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await;
    world
        .store
        .ended(&name("a"), &[success("k", 1)])
        .await
        .unwrap();
    assert!(!world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);

    world
        .store
        .refused(&name("a"), &refusal("k", Scope::Key, 1))
        .await
        .unwrap();
    world.pass(Duration::from_secs(2));
    assert!(world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);
    // After a minute without another refusal the key's own rate is reached, and there is nothing more to know.
    world.pass(Duration::from_secs(60));
    world
        .store
        .ended(&name("a"), &[success("k", 20)])
        .await
        .unwrap();

    assert!(!world.store.acquire(&ask("a", &[("k", 1, 1.0)])).await.lanes[0].watched);
}

async fn peeking_charges_nothing(world: World) {
    world.knobs("a", &[("rps", "10"), ("key_rps", "5")]);
    world.take("a", 1).await;
    world.pass(Duration::from_secs(5));
    let request = ask("a", &[("k", 3, 1.0), ("l", 99, 1.0)]);

    let peeked = world.store.peek(&request).await;

    assert_eq!(world.store.peek(&request).await, peeked);
    assert_eq!(world.store.acquire(&request).await, peeked);
    assert_ne!(world.store.acquire(&request).await, peeked);
}

async fn counters_tell_tokens_used_and_time_limited(world: World) {
    world.knobs("a", &[("rps", "10")]);
    world.drink("a", Duration::from_secs(20)).await;
    let before = world.status("a").await;
    world.drink("a", Duration::from_secs(20)).await;
    let after = world.status("a").await;

    assert!((after.used - before.used - 200.0).abs() <= 1.0);
    assert!(
        (after.limited_us - before.limited_us - 20e6).abs() < 1e5,
        "{}",
        after.limited_us - before.limited_us
    );

    // Asking for less than there is, is not being limited.
    world.pass(Duration::from_secs(5));
    let before = world.status("a").await.limited_us;
    for _ in 0..50 {
        world.pass(Duration::from_millis(200));
        world.take("a", 1).await;
    }
    assert_eq!(world.status("a").await.limited_us, before);
}

async fn a_clock_that_steps_back_does_not_stop_the_flow(world: World) {
    world.knobs("a", &[("rps", "10"), ("key_rps", "10")]);
    let request = ask("a", &[("k", 1000, 1.0)]);
    world.store.acquire(&request).await;
    world.now.fetch_sub(3_600_000_000, Ordering::SeqCst);
    let mut taken = 0;
    for _ in 0..200 {
        world.pass(Duration::from_millis(100));
        taken += world.store.acquire(&request).await.lanes[0].granted;
    }

    assert!(
        (150..=210).contains(&taken),
        "in 20 s at 10 tokens/s, of which some are lost by the step: {taken}"
    );
}

async fn setting_writes_the_three_together_and_counts(world: World) {
    let (before, after) = world
        .store
        .set(&name("new"), &change(&[("rps", "7")]))
        .await
        .unwrap();

    assert_eq!(before, None);
    assert_eq!(
        (
            after.knobs.seq,
            after.knobs.by.as_str(),
            after.knobs.why.as_str()
        ),
        (1, "test", "a test")
    );
    assert_eq!(after.knobs.at_ms, START / 1000);
    for (field, text) in [("rps", "7"), ("burst", "1"), ("window", "1")] {
        assert_eq!(after.raw[field], text);
    }
    let mut removing = change(&[("key_rps", "3")]);
    world.store.set(&name("new"), &removing).await.unwrap();
    removing.fields = [("key_rps".to_owned(), None)].into();
    let (before, after) = world.store.set(&name("new"), &removing).await.unwrap();
    assert_eq!(before.unwrap().raw["key_rps"], "3");
    assert_eq!((after.raw.get("key_rps"), after.knobs.seq), (None, 3));
}

async fn setting_is_refused_when_somebody_was_faster(world: World) {
    let a = name("a");
    world
        .store
        .set(
            &a,
            &Change {
                term: Some(5),
                ..change(&[("rps", "7")])
            },
        )
        .await
        .unwrap();
    let attempts = [
        (
            Change {
                if_seq: Some(7),
                ..change(&[("rps", "9")])
            },
            "seq is 1, not 7",
        ),
        (
            Change {
                term: Some(4),
                ..change(&[("rps", "9")])
            },
            "term 5 has written since term 4",
        ),
        (
            Change {
                if_rps: Some("8".to_owned()),
                ..change(&[("rps", "9")])
            },
            "rps is 7, not 8",
        ),
        (
            Change {
                if_concurrency: Some("4".to_owned()),
                ..change(&[("concurrency", "5")])
            },
            "concurrency is missing, not 4",
        ),
    ];
    for (attempt, expected) in attempts {
        match world.store.set(&a, &attempt).await {
            Err(Error::Conflict { what, .. }) => assert_eq!(what, expected),
            other => panic!("{other:?}"),
        }
    }
    let right = Change {
        if_seq: Some(1),
        term: Some(5),
        if_rps: Some("7".to_owned()),
        ..change(&[("rps", "9")])
    };
    assert_eq!(world.store.set(&a, &right).await.unwrap().1.knobs.rps, 9.0);
    // No limit is an empty text.
    for (stands, next) in [("", 3), ("3", 4)] {
        let right = Change {
            if_concurrency: Some(stands.to_owned()),
            ..change(&[("concurrency", &next.to_string())])
        };
        assert_eq!(
            world
                .store
                .set(&a, &right)
                .await
                .unwrap()
                .1
                .knobs
                .concurrency,
            next
        );
    }
}

async fn setting_refuses_min_above_max_and_unknown_throttles(world: World) {
    let refused = world
        .store
        .set(
            &name("a"),
            &Change {
                create: false,
                ..change(&[("rps", "1")])
            },
        )
        .await;
    assert!(matches!(refused, Err(Error::Unknown(_))), "{refused:?}");
    world.knobs("a", &[("rps", "1"), ("max", "50")]);

    let refused = world
        .store
        .set(&name("a"), &change(&[("min", "60")]))
        .await
        .unwrap_err();

    assert_eq!(refused.to_string(), "min: must be at most max 50, not 60");
    assert_eq!(world.status("a").await.raw.get("min"), None);
}

async fn a_new_mode_takes_the_end_of_the_last_one_away(world: World) {
    let until = "1700000000000";
    let of = |status: Status| status.raw.get("manual_until_ms").cloned();
    let set = |given: &[(&str, &str)]| change(given);
    let both = world
        .store
        .set(
            &name("a"),
            &set(&[("mode", "manual"), ("manual_until_ms", until)]),
        )
        .await
        .unwrap()
        .1;
    assert_eq!(
        (both.knobs.manual_until_ms, of(both)),
        (Some(1_700_000_000_000), Some(until.to_owned()))
    );
    let rate = world
        .store
        .set(&name("a"), &set(&[("rps", "5")]))
        .await
        .unwrap()
        .1;
    assert_eq!(of(rate).as_deref(), Some(until), "another knob leaves it");
    let seeded = Change {
        absent_only: true,
        ..set(&[("mode", "auto"), ("max", "9")])
    };
    assert_eq!(
        of(world.store.set(&name("a"), &seeded).await.unwrap().1).as_deref(),
        Some(until),
        "a seed leaves it"
    );
    for mode in ["manual", "auto"] {
        let again = world
            .store
            .set(&name("a"), &set(&[("mode", mode)]))
            .await
            .unwrap()
            .1;
        assert_eq!(of(again), None, "{mode}");
        world
            .store
            .set(&name("a"), &set(&[("manual_until_ms", until)]))
            .await
            .unwrap();
    }
}

async fn leaving_auto_ends_the_lease(world: World) {
    let until = (START / 1000 + 5000).to_string();
    let set = |given: Change| {
        let store = world.store.clone();
        async move { store.set(&name("a"), &given).await.unwrap().1 }
    };
    let leased = set(change(&[
        ("rps", "7"),
        ("mode", "auto"),
        ("valid_until", &until),
    ]))
    .await;
    let kept = set(change(&[("max", "100")])).await;
    let left = set(change(&[("mode", "manual")])).await;

    assert_eq!(leased.knobs.valid_until_ms, Some(START / 1000 + 5000));
    assert_eq!(kept.knobs.valid_until_ms, leased.knobs.valid_until_ms);
    assert_eq!(left.raw.get("valid_until"), None);
}

async fn seeding_writes_what_is_absent_and_never_a_live_edit(world: World) {
    let text = "[knobs]\nrps = 20\nmin = 2\nmax = 200\n".to_owned();
    let file = KnobsFile::parse(std::path::Path::new("knobs/a.toml"), text).unwrap();
    world.write("a", "rps", "3");
    let files = [
        file,
        KnobsFile::parse(
            std::path::Path::new("knobs/b.toml"),
            "[knobs]\nrps = 1\n".to_owned(),
        )
        .unwrap(),
    ];

    let created = seed(&*world.store, &files).await.unwrap();
    let seq = world.status("a").await.knobs.seq;
    let again = seed(&*world.store, &files).await.unwrap();

    assert_eq!((created, again), (vec![name("b")], vec![]));
    let raw = world.status("a").await.raw;
    assert_eq!([&raw["rps"], &raw["min"], &raw["max"]], ["3", "2", "200"]);
    assert_eq!(
        world.status("a").await.knobs.seq,
        seq,
        "nothing to write is no write"
    );
}

async fn names_are_known_in_order(world: World) {
    world.write("written-by-hand", "rps", "1");
    world
        .store
        .set(&name("set"), &change(&[("rps", "1")]))
        .await
        .unwrap();

    assert_eq!(
        world.store.names().await.unwrap(),
        [name("set"), name("written-by-hand")]
    );
}

// === Redis alone ===

async fn real(server: &Server) -> RedisStore {
    RedisStore::connect(&server.url(), "").unwrap()
}

/// Calls until Redis answers again, for a while.
async fn answered(store: &RedisStore, throttle: &str) -> AcquireResponse {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let answer = store.acquire(&ask(throttle, &[("", 100, 1.0)])).await;
        if answer.at_us != 0 {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "redis was not found again within 10 s"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn redis_that_restarts_empty_gives_one_token_and_not_a_burst() {
    let mut server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("a"), &change(&[("rps", "50"), ("burst", "10")]))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    store.acquire(&ask("a", &[("", 1, 1.0)])).await;

    server.restart();
    let unknown = answered(&store, "a").await;
    store
        .set(&name("a"), &change(&[("rps", "50"), ("burst", "10")]))
        .await
        .unwrap();
    let first = answered(&store, "a").await;

    assert_eq!(
        unknown.lanes[0].limit,
        Some(Limit::Unknown { name: name("a") })
    );
    assert_eq!(first.lanes[0].granted, 1);
}

#[tokio::test]
async fn a_flush_forgets_the_script_and_it_is_loaded_again() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("a"), &change(&[("rps", "-1")]))
        .await
        .unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("SCRIPT")
        .arg("FLUSH")
        .exec(&mut connection)
        .unwrap();

    assert_eq!(
        store.acquire(&ask("a", &[("", 3, 1.0)])).await.lanes[0].granted,
        3
    );
}

#[tokio::test]
async fn a_redis_that_hangs_or_is_gone_is_answered_for_within_the_bound() {
    let mut server = Server::start();
    let store = real(&server).await;
    let set = |throttle: &'static str, word: &'static str| {
        let server_store = &store;
        async move {
            let deadline = Instant::now() + Duration::from_secs(10);
            while server_store
                .set(
                    &name(throttle),
                    &change(&[("rps", "100"), ("on_store_loss", word)]),
                )
                .await
                .is_err()
            {
                assert!(Instant::now() < deadline, "redis was not there within 10 s");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            answered(server_store, throttle).await;
        }
    };
    set("closed", "closed").await;
    set("open", "open").await;
    set("local", "local").await;
    store.set_workers(2);

    server.freeze();
    let mut slowest = Duration::ZERO;
    for throttle in ["closed", "open", "local", "closed"] {
        let begin = Instant::now();
        let answer = store.acquire(&ask(throttle, &[("", 40, 1.0)])).await;
        slowest = slowest.max(begin.elapsed());
        let lane = &answer.lanes[0];
        match throttle {
            "closed" => assert_eq!((lane.granted, &lane.limit), (0, &Some(Limit::StoreLost))),
            "open" => assert_eq!(lane.granted, 40),
            _ => assert!((1..=50).contains(&lane.granted), "{}", lane.granted),
        }
    }
    let begin = Instant::now();
    assert!(matches!(
        store.status(&name("open")).await,
        Err(Error::Lost(_))
    ));
    assert!(matches!(
        store.set(&name("open"), &change(&[("rps", "1")])).await,
        Err(Error::Lost(_))
    ));
    assert!(
        begin.elapsed() < Duration::from_millis(250),
        "known to be lost: answered at once"
    );
    assert!(slowest < Duration::from_millis(250), "{slowest:?}");

    server.thaw();
    answered(&store, "closed").await;
    server.kill();
    let begin = Instant::now();
    assert_eq!(
        store.acquire(&ask("closed", &[("", 1, 1.0)])).await.at_us,
        0
    );
    assert!(begin.elapsed() < Duration::from_millis(250));
}

#[tokio::test]
async fn a_redis_that_was_never_there_is_lost_at_once_and_found_when_it_comes() {
    let mut server = Server::start();
    server.kill();
    let begin = Instant::now();
    let store = real(&server).await;
    let lost = store.status(&name("a")).await;
    assert!(matches!(lost, Err(Error::Lost(_))), "{lost:?}");
    assert!(
        begin.elapsed() < Duration::from_millis(500),
        "{:?}",
        begin.elapsed()
    );

    server.restart();
    answered(&store, "a").await;
}

#[test]
fn a_url_that_cannot_be_used_is_refused_without_its_password() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    for url in [
        "localhost:6379",
        "http://:hunter2@localhost",
        "redis://user:hunter2@local host/x",
    ] {
        let message = RedisStore::connect(url, "")
            .err()
            .expect("refused")
            .to_string();
        assert!(
            message.contains("REDIS_URL") && message.contains("redis://host:port"),
            "{message}"
        );
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[tokio::test]
async fn keys_that_are_idle_leave_nothing_behind() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(
            &name("a"),
            &change(&[("rps", "-1"), ("key_rps", "100"), ("window", "0.05")]),
        )
        .await
        .unwrap();
    store.acquire(&ask("a", &[("k", 5, 1.0)])).await;
    store
        .pause_key(&name("a"), "k", Duration::from_millis(50), "429")
        .await
        .unwrap();

    let deadline = Instant::now() + Duration::from_secs(5);
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    loop {
        let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
        keys.sort();
        if keys == ["throttle:a:bucket", "throttle:a:knobs", "throttle:names"] {
            break;
        }
        assert!(Instant::now() < deadline, "{keys:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_key_of_the_wrong_type_stops_one_throttle_and_no_worker() {
    let server = Server::start();
    let store = real(&server).await.with_bound(Duration::from_secs(5));
    store
        .set(&name("good"), &change(&[("rps", "-1")]))
        .await
        .unwrap();
    let mut connection = redis::Client::open(server.url())
        .unwrap()
        .get_connection()
        .unwrap();
    redis::cmd("SET")
        .arg("throttle:bad:knobs")
        .arg("oops")
        .exec(&mut connection)
        .unwrap();
    redis::cmd("SET")
        .arg("throttle:good:lane:k")
        .arg("oops")
        .exec(&mut connection)
        .unwrap();

    let bad = store.acquire(&ask("bad", &[("", 1, 1.0)])).await;

    assert_eq!(
        bad.lanes[0].limit,
        Some(Limit::Unknown { name: name("bad") })
    );
    assert_eq!(
        store.acquire(&ask("good", &[("k", 1, 1.0)])).await.lanes[0].granted,
        1
    );
}
