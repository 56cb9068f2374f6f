//! The cost of losing Redis by the knob `on_store_loss`: killed and restarted empty, or suspended
//! and resumed, under the load of several processes.
//!
//! The timelines are printed:
//! `cargo test --workspace --test it -- throttle::loss --nocapture --test-threads 1`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flyball::app::Roles;
use flyball::throttle::{AcquireRequest, Change, Holder, Name, RedisStore, Store};
use tokio::task::JoinSet;

use super::ask;
use super::world::{app_of, change};
use crate::support::app::RUNNER;
use crate::support::redis_server::Server;
use crate::support::timeline::{Control, Entry, Habit, Timeline};
use crate::support::{database, eventually};

/// The store's default timeout.
const BOUND: Duration = Duration::from_millis(50);

const WORKERS: usize = 3;
const CLIENTS_PER_WORKER: usize = 2;
const CLIENTS: usize = WORKERS * CLIENTS_PER_WORKER;

const RPS: f64 = 600.0;
const WINDOW: Duration = Duration::from_millis(400);
/// The bucket's maximum of tokens.
const DEPTH: f64 = 240.0;

const HABIT: Habit = Habit {
    want: 8,
    rest: Duration::from_millis(3),
};

/// The times for which Redis answers, is lost, and answers again.
const LOST: Duration = Duration::from_millis(2000);
const BEFORE: Duration = Duration::from_millis(700);
const AFTER: Duration = Duration::from_millis(1000);

const SOON: Duration = Duration::from_secs(30);

/// A way to lose Redis.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    Killed,
    Hung,
}

/// A finished run.
struct Run {
    timeline: Timeline,
    control: Arc<Control>,
    /// The times at which Redis was certainly lost, began to come back, was back, and had knobs
    /// again.
    lost: Duration,
    returning: Duration,
    there: Duration,
    returned: Duration,
    ended: Duration,
    /// The tokens that the bucket counts as taken.
    used: f64,
}

async fn set(store: &RedisStore, word: &str) {
    let knobs = [
        ("rps", "600"),
        ("burst", "1"),
        ("window", "0.4"),
        ("on_store_loss", word),
    ];
    let fields: BTreeMap<_, _> = knobs
        .iter()
        .map(|(field, text)| ((*field).to_owned(), Some((*text).to_owned())))
        .collect();
    let change = Change {
        fields,
        by: "test".into(),
        why: "test".into(),
        create: true,
        ..Change::default()
    };
    eventually("Redis is there", SOON, || async {
        store.set(&throttle(), &change).await.ok()
    })
    .await;
}

fn throttle() -> Name {
    Name::new("flow").unwrap()
}

async fn run(word: &str, loss: Loss) -> Run {
    let mut server = Server::start();
    let stores: Vec<_> = (0..WORKERS)
        .map(|_| Arc::new(RedisStore::connect(&server.url(), "").unwrap()))
        .collect();
    stores
        .iter()
        .for_each(|store| store.set_workers(WORKERS as u32));
    set(&stores[0], word).await;
    let timeline = Timeline::new(Instant::now());
    let (stop, control) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(Control::default()),
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(control.clone().watch(stop.clone()));
    for client in 0..CLIENTS {
        let store = stores[client % WORKERS].clone();
        tasks.spawn(
            timeline
                .clone()
                .call(client, store, throttle(), HABIT, stop.clone()),
        );
    }
    // Real time: the rate before the loss is measured.
    tokio::time::sleep(BEFORE).await;
    // Each store has read the knob: a worker that never asked grants nothing, whatever its value.
    let has_seen = |client| {
        timeline
            .entries()
            .iter()
            .any(|entry| entry.client % WORKERS == client && entry.is_stored)
    };
    eventually("all have read the knob", SOON, || async {
        (0..WORKERS).all(has_seen).then_some(())
    })
    .await;

    match loss {
        Loss::Killed => server.kill(),
        Loss::Hung => server.freeze(),
    }
    let lost = timeline.now();
    // Real time: the rate during the loss is measured.
    tokio::time::sleep(LOST).await;
    let returning = timeline.now();
    if loss == Loss::Killed {
        server.restart();
    } else {
        server.thaw();
    }
    let there = timeline.now();
    if loss == Loss::Killed {
        // Restores the knobs from their record, as a process does.
        set(&stores[0], word).await;
    }
    let returned = timeline.now();
    eventually("it flows after the return", SOON, || async {
        timeline
            .within(returned, Duration::MAX)
            .iter()
            .any(|entry| entry.is_stored && entry.granted > 0)
            .then_some(())
    })
    .await;
    // Real time: the rate after the loss is measured.
    tokio::time::sleep(AFTER).await;
    let ended = timeline.now();
    stop.store(true, Ordering::Relaxed);
    while let Some(client) = tasks.join_next().await {
        client.expect("a client ended by itself");
    }
    let status = eventually("the knobs", SOON, || async {
        stores[0].status(&throttle()).await.ok()?
    });
    let used = status.await.used;
    let (how, back) = match loss {
        Loss::Killed => ("killed", "started again, empty"),
        Loss::Hung => ("hangs", "goes on"),
    };
    let events = [(lost, how), (returning, back)];
    println!(
        "{}",
        timeline.table(&format!("on_store_loss {word}, Redis {how}"), &events)
    );
    Run {
        timeline,
        control,
        lost,
        returning,
        there,
        returned,
        ended,
        used,
    }
}

impl Run {
    /// Returns the calls made and answered while Redis was lost.
    fn meanwhile(&self) -> Vec<Entry> {
        self.timeline.within(self.lost, self.returning)
    }

    /// Asserts the guarantee of every value of the knob.
    fn keeps_the_law(&self) {
        let longest = self.timeline.longest();
        assert!(
            longest <= self.control.allows(BOUND),
            "a call took {longest:?}"
        );
        for (from, to) in [(Duration::ZERO, self.lost), (self.returned, self.ended)] {
            let beyond = self.timeline.beyond(RPS, from, to);
            assert!(
                beyond <= DEPTH + 2.0,
                "{beyond} beyond the line from {from:?} to {to:?}"
            );
        }
        let meanwhile = self.meanwhile();
        assert!(meanwhile.len() > CLIENTS, "clients go on");
        assert!(
            meanwhile.iter().all(|entry| !entry.is_stored),
            "answered by a store that is lost"
        );
    }

    /// A hung Redis costs the pending calls one timeout each, and later calls nothing.
    fn waits_once(&self) {
        let waited = self
            .meanwhile()
            .iter()
            .filter(|entry| entry.end - entry.begin >= BOUND)
            .count();
        let allowed = CLIENTS * (2 + self.control.stalls());
        assert!(
            waited <= allowed,
            "{waited} calls waited; {allowed} were under way or may have been held up by the machine"
        );
    }

    /// A resumed Redis carries out abandoned calls. Their tokens are unused, and at most as many as
    /// requested.
    fn charges_no_more_than_calls_under_way(&self) {
        let entries = self.timeline.entries();
        let granted: u32 = entries
            .iter()
            .filter(|entry| entry.is_stored)
            .map(|entry| entry.granted)
            .sum();
        let given_up = entries
            .iter()
            .filter(|entry| !entry.is_stored && entry.end - entry.begin >= BOUND)
            .count();
        let unused = self.used - f64::from(granted);
        println!(
            "charged and used by nobody: {unused} tokens of {given_up} calls that were given up\n"
        );
        assert!(
            (0.0..=f64::from(HABIT.want) * given_up as f64).contains(&unused),
            "{unused} of {given_up} calls"
        );
    }

    /// Asserts the guarantee of each kind of loss after Redis' return.
    fn goes_on_after(&self, loss: Loss) {
        match loss {
            Loss::Killed => self.begins_with_one_token(),
            Loss::Hung => {
                self.waits_once();
                self.charges_no_more_than_calls_under_way();
            }
        }
    }

    /// A Redis that comes back empty begins with one token instead of a full bucket.
    fn begins_with_one_token(&self) {
        let first = self.timeline.within(self.there, self.ended);
        let first = first
            .iter()
            .filter(|entry| entry.is_stored && entry.granted > 0);
        let mut ends: Vec<Duration> = first.clone().map(|entry| entry.end).collect();
        ends.sort();
        for end in ends {
            let granted: u32 = first
                .clone()
                .filter(|entry| entry.end <= end)
                .map(|entry| entry.granted)
                .sum();
            let line = 2.0 + RPS * (end - self.there).as_secs_f64();
            assert!(
                f64::from(granted) <= line,
                "{granted} granted {:?} after the return",
                end - self.there
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_grants_nothing_while_redis_is_lost() {
    for loss in [Loss::Killed, Loss::Hung] {
        let run = run("closed", loss).await;
        run.keeps_the_law();
        assert!(
            run.meanwhile().iter().all(|entry| entry.granted == 0),
            "closed grants nothing"
        );
        run.goes_on_after(loss);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_grants_all_while_redis_is_lost() {
    for loss in [Loss::Killed, Loss::Hung] {
        let run = run("open", loss).await;
        run.keeps_the_law();
        assert!(
            run.meanwhile()
                .iter()
                .all(|entry| entry.granted == HABIT.want),
            "open grants all"
        );
        run.goes_on_after(loss);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_grants_each_worker_its_share_and_half_of_it_with_each_window() {
    for loss in [Loss::Killed, Loss::Hung] {
        let run = run("local", loss).await;
        run.keeps_the_law();
        for worker in 0..WORKERS {
            let own: Vec<Entry> = run
                .meanwhile()
                .into_iter()
                .filter(|entry| entry.client % WORKERS == worker)
                .collect();
            let begun = own
                .iter()
                .map(|entry| entry.begin)
                .min()
                .expect("clients go on");
            let share = RPS / WORKERS as f64;
            let mut ends: Vec<Duration> = own.iter().map(|entry| entry.end).collect();
            ends.sort();
            for end in ends {
                let granted: u32 = own
                    .iter()
                    .filter(|entry| entry.end <= end)
                    .map(|entry| entry.granted)
                    .sum();
                let most = halving(share, end.saturating_sub(begun));
                assert!(
                    f64::from(granted) <= most + 3.0,
                    "worker {worker}: {granted} of {most} after {:?}",
                    end - begun
                );
            }
            let all: u32 = own.iter().map(|entry| entry.granted).sum();
            assert!(all > 0, "worker {worker} works on");
        }
        run.goes_on_after(loss);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_workers_takes_a_share_beside_those_that_live() {
    let (mut server, database, folder) = (
        Server::start(),
        database().await,
        tempfile::tempdir().unwrap(),
    );
    let worker = app_of(RUNNER, &server, &database, folder.path()).await;
    let alone = Roles {
        api: true,
        runner: false,
        governor: false,
    };
    let api = app_of(alone, &server, &database, folder.path()).await;
    let knobs = [
        ("rps", "-1"),
        ("concurrency", "10"),
        ("on_store_loss", "local"),
    ];
    let set = api.throttles.set(&throttle(), &change(&knobs)).await;
    set.unwrap();
    let jobs = AcquireRequest {
        holder: Some(Holder {
            id: "caller".to_owned(),
            ttl: SOON,
            held: 0,
        }),
        ..ask("flow", &[("", 100, 1.0)])
    };
    eventually("Redis has told the knobs", SOON, || async {
        (api.throttles.acquire(&jobs).await.at_us > 0).then_some(())
    })
    .await;

    server.kill();

    eventually("half of the slots are the worker's", SOON, || async {
        let answer = api.throttles.acquire(&jobs).await;
        (answer.at_us == 0 && answer.lanes[0].granted == 5).then_some(())
    })
    .await;
    api.stop().await;
    worker.stop().await;
}

/// Returns the sum of a rate that is halved in each window.
fn halving(rps: f64, time: Duration) -> f64 {
    let (window, mut left, mut rps, mut sum) = (WINDOW.as_secs_f64(), time.as_secs_f64(), rps, 0.0);
    while left > 0.0 {
        sum += rps * left.min(window);
        left -= window;
        rps /= 2.0;
    }
    sum
}
