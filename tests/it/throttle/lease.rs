//! Leases of tokens in front of a real store: their maximum overshoot, their end, and that no token
//! is lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use flyball::throttle::lease::MAX_HORIZON;
use flyball::throttle::{
    AcquireRequest, AcquireResponse, Change, Holder, LaneRequest, LeasedStore, Limit, RedisStore,
    Store,
};

use crate::support::eventually;
use crate::support::redis_server::Server;
use crate::throttle::{START, World, ask, fields, laws, name};

const MS: Duration = Duration::from_millis(1);

laws! {
    a_cut_is_overshot_by_rate_times_horizon_at_most,
    a_pause_a_stop_and_a_cut_that_go_through_the_process_are_obeyed_at_once,
    a_pause_and_a_stop_from_elsewhere_are_obeyed_within_the_horizon,
    a_limit_of_a_key_ends_leases,
    whoever_runs_jobs_always_asks_the_store,
    tokens_that_are_short_are_not_held,
}

impl World {
    /// A process with leases, on the shared virtual time.
    fn process(&self) -> LeasedStore {
        let (begun, now) = (Instant::now(), self.now.clone());
        let clock =
            move || begun + Duration::from_micros((now.load(Ordering::SeqCst) - START) as u64);
        LeasedStore::with_clock(self.store.clone(), MAX_HORIZON, Arc::new(clock))
    }

    /// Requests one token per millisecond, `times` times; returns the number granted.
    async fn trickle(&self, process: &LeasedStore, throttle: &str, key: &str, times: u32) -> u32 {
        let mut granted = 0;
        for _ in 0..times {
            self.pass(MS);
            granted += one(process, throttle, key).await.lanes[0].granted;
            // Returned tokens are sent by a background task.
            tokio::task::yield_now().await;
        }
        granted
    }

    async fn used(&self, throttle: &str) -> f64 {
        self.store
            .status(&name(throttle))
            .await
            .unwrap()
            .unwrap()
            .used
    }
}

async fn one(store: &dyn Store, throttle: &str, key: &str) -> AcquireResponse {
    store.acquire(&ask(throttle, &[(key, 1, 1.0)])).await
}

fn change(given: &[(&str, &str)]) -> Change {
    Change {
        fields: fields(given),
        create: true,
        by: "test".to_owned(),
        ..Change::default()
    }
}

async fn a_cut_is_overshot_by_rate_times_horizon_at_most(world: World) {
    // Without a change counter, as with redis-cli, and with one; for the throttle itself, and for
    // its tier.
    for (at, (cut, counted)) in [("a", false), ("b", true), ("tier", false)]
        .into_iter()
        .enumerate()
    {
        let leaf = if cut == "tier" { "c" } else { cut };
        world.knobs("tier", &[("rps", "1000")]);
        world.knobs(leaf, &[("rps", "1000"), ("parent", "tier")]);
        let processes: Vec<LeasedStore> = (0..4).map(|_| world.process()).collect();
        processes.iter().for_each(|process| process.set_workers(4));
        let mut all = 0.0;
        let mut step = async |ms: usize| {
            world.pass(MS);
            let mut granted = 0.0;
            // Each takes 200 tokens per second; together they leave a fifth of the rate.
            for (n, process) in processes.iter().enumerate() {
                if (ms + n).is_multiple_of(5) {
                    granted += f64::from(one(process, leaf, "k").await.lanes[0].granted);
                    tokio::task::yield_now().await;
                }
            }
            all += granted;
            granted
        };
        for ms in 0..1600 + 37 * at {
            step(ms).await;
        }
        if counted {
            world
                .store
                .set(&name(cut), &change(&[("rps", "10")]))
                .await
                .unwrap();
        } else {
            world.write(cut, "rps", "10");
        }
        let (mut overshoot, mut later) = (0.0, 0.0);
        for ms in 0..1000 {
            let granted = step(ms).await;
            // A full bucket and the refill belong to the new rate.
            *(if ms < 250 { &mut overshoot } else { &mut later }) += granted;
        }

        let full = 10.0;
        assert!(
            overshoot > full + 2.5 + 10.0,
            "something was leased: {overshoot}"
        );
        assert!(
            overshoot <= 1000.0 * 0.25 + full + 2.5 + 1.0,
            "{overshoot} of {cut}"
        );
        assert!(
            later <= full + 7.5 + 1.0,
            "after the horizon the new rate holds: {later}"
        );
        for process in &processes {
            process.give_back_all().await;
        }
        let message = all;
        eventually(
            "what is counted is what was spent",
            Duration::from_secs(20),
            || async { ((world.used(leaf).await - message).abs() < 1e-6).then_some(()) },
        )
        .await;
    }
}

async fn a_pause_a_stop_and_a_cut_that_go_through_the_process_are_obeyed_at_once(world: World) {
    for (throttle, what) in [("a", "pause"), ("b", "stop"), ("c", "delete")] {
        world
            .store
            .set(&name(throttle), &change(&[("rps", "100000")]))
            .await
            .unwrap();
        let process = world.process();
        let granted = world.trickle(&process, throttle, "k", 400).await;
        assert!(
            world.used(throttle).await > f64::from(granted) + 20.0,
            "a lease is held"
        );

        match what {
            "pause" => drop(
                process
                    .pause_key(&name(throttle), "k", Duration::from_secs(9), "429")
                    .await
                    .unwrap(),
            ),
            "stop" => drop(
                process
                    .set(&name(throttle), &change(&[("rps", "0")]))
                    .await
                    .unwrap(),
            ),
            _ => assert!(process.delete(&name(throttle)).await.unwrap()),
        }

        let grant = one(&process, throttle, "k").await.lanes.remove(0);
        assert_eq!(grant.granted, 0, "{what}");
        match grant.limit {
            Some(Limit::Paused { .. }) => assert_eq!(what, "pause"),
            Some(Limit::Stopped { .. }) => assert_eq!(what, "stop"),
            other => assert_eq!(
                (other, what),
                (
                    Some(Limit::Unknown {
                        name: name(throttle)
                    }),
                    "delete"
                )
            ),
        }
    }
}

async fn a_pause_and_a_stop_from_elsewhere_are_obeyed_within_the_horizon(world: World) {
    for (throttle, what) in [("a", "pause"), ("b", "stop")] {
        world.knobs(throttle, &[("rps", "100000")]);
        let process = world.process();
        world.trickle(&process, throttle, "k", 400).await;
        if what == "pause" {
            world
                .store
                .pause_key(&name(throttle), "k", Duration::from_secs(60), "429")
                .await
                .unwrap();
        } else {
            world.write(throttle, "rps", "0");
        }

        let meanwhile = world.trickle(&process, throttle, "k", 250).await;
        let afterwards = world.trickle(&process, throttle, "k", 400).await;

        assert!((1..=250).contains(&meanwhile), "{meanwhile} were held");
        assert_eq!(afterwards, 0, "{what}");
    }
}

async fn a_limit_of_a_key_ends_leases(world: World) {
    world.knobs("a", &[("rps", "100000")]);
    let process = world.process();
    world.trickle(&process, "a", "k", 400).await;
    world.write("a", "key_rps", "20");
    world.trickle(&process, "a", "k", 250).await;

    let granted = world.trickle(&process, "a", "k", 2000).await;

    assert!(
        granted <= 20 + 40 + 1,
        "a full bucket of the key and two seconds: {granted}"
    );
}

async fn whoever_runs_jobs_always_asks_the_store(world: World) {
    world.knobs("a", &[("rps", "100000"), ("concurrency", "2")]);
    let process = world.process();
    world.trickle(&process, "a", "", 400).await;
    let holder = Some(Holder {
        id: "w".to_owned(),
        ttl: Duration::from_secs(30),
        held: 0,
    });
    let lanes = vec![LaneRequest {
        want: 5,
        ..LaneRequest::default()
    }];

    let answer = process
        .acquire(&AcquireRequest {
            throttle: name("a"),
            lanes,
            holder,
        })
        .await;

    assert_eq!(answer.lanes[0].granted, 2);
    assert!(matches!(
        answer.lanes[0].limit,
        Some(Limit::Concurrency { .. })
    ));
}

async fn tokens_that_are_short_are_not_held(world: World) {
    world.knobs("a", &[("rps", "100")]);
    let (greedy, modest) = (world.process(), world.process());
    let (mut all, mut few, mut refused) = (0, 0, 0);
    for ms in 0..4000 {
        world.pass(MS);
        all += one(&greedy, "a", "").await.lanes[0].granted;
        if ms % 100 == 0 {
            let granted = one(&modest, "a", "").await.lanes[0].granted;
            few += granted;
            refused += 1 - granted;
        }
        tokio::task::yield_now().await;
        if ms > 1000 {
            // One token may be requested but not yet counted here.
            assert!(
                world.used("a").await <= f64::from(all + few) + 1.0,
                "nothing is held while somebody waits"
            );
        }
    }
    assert!(
        (390..=402).contains(&(all + few)),
        "the whole rate was used: {all} and {few}"
    );
    assert!(refused > 0);
}

// === Redis alone, in real time ===

#[tokio::test]
async fn a_lease_spares_redis_most_asks() {
    let server = Server::start();
    let redis = Arc::new(
        RedisStore::connect(&server.url(), "")
            .unwrap()
            .with_bound(Duration::from_secs(20)),
    );
    redis
        .set(&name("a"), &change(&[("rps", "1000000")]))
        .await
        .unwrap();
    let store = LeasedStore::new(redis.clone(), MAX_HORIZON);
    let calls = || {
        let mut connection = redis::Client::open(server.url())
            .unwrap()
            .get_connection()
            .unwrap();
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)
            .unwrap();
        let line = info
            .lines()
            .find(|line| line.starts_with("cmdstat_fcall:"))
            .unwrap()
            .to_owned();
        line.split(['=', ','])
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let mut granted = 0;

    // On a busy machine some stretches may be discarded, but not all.
    eventually(
        "Redis was asked for a fifth of the tokens at most",
        Duration::from_secs(60),
        || {
            granted += 200;
            let (store, calls) = (&store, &calls);
            async move {
                let before = calls();
                for _ in 0..200 {
                    assert_eq!(one(store, "a", "k").await.lanes[0].granted, 1);
                    // Real time: the pace of the asks.
                    tokio::time::sleep(MS).await;
                }
                (calls() - before <= 40).then_some(())
            }
        },
    )
    .await;

    store.give_back_all().await;
    eventually(
        "what is counted is what was spent",
        Duration::from_secs(20),
        || async {
            let used = redis.status(&name("a")).await.unwrap().unwrap().used;
            ((used - f64::from(granted)).abs() < 1e-6).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn a_lease_that_nobody_asks_for_any_more_goes_back_by_itself() {
    let server = Server::start();
    let redis = Arc::new(
        RedisStore::connect(&server.url(), "")
            .unwrap()
            .with_bound(Duration::from_secs(20)),
    );
    redis
        .set(&name("a"), &change(&[("rps", "1000000")]))
        .await
        .unwrap();
    let used = async || redis.status(&name("a")).await.unwrap().unwrap().used;
    let store = LeasedStore::new(redis.clone(), MAX_HORIZON);
    let mut granted = 0.0;
    while used().await <= granted {
        granted += f64::from(one(&store, "a", "").await.lanes[0].granted);
    }
    drop(store);

    eventually(
        "the rest is given back",
        Duration::from_secs(20),
        || async { ((used().await - granted).abs() < 1e-6).then_some(()) },
    )
    .await;
}

#[tokio::test]
async fn a_lease_ends_with_its_horizon_though_redis_is_gone() {
    let mut server = Server::start();
    let redis = Arc::new(RedisStore::connect(&server.url(), "").unwrap());
    let store = LeasedStore::new(redis.clone(), MAX_HORIZON);
    let set = || async {
        redis
            .set(
                &name("a"),
                &change(&[("rps", "1000000"), ("on_store_loss", "closed")]),
            )
            .await
            .ok()
    };
    eventually("Redis answers", Duration::from_secs(20), set).await;
    for _ in 0..700 {
        one(&store, "a", "").await;
        // Real time: the pace of the asks, from which the size of the lease follows.
        tokio::time::sleep(MS).await;
    }

    server.kill();
    let lost = Instant::now();

    let mut after_the_horizon = 0;
    while after_the_horizon < 100 {
        let is_over = lost.elapsed() >= MAX_HORIZON;
        let answer = one(&store, "a", "").await;
        if is_over {
            let lane = &answer.lanes[0];
            assert_eq!((lane.granted, &lane.limit), (0, &Some(Limit::StoreLost)));
            after_the_horizon += 1;
        }
        // Real time: the pace of the asks, beyond the horizon of the lease.
        tokio::time::sleep(MS).await;
    }
}
