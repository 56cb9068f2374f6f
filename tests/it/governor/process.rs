//! Governors as separate processes: leadership, and the powers of a former leader.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::governor::Journal;
use flyball::governor::postgres::Error as JournalError;
use flyball::throttle::{AcquireRequest, Change, Error, LaneRequest, Name, RedisStore, Store};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::eventually;
use crate::support::process::{Process, ProcessFixture};

const SOON: Duration = Duration::from_secs(60);

/// Longer than the lease of a knob.
const LAPSE: Duration = Duration::from_secs(90);

/// Twice the lease of a leader.
const TWO_LEASES: Duration = Duration::from_secs(20);

/// A policy on the depth of its own queue.
pub const POLICY: &str = "
[knobs]
rps = 50.0
mode = \"auto\"
min = 1.0
max = 2000.0
safe_rps = 5.0

[[signal]]
name = \"backlog\"
source = \"depth\"
query = \"governed\"
setpoint = 1000.0

[governor]
tick_s = 1.0
";

async fn fixture() -> ProcessFixture {
    let fixture = ProcessFixture::new("rps = -1").await;
    fixture.knobs_file("governed", POLICY);
    fixture
}

fn governor(fixture: &ProcessFixture) -> Process {
    fixture.serve_with(&["--roles", "governor"], &[])
}

fn throttle() -> Name {
    Name::new("governed").unwrap()
}

/// Waits until a leader of this term has turned the knob.
async fn turned_by(fixture: &ProcessFixture, term: u64) {
    eventually(&format!("term {term} turns the knob"), SOON, || async {
        let raw = fixture.status("governed").await?.raw;
        (raw.get("term") == Some(&term.to_string())).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_queue_of_a_throttle_that_does_not_exist_is_not_an_empty_one_and_why_says_so() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let misspelt = "
[[signal]]
name = \"misspelt\"
source = \"depth\"
query = \"govrened\"
setpoint = 1000.0

[[signal]]
name = \"complaints\"
source = \"complaints\"
query = \"marketnig\"
";
    fixture.knobs_file("governed", &format!("{POLICY}{misspelt}"));
    let _governor = governor(&fixture);
    let signals = eventually("the known queue is read", SOON, || async {
        let mut command = fixture.command();
        let output = command.args(["why", "governed", "--json"]).output().ok()?;
        let answer: Value = serde_json::from_slice(&output.stdout).ok()?;
        let signals = answer["governor"]["signals"].clone();
        // A busy machine may answer too late at first.
        let is_told = |n: usize| signals[n]["problem"].as_str()?.strip_prefix("there is no ");
        let is_read = signals[0]["value"] == 0.0 && is_told(1).and(is_told(2)).is_some();
        is_read.then_some(signals)
    })
    .await;
    for (signal, name, what) in [
        (&signals[1], "misspelt", "throttle \"govrened\""),
        (&signals[2], "complaints", "pool \"marketnig\""),
    ] {
        assert_eq!(
            (&signal["name"], &signal["value"], &signal["problem"]),
            (
                &json!(name),
                &Value::Null,
                &json!(format!(
                    "there is no {what}, which the signal's query names"
                ))
            ),
            "{signals}"
        );
    }
}

#[tokio::test]
async fn a_process_without_policies_keeps_no_other_from_governing() {
    let fixture = ProcessFixture::new("rps = -1").await;
    let without = governor(&fixture);
    without.logged("it does not lead the governor", SOON).await;
    fixture.knobs_file("governed", POLICY);
    let _governor = governor(&fixture);
    turned_by(&fixture, 1).await;
}

#[tokio::test]
async fn another_governor_leads_within_two_leases_without_a_bump_and_the_old_one_is_refused() {
    let fixture = fixture().await;
    let first = governor(&fixture);
    first.logged("leads the governor term=1", SOON).await;
    turned_by(&fixture, 1).await;
    let mut second = governor(&fixture);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let watcher = tokio::spawn(watch(
        RedisStore::connect(&fixture.redis_url, &fixture.prefix)
            .unwrap()
            .with_bound(Duration::from_secs(10)),
        seen.clone(),
    ));

    // While suspended, it neither renews its lease nor notices the expiry.
    first.signal(Signal::STOP);
    let asleep = Instant::now();
    second.logged("leads the governor term=2", TWO_LEASES).await;
    println!(
        "the second led {:?} after the first fell asleep",
        asleep.elapsed()
    );
    turned_by(&fixture, 2).await;
    first.signal(Signal::CONT);
    // It steps down because its lease has expired, because it sees a later term, or because a call
    // of Redis took as long as its sleep, depending on which it notices first.
    let steps_down = [
        "no longer leads the governor",
        "resting",
        "another process may lead the governor",
    ];
    first.logged_any(&steps_down, SOON).await;

    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let fields = BTreeMap::from([("rps".to_owned(), Some("777".to_owned()))]);
    let late = Change {
        fields,
        term: Some(1),
        by: "governor".to_owned(),
        ..Change::default()
    };
    let refused = store.set(&throttle(), &late).await.unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, Error::Conflict { .. }));
    let refused = Journal::new(fixture.pool().clone())
        .save("governed", 1, &json!({}))
        .await
        .unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, JournalError::Fenced { .. }));

    second.kill();
    let killed = Instant::now();
    first.logged("leads the governor term=3", TWO_LEASES).await;
    println!(
        "the first led again {:?} after the second was killed",
        killed.elapsed()
    );
    turned_by(&fixture, 3).await;
    watcher.abort();
    let seen = seen.lock().unwrap().clone();
    assert!(seen.len() > 2, "{seen:?}");
    assert!(
        seen.windows(2).all(|pair| pair[0].0 <= pair[1].0),
        "terms only grow: {seen:?}"
    );
    let (least, most) = seen
        .iter()
        .fold((f64::MAX, 0f64), |(least, most), (_, rps)| {
            (least.min(*rps), most.max(*rps))
        });
    println!(
        "in {} looks the rate in force was {least} to {most}",
        seen.len()
    );
    assert!(
        least >= 45.0 && most <= 55.0,
        "the knob jumped: {least} to {most}"
    );
}

/// Records the term and the effective rate every 50 ms.
async fn watch(store: RedisStore, seen: Arc<Mutex<Vec<(u64, f64)>>>) {
    loop {
        if let Ok(Some(status)) = store.status(&throttle()).await {
            let term = status
                .raw
                .get("term")
                .and_then(|term| term.parse().ok())
                .unwrap_or(0);
            seen.lock()
                .unwrap()
                .push((term, status.effective_rps.number()));
        }
        // Real time: the pace of the looks.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn when_all_governors_are_dead_the_throttle_itself_falls_back_to_safe_rps() {
    let fixture = fixture().await;
    let mut only = governor(&fixture);
    turned_by(&fixture, 1).await;
    let before = fixture.status("governed").await.unwrap();
    assert_eq!(
        (before.effective_rps.number(), before.lease_expired),
        (50.0, false)
    );

    only.kill();
    let killed = Instant::now();

    let store = RedisStore::connect(&fixture.redis_url, &fixture.prefix)
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let ask = AcquireRequest {
        throttle: throttle(),
        lanes: vec![LaneRequest::default()],
        holder: None,
    };
    eventually("acquire goes by safe_rps", LAPSE, || async {
        (store.peek(&ask).await.effective_rps.number() == 5.0).then_some(())
    })
    .await;
    let after = fixture.status("governed").await.unwrap();
    println!(
        "safe_rps {:?} after the kill; the knob still says {}",
        killed.elapsed(),
        after.knobs.rps.number()
    );
    assert_eq!(
        (
            after.knobs.rps.number(),
            after.effective_rps.number(),
            after.lease_expired
        ),
        (50.0, 5.0, true)
    );
}

#[tokio::test]
async fn a_database_from_an_older_copy_counts_terms_on_from_where_the_knobs_stand() {
    let fixture = fixture().await;
    let mut first = governor(&fixture);
    turned_by(&fixture, 1).await;
    first.kill();
    // The knobs hold the terms of a lost database, and no leader renews them.
    fixture
        .redis("HSET {}throttle:governed:knobs term 57 valid_until 1000")
        .await;

    let second = governor(&fixture);
    second
        .logged("another governor leads with a newer term", LAPSE)
        .await;
    turned_by(&fixture, 58).await;
}
