//! Who is served when: shares, newcomers, priorities, limits of concurrency, ownership. On a real Postgres and a real Redis.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::jobs::{Context, Job, Kinds, NewJob, Outcome, Queue};
use flyball::runner::{Config, Worker, WorkerMetrics};
use flyball::throttle::{Change, Name, Store};
use serde_json::json;
use tokio::sync::watch;

use crate::support::{Database, database, eventually, patient_store, redis_prefix};

const SOON: Duration = Duration::from_secs(20);

struct House {
    database: Database,
    queue: Queue,
    prefix: String,
    kinds: Kinds,
}

impl House {
    async fn new() -> Self {
        let database = database().await;
        let queue = Queue::connect(database.url(), 8, SOON).await.unwrap();
        Self {
            database,
            queue,
            prefix: redis_prefix(),
            kinds: Kinds::default(),
        }
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(patient_store(&self.prefix).await)
    }

    async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
        let fields: BTreeMap<_, _> = knobs
            .iter()
            .map(|(knob, value)| ((*knob).to_owned(), Some((*value).to_owned())))
            .collect();
        let change = Change {
            fields,
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        self.store()
            .await
            .set(&Name::new(throttle).unwrap(), &change)
            .await
            .unwrap();
    }

    async fn worker(&self, config: Config) -> Worker {
        let queue = Queue::connect(self.database.url(), 6, SOON).await.unwrap();
        let metrics =
            WorkerMetrics::register(&mut prometheus_client::registry::Registry::default());
        Worker::start(
            config,
            queue,
            self.store().await,
            self.kinds.clone(),
            metrics,
        )
        .await
        .unwrap()
    }

    async fn enqueue(&self, throttle: &str, key: &str, priority: i32, count: usize) {
        self.enqueue_as("note", throttle, key, priority, count)
            .await;
    }

    async fn enqueue_as(&self, kind: &str, throttle: &str, key: &str, priority: i32, count: usize) {
        sqlx::query("select flyball.register_kind($1)")
            .bind(kind)
            .execute(&self.queue.pool)
            .await
            .unwrap();
        let job = NewJob {
            throttle: throttle.into(),
            key: key.into(),
            priority,
            ..NewJob::new(kind, json!({}))
        };
        self.queue.enqueue(&vec![job; count]).await.unwrap();
    }

    /// Registers a kind whose jobs, once begun, wait for the gate; counts those that have begun.
    fn gated(&mut self, kind: &str) -> (Arc<AtomicUsize>, watch::Sender<bool>) {
        let (runs, gate) = (Arc::new(AtomicUsize::new(0)), watch::Sender::new(false));
        let (counted, opened) = (runs.clone(), gate.clone());
        self.kinds.register_fn(kind, move |_: Job, _: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut opened = opened.subscribe();
            async move {
                let _ = opened.wait_for(|open| *open).await;
                Outcome::Done
            }
        });
        (runs, gate)
    }

    /// Registers a kind that notes each job as it begins: its key and its priority.
    fn note(&mut self) -> Notes {
        let notes = Notes::default();
        let noted = notes.clone();
        self.kinds.register_fn("note", move |job: Job, _| {
            noted
                .0
                .lock()
                .unwrap()
                .push((Instant::now(), job.key, job.priority));
            std::future::ready(Outcome::Done)
        });
        notes
    }
}

#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<(Instant, String, i32)>>>);

impl Notes {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn keys(&self) -> Vec<String> {
        self.0
            .lock()
            .unwrap()
            .iter()
            .map(|(_, key, _)| key.clone())
            .collect()
    }

    async fn reach(&self, count: usize) {
        eventually(&format!("{count} jobs have begun"), SOON * 3, || async {
            (self.len() >= count).then_some(())
        })
        .await;
    }
}

async fn until_begun(runs: &AtomicUsize, count: usize) {
    eventually(&format!("{count} jobs have begun"), SOON, || async {
        (runs.load(Ordering::SeqCst) == count).then_some(())
    })
    .await;
}

fn config(concurrency: usize) -> Config {
    Config {
        concurrency,
        grace: Duration::from_secs(5),
        ..Config::default()
    }
}

#[tokio::test]
async fn lanes_get_the_shares_of_their_weights() {
    let mut house = House::new().await;
    let notes = house.note();
    house.turn("t", &[("rps", "400"), ("burst", "0.1")]).await;
    for (key, weight) in [("a", 1.0), ("b", 2.0), ("c", 5.0)] {
        house.enqueue("t", key, 1, 2500).await;
        sqlx::query("select flyball.set_weight('t', $1, $2)")
            .bind(key)
            .bind(weight)
            .execute(&house.queue.pool)
            .await
            .unwrap();
    }

    let worker = house.worker(config(64)).await;
    notes.reach(2400).await;
    worker.stop().await;

    // Not only on the whole: each stretch of a second and a half has the shares.
    for (stretch, keys) in notes.keys()[..2400].chunks(600).enumerate() {
        for (key, fair) in [("a", 0.125), ("b", 0.25), ("c", 0.625)] {
            let share = keys.iter().filter(|noted| *noted == key).count() as f64 / 600.0;
            assert!(
                (share / fair - 1.0).abs() < 0.1,
                "{key} got {share} instead of {fair} in stretch {stretch}"
            );
        }
    }
}

#[tokio::test]
async fn throttles_get_the_shares_of_their_weights_of_a_workers_permits() {
    let mut house = House::new().await;
    let notes = Notes::default();
    let noted = notes.clone();
    house.kinds.register_fn("note", move |job: Job, _| {
        noted
            .0
            .lock()
            .unwrap()
            .push((Instant::now(), job.throttle, job.priority));
        async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Outcome::Done
        }
    });
    house.turn("heavy", &[("rps", "-1"), ("weight", "3")]).await;
    house.turn("light", &[("rps", "-1"), ("weight", "1")]).await;
    for throttle in ["heavy", "light"] {
        house.enqueue(throttle, "", 1, 1000).await;
    }

    let worker = house.worker(config(4)).await;
    notes.reach(700).await;
    worker.stop().await;

    // The first answers tell the weights. The middle one of three stretches: a throttle whose store did not answer in time for a
    // moment gets less in that one.
    let mut heavy: Vec<usize> = notes.keys()[100..700]
        .chunks(200)
        .map(|throttles| {
            throttles
                .iter()
                .filter(|throttle| *throttle == "heavy")
                .count()
        })
        .collect();
    heavy.sort_unstable();
    assert!(
        (135..=165).contains(&heavy[1]),
        "{heavy:?} of 200 instead of 150"
    );
}

#[tokio::test]
async fn a_newcomer_is_served_within_one_round_of_a_long_queue() {
    let mut house = House::new().await;
    let notes = house.note();
    house.turn("t", &[("rps", "200"), ("burst", "0.05")]).await;
    for key in ["a", "b", "c", "d"] {
        house.enqueue("t", key, 1, 2000).await;
    }
    let worker = house.worker(config(64)).await;
    notes.reach(300).await;

    // While nothing flows the newcomer is found; how long that takes is not the matter here.
    house.turn("t", &[("rps", "0")]).await;
    house.enqueue("t", "new", 1, 5).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let before = notes.len();
    house.turn("t", &[("rps", "200")]).await;
    eventually("the newcomer begins", SOON, || async {
        notes.keys().contains(&"new".to_owned()).then_some(())
    })
    .await;
    let first = notes.keys().iter().position(|key| key == "new").unwrap();
    worker.stop().await;

    // A round of five lanes, and what may be claimed at once, which begins in the order of age.
    assert!(
        first < before + 5 + 10,
        "{} jobs of others went before it",
        first - before
    );
}

#[tokio::test]
async fn urgent_jobs_go_first_and_each_other_priority_has_its_turn_every_few_seconds() {
    let mut house = House::new().await;
    let notes = house.note();
    house.turn("t", &[("rps", "0")]).await;
    for priority in 1..=3 {
        house.enqueue("t", "k", priority, 60).await;
    }
    house.enqueue("t", "k", 0, 2000).await;
    let worker = house.worker(config(16)).await;
    house.turn("t", &[("rps", "150"), ("burst", "0.05")]).await;

    notes.reach(1000).await;
    worker.stop().await;

    let priorities: Vec<i32> = notes
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|(_, _, priority)| *priority)
        .collect();
    assert!(
        priorities[..100].iter().all(|priority| *priority == 0),
        "the urgent ones went first"
    );
    for passed_over in 1..=3 {
        let turns: Vec<usize> = (0..1000)
            .filter(|place| priorities[*place] == passed_over)
            .collect();
        // A turn is due after two seconds, and three go by at least while 450 jobs flow.
        let waits = [0]
            .iter()
            .chain(&turns)
            .zip(turns.iter().chain(&[1000]))
            .map(|(from, to)| to - from);
        assert!(
            waits.clone().all(|jobs| jobs <= 450),
            "priority {passed_over} had its turns at {turns:?}"
        );
        assert!(turns.len() <= 59, "but only now and then: {turns:?}");
    }
}

#[tokio::test]
async fn no_more_jobs_run_at_once_than_throttle_and_key_allow_in_all_workers_together() {
    let mut house = House::new().await;
    let [now, most, now_a, most_a, done] = [(); 5].map(|()| Arc::new(AtomicUsize::new(0)));
    let counts = (
        now.clone(),
        most.clone(),
        now_a.clone(),
        most_a.clone(),
        done.clone(),
    );
    house
        .kinds
        .register_fn("note", move |job: Job, _: Context| {
            let (now, most, now_a, most_a, done) = counts.clone();
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if job.key == "a" {
                    most_a.fetch_max(now_a.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
                tokio::time::sleep(Duration::from_millis(30)).await;
                if job.key == "a" {
                    now_a.fetch_sub(1, Ordering::SeqCst);
                }
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        });
    house
        .turn(
            "t",
            &[
                ("rps", "-1"),
                ("concurrency", "5"),
                ("key_concurrency", "2"),
            ],
        )
        .await;
    for key in ["a", "b", "c", "d", "e"] {
        house.enqueue("t", key, 1, 30).await;
    }

    let workers = [
        house.worker(config(32)).await,
        house.worker(config(32)).await,
    ];
    eventually("all jobs have run", SOON * 3, || async {
        (done.load(Ordering::SeqCst) == 150).then_some(())
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }

    assert!(
        (4..=5).contains(&most.load(Ordering::SeqCst)),
        "at most 5 of the throttle ran at once: {most:?}"
    );
    assert_eq!(
        most_a.load(Ordering::SeqCst),
        2,
        "at most 2 of a key ran at once"
    );
}

#[tokio::test]
async fn what_a_dead_worker_held_of_a_limit_is_free_again_when_its_time_to_live_is_over() {
    let mut house = House::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    house
        .kinds
        .register_fn("note", move |_: Job, context: Context| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                context.cancelled.cancelled().await;
                Outcome::HandedBack
            }
        });
    house
        .turn("t", &[("rps", "-1"), ("concurrency", "1")])
        .await;
    house.enqueue("t", "", 1, 2).await;
    // A holder that never speaks again, as a killed process does.
    let dead = flyball::throttle::Holder {
        id: "dead".into(),
        ttl: Duration::from_secs(3),
        held: 1,
    };
    house
        .store()
        .await
        .hold(&Name::new("t").unwrap(), &dead, &[(String::new(), 1)])
        .await
        .unwrap();
    let begun = Instant::now();

    let worker = house.worker(config(8)).await;
    eventually("a job runs", SOON, || async {
        (runs.load(Ordering::SeqCst) == 1).then_some(())
    })
    .await;

    assert!(
        begun.elapsed() >= Duration::from_millis(2500),
        "the slot was free too early: {:?}",
        begun.elapsed()
    );
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        runs.load(Ordering::SeqCst),
        1,
        "the other job waits for the one slot"
    );
    house.turn("t", &[("concurrency", "2")]).await;
    eventually("the knob lets the second one run", SOON, || async {
        (runs.load(Ordering::SeqCst) == 2).then_some(())
    })
    .await;
    worker.stop().await;
}

#[tokio::test]
async fn what_a_worker_that_stops_held_of_a_limit_is_free_at_once() {
    let mut house = House::new().await;
    let (runs, gate) = house.gated("note");
    house
        .turn(
            "t",
            &[
                ("rps", "-1"),
                ("concurrency", "1"),
                ("key_concurrency", "1"),
            ],
        )
        .await;
    house.enqueue("t", "k", 1, 2).await;
    // Its words would stand for longer than anybody waits here.
    let first = house
        .worker(Config {
            ttl: Duration::from_secs(600),
            ..config(8)
        })
        .await;
    until_begun(&runs, 1).await;
    let second = house.worker(config(8)).await;
    let stopping = tokio::spawn(first.stop());
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(
        runs.load(Ordering::SeqCst),
        1,
        "the other job waits for the one slot"
    );

    gate.send_replace(true);

    until_begun(&runs, 2).await;
    assert_eq!(stopping.await.unwrap(), 0);
    second.stop().await;
}

#[tokio::test]
async fn what_still_runs_in_a_worker_that_stops_is_counted_until_it_has_ended() {
    let mut house = House::new().await;
    let (runs, gate) = house.gated("note");
    house
        .turn("t", &[("rps", "-1"), ("concurrency", "1")])
        .await;
    house.enqueue("t", "", 1, 2).await;
    let ttl = Duration::from_secs(3);
    let first = house
        .worker(Config {
            ttl,
            grace: Duration::from_secs(60),
            ..config(8)
        })
        .await;
    until_begun(&runs, 1).await;
    let second = house.worker(config(8)).await;

    let stopping = tokio::spawn(first.stop());
    tokio::time::sleep(ttl + Duration::from_millis(1500)).await;
    let while_stopping = runs.load(Ordering::SeqCst);
    gate.send_replace(true);

    assert_eq!(while_stopping, 1, "a second job ran beside the first one");
    until_begun(&runs, 2).await;
    stopping.await.unwrap();
    second.stop().await;
}

async fn owners(house: &House) -> BTreeMap<i32, i64> {
    let sql = "select worker_id, count(*) from flyball.shard where expires_at > clock_timestamp() and worker_id is not null group by 1";
    sqlx::query_as::<_, (i32, i64)>(sql)
        .fetch_all(&house.queue.pool)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

#[tokio::test]
async fn workers_share_the_lanes_out_and_take_over_those_of_a_dead_one_within_fifteen_seconds() {
    let mut house = House::new().await;
    let notes = house.note();
    house.turn("t", &[("rps", "-1")]).await;
    let first = house.worker(config(8)).await;
    assert_eq!(
        owners(&house).await,
        [(first.id(), 64)].into(),
        "a worker alone looks after all lanes"
    );
    let second = house.worker(config(8)).await;
    let both: BTreeMap<i32, i64> = [(first.id(), 32), (second.id(), 32)].into();
    eventually("they share", SOON, || async {
        (owners(&house).await == both).then_some(())
    })
    .await;
    for key in 0..40 {
        house.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(200).await;

    // A third that is gone without a word keeps its part only as long as its word held.
    let gone = flyball::jobs::postgres::NewWorker {
        name: "gone".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(30),
        kinds: vec!["note".into()],
    };
    let gone = house.queue.register(&gone).await.unwrap();
    second.stop().await;
    house
        .queue
        .hold_shards(gone, Duration::from_secs(10))
        .await
        .unwrap();
    assert!(owners(&house).await.contains_key(&gone));
    let since = Instant::now();
    for key in 0..40 {
        house.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(400).await;
    let all: BTreeMap<i32, i64> = [(first.id(), 64)].into();
    eventually("the first looks after all again", SOON, || async {
        (owners(&house).await == all).then_some(())
    })
    .await;
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "{:?}",
        since.elapsed()
    );

    first.stop().await;
    assert_eq!(notes.len(), 400, "each job ran once");
    assert!(
        owners(&house).await.is_empty(),
        "a worker that stops lets its part go at once"
    );
}

#[tokio::test]
async fn a_worker_whose_permits_are_all_in_use_lets_its_lanes_go_until_one_is_free() {
    let mut house = House::new().await;
    let notes = house.note();
    let (long, gate) = house.gated("long");
    house.turn("t", &[("rps", "-1")]).await;
    house.enqueue_as("long", "t", "", 1, 2).await;
    let first = house.worker(config(2)).await;
    until_begun(&long, 2).await;

    let second = house.worker(config(2)).await;

    let all: BTreeMap<i32, i64> = [(second.id(), 64)].into();
    eventually("the second looks after all", SOON, || async {
        (owners(&house).await == all).then_some(())
    })
    .await;
    for key in 0..40 {
        house.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(200).await;
    gate.send_replace(true);
    let both: BTreeMap<i32, i64> = [(first.id(), 32), (second.id(), 32)].into();
    eventually("they share again", SOON, || async {
        (owners(&house).await == both).then_some(())
    })
    .await;
    tokio::join!(first.stop(), second.stop());
}

#[tokio::test]
async fn the_last_worker_keeps_its_lanes_however_busy_it_is() {
    let mut house = House::new().await;
    let (long, gate) = house.gated("long");
    house.turn("t", &[("rps", "-1")]).await;
    house.enqueue_as("long", "t", "", 1, 2).await;
    let worker = house.worker(config(2)).await;
    until_begun(&long, 2).await;

    // Two seconds without a free permit are enough to let lanes go. What it renews after that, it keeps.
    let sql = "select clock_timestamp() + interval '2 s'";
    let unable_at: jiff_sqlx::Timestamp = sqlx::query_scalar(sql)
        .fetch_one(&house.queue.pool)
        .await
        .unwrap();
    eventually("it renews its part", SOON, || async {
        let sql = "select bool_and(expires_at - interval '10 s' > $1) from flyball.shard";
        let is_renewed: bool = sqlx::query_scalar(sql)
            .bind(unable_at)
            .fetch_one(&house.queue.pool)
            .await
            .unwrap();
        is_renewed.then_some(())
    })
    .await;

    assert_eq!(owners(&house).await, [(worker.id(), 64)].into());
    gate.send_replace(true);
    worker.stop().await;
}

#[tokio::test]
async fn while_everything_is_paused_no_job_begins() {
    let mut house = House::new().await;
    let notes = house.note();
    house.turn("t", &[("rps", "-1")]).await;
    let worker = house.worker(config(8)).await;
    house.enqueue("t", "", 1, 1).await;
    notes.reach(1).await;

    sqlx::query("select flyball.pause_all('a test')")
        .execute(&house.queue.pool)
        .await
        .unwrap();
    // The word travels with the heartbeat, which comes every second.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    house.enqueue("t", "", 1, 5).await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(notes.len(), 1);
    sqlx::query("select flyball.resume_all()")
        .execute(&house.queue.pool)
        .await
        .unwrap();

    notes.reach(6).await;
    worker.stop().await;
}
