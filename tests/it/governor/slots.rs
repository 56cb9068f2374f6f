//! A governor that sets the number of concurrent jobs by their durations, which grow with
//! concurrency.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::governor::{Decision, Journal};
use flyball::jobs::{Kinds, NewJob, Outcome};
use flyball::throttle::concurrency_number;
use flyball::throttle::{Change, Name, RedisStore, Status, Store};
use serde_json::json;

use crate::support::{Database, app_environment, database, eventually, patient_store};

const SOON: Duration = Duration::from_secs(120);

/// The service: a response takes this many milliseconds per open request.
struct Side {
    open: AtomicU32,
    each_ms: AtomicU64,
}

struct Open<'a>(&'a AtomicU32);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A runner and a governor that share only the stores, and an endless queue.
struct SlotsFixture {
    runner: App,
    governor: App,
    side: Arc<Side>,
    store: RedisStore,
    database: Database,
}

impl SlotsFixture {
    async fn new(concurrency: &str) -> Self {
        let (database, folder) = (database().await, tempfile::tempdir().unwrap());
        let text = format!(
            "[knobs]\nrps = -1\n{concurrency}mode = \"auto\"\nmin = 1\nmax = 60\n\
             [[signal]]\nname = \"answers\"\nsource = \"feedback\"\nquery = \"latency\"\nsetpoint = 0.4\n\
             [governor]\nactuator = \"concurrency\"\ntick_s = 1\nintegral_min_s = 5\nhold_s = 5\n"
        );
        std::fs::write(folder.path().join("calls.toml"), text).unwrap();
        let mut environment = app_environment(&database, folder.path()).await;
        environment.insert("PROMETHEUS_URL".to_owned(), "http://127.0.0.1:9".to_owned());
        environment.insert("FLYBALL_CONCURRENCY".to_owned(), "80".to_owned());
        let settings = Settings::load(None, &environment).unwrap();
        let side = Arc::new(Side {
            open: AtomicU32::new(0),
            each_ms: AtomicU64::new(20),
        });
        let mut kinds = Kinds::default();
        let requested = side.clone();
        kinds.register_fn("call", move |_, _| {
            let side = requested.clone();
            async move {
                let open = side.open.fetch_add(1, Ordering::SeqCst) + 1;
                let _open = Open(&side.open);
                // Real time: the latency of an answer, which grows with the open calls.
                tokio::time::sleep(Duration::from_millis(
                    u64::from(open) * side.each_ms.load(Ordering::SeqCst),
                ))
                .await;
                Outcome::Done
            }
        });
        let of = |runner, governor| Roles {
            api: false,
            runner,
            governor,
        };
        let runner = App::start(&settings, of(true, false), kinds).await.unwrap();
        let governor = App::start(&settings, of(false, true), Kinds::default())
            .await
            .unwrap();
        let job = |_| NewJob {
            throttle: "calls".into(),
            ..NewJob::new("call", json!({}))
        };
        for _ in 0..4 {
            runner
                .queue
                .enqueue(&(0..5000).map(job).collect::<Vec<_>>())
                .await
                .unwrap();
        }
        Self {
            runner,
            governor,
            side,
            store: patient_store(&settings.redis_prefix).await,
            database,
        }
    }

    async fn status(&self) -> Status {
        let name = Name::new("calls").unwrap();
        self.store.status(&name).await.unwrap().unwrap()
    }

    async fn newest(&self) -> Option<Decision> {
        Journal::new(self.database.pool().clone())
            .recent(Some("calls"), 1)
            .await
            .unwrap()
            .pop()
    }

    /// Waits until the knob is in this range; on failure reports the observed values.
    async fn comes_to(&self, what: &str, slots: std::ops::RangeInclusive<i64>) -> Status {
        eventually(what, SOON, || async {
            let status = self.status().await;
            slots
                .contains(&concurrency_number(status.knobs.concurrency))
                .then_some(status)
        })
        .await
    }

    async fn turn(&self, field: &str, text: &str) {
        let fields = BTreeMap::from([(field.to_owned(), Some(text.to_owned()))]);
        let change = Change {
            fields,
            by: "ann".to_owned(),
            ..Change::default()
        };
        self.store
            .set(&Name::new("calls").unwrap(), &change)
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn the_governor_turns_the_slots_by_how_long_real_jobs_take() {
    let fixture = SlotsFixture::new("concurrency = 2\n").await;

    // Twenty at once take 0.4 s, and longer on a busy machine.
    fixture
        .comes_to("it grows while answers are quick", 9..=60)
        .await;
    let newest = eventually("a decision in slots is kept", SOON, || async {
        fixture
            .newest()
            .await
            .filter(|newest| newest.terms["actuator"] == "concurrency")
    })
    .await;
    assert!(newest.reason.contains(" slots"), "{}", newest.reason);
    let status = fixture.status().await;
    assert_eq!(
        (status.knobs.rps.number(), status.knobs.valid_until_ms),
        (-1.0, None),
        "slots have no lease, and the rate is left alone"
    );

    fixture.side.each_ms.store(100, Ordering::SeqCst);
    let before = fixture
        .comes_to("it falls when each takes five times as long", 1..=7)
        .await;
    assert_eq!(before.raw["governed"], before.raw["concurrency"]);

    fixture.side.each_ms.store(20, Ordering::SeqCst);
    fixture.comes_to("it comes back", 9..=60).await;

    // A manual value is the new starting point, through whichever interface it was set.
    fixture.turn("concurrency", "3").await;
    eventually("the governor knows the hand", SOON, || async {
        fixture.newest().await.filter(|newest| {
            newest.limiting == "person" && newest.reason.contains("ann set 3 slots")
        })
    })
    .await;
    assert!(concurrency_number(fixture.status().await.knobs.concurrency) <= 3);
    fixture
        .comes_to("it grows again after the hold", 5..=60)
        .await;

    fixture.governor.stop().await;
    fixture.runner.stop().await;
}

#[tokio::test]
async fn without_a_limit_it_begins_at_the_most_allowed_and_a_dead_governor_leaves_its_last_slots() {
    let fixture = SlotsFixture::new("").await;
    fixture.side.each_ms.store(60, Ordering::SeqCst);

    fixture
        .comes_to("no limit becomes the most allowed, and less", 1..=20)
        .await;
    let SlotsFixture {
        runner,
        governor,
        store,
        ..
    } = fixture;
    governor.stop().await;
    let name = Name::new("calls").unwrap();
    let left = store.status(&name).await.unwrap().unwrap();
    assert!((1..=60).contains(&concurrency_number(left.knobs.concurrency)) && !left.lease_expired);
    // No field of the hash expires: the last value stays.
    assert!(!left.raw.contains_key("valid_until"), "{:?}", left.raw);

    runner.stop().await;
}
