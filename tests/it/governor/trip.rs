//! The fast path with real processes: a load rises on an exporter's page, and all token grants
//! stop.
//!
//! Four workers drain a throttle, and another program spends leased tokens of it. `make bench-trip`
//! measures many trips; this test runs one: stop, drain, wait, resume.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use flyball::jobs::NewJob;
use flyball::throttle::lease::MAX_HORIZON;
use flyball::throttle::{
    AcquireRequest, LaneRequest, LeasedStore, Name, RedisStore, Status, Store,
};

use crate::support::eventually;
use crate::support::exporter::Exporter;
use crate::support::process::{Process, ProcessFixture};

/// The time limit for each step on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const WORKERS: usize = 4;
const JOBS: usize = 3000;
const JOB: Duration = Duration::from_millis(200);

/// The load in normal operation, and with all jobs stopped.
const USUAL: f64 = 1.0;
const GONE: f64 = 0.3;
/// A load far enough above the trip level that one sample trips, and one so close to it that a
/// single sample does not.
const WILD: f64 = 9.0;
const HIGH: f64 = 2.5;

/// Times after the rise, in seconds of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Trip {
    /// The time until the knob was set to stop.
    stopped: f64,
    /// The time of Redis' last grant.
    granted: f64,
    /// The time at which the last leased token was spent.
    spent: f64,
    /// The time at which the last job began.
    begun: f64,
}

/// Workers that drain a governed throttle, and a program that spends leased tokens.
struct Flow {
    fixture: ProcessFixture,
    store: RedisStore,
    exporter: Exporter,
    spent_us: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    _processes: Vec<Process>,
}

fn throttle() -> Name {
    Name::new("flow").expect("a name")
}

#[expect(
    clippy::disallowed_methods,
    reason = "the machine's clock is the one that Redis shows here"
)]
fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time")
        .as_micros() as i64
}

impl Flow {
    async fn new() -> Self {
        let exporter = Exporter::start(USUAL).await;
        let fixture = ProcessFixture::new("rps = -1").await;
        let signal = exporter.signal();
        fixture.knobs_file(
            "flow",
            &format!(
                "[knobs]\nrps = 60.0\nmode = \"auto\"\nmin = 10.0\nmax = 200.0\nsafe_rps = 60.0\n\
                 {signal}\n[governor]\ntick_s = 1.0\nopen_min_s = 2\nclose_wait_s = 0\nconfirm_s = 3\n"
            ),
        );
        let governor = fixture.serve_with(&["--roles", "governor"], &[]);
        governor.logged("leads the governor", LONG).await;
        fixture.target.delay(JOB);
        let jobs = fixture
            .enqueue_as(JOBS, |n| NewJob {
                throttle: "flow".into(),
                ..fixture.call(&format!("flow-{n}"))
            })
            .await;
        assert_eq!(jobs.len(), JOBS);
        let mut processes: Vec<Process> = (0..WORKERS)
            .map(|_| fixture.serve_with(&["--roles", "runner"], &[]))
            .collect();
        for worker in &processes {
            worker.worker_started().await;
        }
        processes.push(governor);
        let store = || {
            RedisStore::connect(&fixture.redis_url, &fixture.prefix)
                .expect("a URL")
                .with_bound(Duration::from_secs(10))
        };
        let (spent_us, stop) = (
            Arc::new(AtomicI64::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        tokio::spawn(spend(
            LeasedStore::new(Arc::new(store()), MAX_HORIZON),
            spent_us.clone(),
            stop.clone(),
        ));
        Self {
            store: store(),
            fixture,
            exporter,
            spent_us,
            stop,
            _processes: processes,
        }
    }

    async fn status(&self) -> Status {
        self.store
            .status(&throttle())
            .await
            .expect("Redis")
            .expect("knobs")
    }

    /// Waits until jobs begin and leased tokens are spent.
    async fn flows(&self) {
        let (calls, used, spent) = (
            self.fixture.target.calls().len(),
            self.status().await.used,
            self.spent_us.load(Ordering::SeqCst),
        );
        eventually("tokens are granted", LONG, || async {
            let more = self.fixture.target.calls().len() >= calls + 20
                && self.status().await.used >= used + 20.0;
            (more && self.spent_us.load(Ordering::SeqCst) > spent).then_some(())
        })
        .await;
    }

    /// Waits until the governor has enough samples that the trip level has no extra margin for
    /// noise.
    async fn is_known_to_be_quiet(&self) {
        eventually(
            "the trip level is where the policy has it",
            LONG,
            || async {
                let level = "select (state->'signals'->0->>'trip_x')::float8 from flyball.governor";
                let level: f64 = sqlx::query_scalar(level)
                    .fetch_optional(self.fixture.pool())
                    .await
                    .ok()??;
                (level < 2.05).then_some(())
            },
        )
        .await;
    }

    /// Raises the load, and records until two seconds pass without a grant.
    async fn trip(&self, load: f64) -> Trip {
        let (rose_us, rose) = (now_us(), Instant::now());
        self.exporter.show(load);
        let (mut stopped_us, mut used, mut granted_us) = (None, f64::NAN, rose_us);
        let deadline = rose + LONG;
        loop {
            let status = self.status().await;
            if status.effective_rps.number() == 0.0 {
                stopped_us.get_or_insert(status.at_us);
            }
            if status.used > used || used.is_nan() {
                (used, granted_us) = (status.used, status.at_us);
            }
            let quiet_us = status.at_us - granted_us.max(self.spent_us.load(Ordering::SeqCst));
            if stopped_us.is_some() && quiet_us > 2_000_000 {
                break;
            }
            assert!(
                Instant::now() < deadline,
                "tokens are granted all the time: {status:?}"
            );
            // Real time: the pace of the looks, by which grants are dated.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let after = |us: i64| (us - rose_us).max(0) as f64 / 1e6;
        let begun = self
            .fixture
            .target
            .calls()
            .iter()
            .map(|(_, at)| at.saturating_duration_since(rose).as_secs_f64())
            .fold(0.0, f64::max);
        Trip {
            stopped: after(stopped_us.expect("it stopped")),
            granted: after(granted_us),
            spent: after(self.spent_us.load(Ordering::SeqCst)),
            begun,
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Spends every available token, at most five per 100 ms, and records the time of the last one.
async fn spend(store: LeasedStore, spent_us: Arc<AtomicI64>, stop: Arc<AtomicBool>) {
    let ask = AcquireRequest {
        throttle: throttle(),
        lanes: vec![LaneRequest {
            key: "leased".into(),
            ..LaneRequest::default()
        }],
        holder: None,
    };
    while !stop.load(Ordering::SeqCst) {
        if store.acquire(&ask).await.lanes[0].granted > 0 {
            spent_us.store(now_us(), Ordering::SeqCst);
        }
        // Real time: the pace of the asks.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_that_rises_stops_four_workers_which_drain_and_begin_again_when_it_is_gone() {
    let flow = Flow::new().await;
    flow.flows().await;

    let trip = flow.trip(WILD).await;
    println!("{trip:?}");
    eventually("the running jobs have ended", LONG, || async {
        let running: i64 = flow
            .fixture
            .count("select count(*) from flyball.lease")
            .await;
        (running == 0).then_some(())
    })
    .await;
    let (calls, used) = (flow.fixture.target.calls().len(), flow.status().await.used);
    // Between two turns, a second apart, each worker asks twice.
    flow.fixture.turns_of_governor("flow", 2).await;
    assert_eq!(
        flow.fixture.target.calls().len(),
        calls,
        "nothing begins while the load is high"
    );
    let status = flow.status().await;
    assert_eq!(
        (status.raw["rps"].as_str(), status.used <= used),
        ("0.000", true),
        "{status:?}"
    );

    flow.exporter.show(GONE);
    flow.flows().await;
    let phases = eventually("the breaker closes", LONG, || async {
        let mut phases: Vec<String> = sqlx::query_scalar(
            "select breaker from flyball.decision where throttle = 'flow' order by id",
        )
        .fetch_all(flow.fixture.pool())
        .await
        .ok()?;
        phases.dedup();
        (phases.len() > 1 && phases.last()? == "closed").then_some(phases)
    })
    .await;
    assert_eq!(phases, ["closed", "open", "half_open", "closed"]);
    let (restarted, before): (f64, f64) = sqlx::query_as(
        "select (select rps from flyball.decision where breaker = 'half_open' order by id limit 1),
                (select previous_rps from flyball.decision where breaker = 'open' order by id limit 1)",
    )
    .fetch_one(flow.fixture.pool())
    .await
    .expect("the decisions");
    println!("restarted at {restarted:.1} rps, {before:.1} before the trip");
    assert!(
        restarted > 0.0 && restarted <= before,
        "{restarted} of {before}"
    );
}

/// Measures many trips, each with its own processes: `make bench-trip`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; FLYBALL_TRIPS of them (10)"]
async fn bench_trips() {
    let trips = std::env::var("FLYBALL_TRIPS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(10);
    let mut seen = Vec::new();
    for n in 1..=trips {
        let flow = Flow::new().await;
        flow.flows().await;
        flow.is_known_to_be_quiet().await;
        // Real time: the load rises anywhere between two ticks.
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..1000))).await;
        let trip = flow.trip(HIGH).await;
        println!("{n}: {trip:.3?}");
        seen.push(trip);
    }
    let row = |what: &str, of: fn(&Trip) -> f64| {
        let mut times: Vec<f64> = seen.iter().map(of).collect();
        times.sort_by(f64::total_cmp);
        println!(
            "| {what} | {:.2} s | {:.2} s |",
            times[times.len() / 2],
            times[times.len() - 1]
        );
    };
    println!("| from the rise of the load until | median | worst of {trips} |\n|---|---|---|");
    row("the knob says stop", |trip| trip.stopped);
    row("Redis grants its last token", |trip| trip.granted);
    row("the last leased token is spent", |trip| trip.spent);
    row("the last job begins", |trip| trip.begun);
}
