//! Pushes without a rate limit: a governor sets the number of concurrent requests by the p99 of
//! their latency. Everything is real, from jobs in Postgres to HTTP/2 streams, except Apple and
//! Google: the fake servers here become slower with load.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flyball::app::{App, Roles};
use flyball::config::Settings;
use flyball::governor::{Decision, Journal};
use flyball::jobs::{Kinds, NewJob};
use flyball::throttle::{Name, Status, concurrency_number};
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Latency};
use serde_json::json;

use crate::docs::{blocks, read};
use crate::support::{Database, app_environment, database, eventually, poll};

const SOON: Duration = Duration::from_secs(120);

/// The latency of a push on an idle server; long compared with the pauses of a busy machine.
const BASE: Duration = Duration::from_millis(200);

/// The server's parallelism: 40 pushes per second, beyond which latency rises.
const AT_ONCE: usize = 8;

/// The initial knob, at which a push takes 2.6 s, four times the setpoint.
const BEGIN: i64 = 100;

/// A public EC key for tests only.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgAN3yl1IKw7xZRfPK
qh7pp3L8jWluXtvVRhYT7DUIMuyhRANCAASiJPhjlzjA7Rd+ip5/+kDrfUt9jKl5
6yoFAEV/y8n7mz3koJFGChVnfpDefaGmNksiUjbqbavf1KkKDowl0k3x
-----END PRIVATE KEY-----
";

/// A public RSA key for tests only.
const RSA: &str = include_str!("../../../lab/fakes/src/keys/test_only_sns_key.pem");

/// A process with a pool `push`, the knobs file of the guide, and a fake server with limited
/// parallelism.
struct PushFixture {
    app: App,
    fake: Fake,
    database: Database,
    sent: AtomicUsize,
    is_apns: bool,
}

fn latency(at_once: usize) -> Option<Latency> {
    Some(Latency {
        base: BASE,
        at_once,
    })
}

impl PushFixture {
    /// The knobs are those of `knobs/examples/push.toml`; `law` is added to the last table,
    /// `[governor]`.
    async fn new(speaks: FakeProvider, law: &str) -> Self {
        let is_apns = speaks == FakeProvider::Apns;
        let fake = Fake::start(
            speaks,
            FakeOptions {
                latency: latency(AT_ONCE),
                ..FakeOptions::default()
            },
        )
        .await
        .unwrap();
        let (database, folder) = (database().await, tempfile::tempdir().unwrap());
        let knobs = folder.path().join("knobs");
        std::fs::create_dir(&knobs).unwrap();
        std::fs::write(
            knobs.join("push.toml"),
            format!("{}{law}", read("knobs/examples/push.toml")),
        )
        .unwrap();
        let secret = folder.path().join("secret");
        let account = if is_apns {
            std::fs::write(&secret, KEY).unwrap();
            format!(
                "team_id = \"TEAM123456\"\nkey_id = \"KEY1234567\"\nprivate_key_file = {:?}\ntopic = \"com.example.app\"\n\
                 streams_per_connection = 10\n",
                secret.display().to_string()
            )
        } else {
            let service = json!({
                "type": "service_account", "project_id": "project", "private_key": RSA, "private_key_id": "k1",
                "client_email": "sender@project.iam.gserviceaccount.com", "token_uri": format!("{}/token", fake.url()),
            });
            std::fs::write(&secret, service.to_string()).unwrap();
            format!(
                "service_account_file = {:?}\n",
                secret.display().to_string()
            )
        };
        let file = folder.path().join("flyball.toml");
        let text = format!(
            "allow_private_urls = true\n[pools.push]\nprovider = \"{}\"\nbase_url = {:?}\ntimeout_s = 30\nbreaker_failures = 1000\n\
             [[pools.push.accounts]]\nname = \"main\"\n{account}",
            if is_apns { "apns" } else { "fcm" },
            fake.url(),
        );
        std::fs::write(&file, text).unwrap();
        let mut environment = app_environment(&database, &knobs).await;
        environment.insert("PROMETHEUS_URL".to_owned(), "http://127.0.0.1:9".to_owned());
        environment.insert("FLYBALL_CONCURRENCY".to_owned(), "150".to_owned());
        let settings =
            Settings::load(Some(&file), &environment).unwrap_or_else(|error| panic!("{error}"));
        let roles = Roles {
            api: false,
            runner: true,
            governor: true,
        };
        let app = App::start(&settings, roles, Kinds::default())
            .await
            .unwrap_or_else(|error| panic!("{error:#}"));
        Self {
            app,
            fake,
            database,
            sent: AtomicUsize::new(0),
            is_apns,
        }
    }

    /// Enqueues `count` pushes. Every `bad_every`-th has an invalid device token; 0 for none.
    async fn send(&self, many: usize, bad_every: usize) {
        let job = |_| {
            let n = self.sent.fetch_add(1, Ordering::SeqCst);
            let is_bad = bad_every > 0 && n.is_multiple_of(bad_every);
            let to = if is_bad {
                format!("nodevice{n:08}")
            } else {
                format!("{n:064x}")
            };
            let job = NewJob::new(
                "notification",
                json!({"channel": "push", "to": to, "body": "hello"}),
            )
            .throttle("push");
            if bad_every > 0 { job.priority(0) } else { job }
        };
        for _ in 0..many.div_ceil(2000) {
            self.app
                .queue
                .enqueue(&(0..many.min(2000)).map(job).collect::<Vec<_>>())
                .await
                .unwrap();
        }
    }

    async fn status(&self) -> Status {
        // The process's own store has the timeout of a worker, which is too short here.
        let name = Name::new("push").unwrap();
        eventually("an answer of Redis", SOON, || async {
            self.app.throttles.status(&name).await.ok().flatten()
        })
        .await
    }

    async fn knob(&self) -> i64 {
        concurrency_number(self.status().await.knobs.concurrency)
    }

    async fn newest(&self) -> Decision {
        eventually("a decision", SOON, || async {
            Journal::new(self.database.pool().clone())
                .recent(Some("push"), 1)
                .await
                .unwrap()
                .pop()
        })
        .await
    }

    /// Waits until the knob is in this range and returns it; on failure prints the last decision.
    async fn comes_to(&self, what: &str, slots: std::ops::RangeInclusive<i64>) -> i64 {
        let begun = Instant::now();
        let came = poll(SOON, || async {
            let knob = self.knob().await;
            slots.contains(&knob).then_some(knob)
        })
        .await;
        let reason = self.newest().await.reason;
        let Some(knob) = came else {
            panic!(
                "{what}: the knob did not come to {slots:?} but is {}: {reason}",
                self.knob().await
            );
        };
        println!(
            "{what}: {knob} after {:.0} s; {reason}",
            begun.elapsed().as_secs_f64()
        );
        knob
    }

    fn account(&self) -> &'static str {
        if self.is_apns {
            "TEAM123456"
        } else {
            "project"
        }
    }

    /// Records for this long: requests accepted per second, and the extremes of connections and
    /// streams.
    async fn watch(&self, what: &str, time: Duration) -> Watched {
        let (begun, before) = (Instant::now(), self.fake.totals(self.account()).accepted);
        let (mut streams, mut lines, mut looks) = ((0, 0), 0, 0);
        while begun.elapsed() < time {
            streams = (
                streams.0 + self.fake.under_way(),
                self.fake.under_way().max(streams.1),
            );
            lines = self.fake.connections().0.max(lines);
            looks += 1;
            // Real time: the pace of the looks.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let accepted = self.fake.totals(self.account()).accepted - before;
        let watched = Watched {
            rps: accepted as f64 / begun.elapsed().as_secs_f64(),
            streams: streams.0 as f64 / f64::from(looks.max(1)),
            most_streams: streams.1,
            lines,
        };
        println!(
            "{what}: knob {}, {watched:?}; {}",
            self.knob().await,
            self.newest().await.reason
        );
        watched
    }

    /// Waits until the server accepts `share` of `rps` over about ten seconds in a row.
    async fn sustains(&self, what: &str, rps: f64, share: f64) -> Watched {
        let begun = Instant::now();
        loop {
            let watched = self.watch(what, Duration::from_secs(10)).await;
            if watched.rps >= share * rps {
                return watched;
            }
            assert!(
                begun.elapsed() < SOON,
                "{what}: {watched:?} of {rps} a second"
            );
        }
    }
}

/// The server's own counters.
#[derive(Debug)]
struct Watched {
    rps: f64,
    streams: f64,
    most_streams: u64,
    lines: u64,
}

/// Returns the p99 of a decision, in setpoints.
fn setpoints(decision: &Decision) -> Option<f64> {
    let words: Vec<&str> = decision.reason.split([' ', ',']).collect();
    let after = |word: &str| {
        words
            .iter()
            .position(|found| *found == word)
            .and_then(|at| words.get(at + 1)?.parse::<f64>().ok())
    };
    Some(after("reads")? / after("setpoint")?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_p99_of_real_pushes_turns_how_many_are_under_way_and_connections_follow() {
    let fixture = PushFixture::new(FakeProvider::Apns, "tick_s = 1\nintegral_min_s = 5\n").await;
    fixture.send(24_000, 0).await;
    let full = AT_ONCE as f64 / BASE.as_secs_f64();

    // 24 take 0.6 s. The knob begins far above and comes down.
    fixture.comes_to("from far above", 4..=45).await;
    let settled = eventually("a p99 near its setpoint", SOON, || async {
        let decision = fixture.newest().await;
        setpoints(&decision)
            .filter(|x| (0.5..1.5).contains(x))
            .map(|_| decision)
    });
    assert_eq!(settled.await.terms["actuator"], "concurrency");
    let whole = fixture.sustains("all of it", full, 0.5).await;
    assert!(
        whole.most_streams <= 70,
        "{whole:?}: what is under way is what the knob says, not the {BEGIN} of the beginning"
    );
    assert!(
        whole.lines <= 8,
        "{whole:?}: ten streams on each connection"
    );

    // Half of the server fails: the knob goes down, and streams and connections follow.
    let before = fixture.knob().await;
    fixture.fake.set_latency(latency(AT_ONCE / 2));
    let less = fixture
        .comes_to("half of it is gone", 1..=(before * 7 / 10))
        .await;
    assert!(less < before);
    let half = eventually("fewer streams and connections", SOON, || async {
        let watched = fixture
            .watch("with half of it", Duration::from_secs(5))
            .await;
        (watched.streams < 0.75 * whole.streams && watched.lines <= 3).then_some(watched)
    });
    half.await;
    fixture.sustains("half of it", full / 2.0, 0.5).await;

    // The server recovers.
    let low = fixture.comes_to("before it comes back", 1..=18).await;
    fixture.fake.set_latency(latency(AT_ONCE));
    fixture
        .comes_to("all of it is back", (low * 13 / 10).max(low + 2)..=100)
        .await;
    fixture.sustains("all of it again", full, 0.5).await;

    let throttle = fixture.status().await;
    assert_eq!(
        (
            throttle.knobs.rps.number(),
            throttle.knobs.capacity.number()
        ),
        (-1.0, -1.0),
        "nobody limits the rate"
    );
    assert_eq!(fixture.fake.totals(fixture.account()).duplicates, 0);
    fixture.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_tokens_do_not_look_like_load() {
    // A signal without samples would lower the knob within seconds.
    let fixture = PushFixture::new(
        FakeProvider::Apns,
        "tick_s = 1\nintegral_min_s = 5\nstale_hold_s = 15\nstale_half_s = 5\n",
    )
    .await;
    fixture.send(4000, 0).await;
    fixture.comes_to("it settles", 4..=45).await;
    fixture
        .sustains("all of it", AT_ONCE as f64 / BASE.as_secs_f64(), 0.5)
        .await;

    // Now one token in eight is bad, and overtakes the waiting ones. After each rejection its
    // connection serves one push at a time.
    fixture
        .fake
        .set_narrow_after_rejection(Duration::from_millis(1500));
    fixture.send(6000, 8).await;
    let rejected = || fixture.fake.totals(fixture.account()).failed;
    eventually("the first rejections", SOON, || async {
        (rejected() >= 10).then_some(())
    })
    .await;
    let before = fixture.knob().await;
    let begun = Instant::now();
    let mut least = before;
    while rejected() < 60 || begun.elapsed() < Duration::from_secs(50) {
        least = least.min(fixture.knob().await);
        assert!(begun.elapsed() < 2 * SOON, "{} rejections", rejected());
        // Real time: the pace of the looks.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!(
        "{before} before, {least} at least during {} rejections; {}",
        rejected(),
        fixture.newest().await.reason
    );
    // Latency was several setpoints throughout; read as load, it would have lowered the knob to a
    // few.
    assert!(
        least >= before * 6 / 10,
        "{least} of {before}: {}",
        fixture.newest().await.reason
    );
    fixture.app.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fcm_is_governed_in_the_same_way() {
    let fixture = PushFixture::new(FakeProvider::Fcm, "tick_s = 1\nintegral_min_s = 5\n").await;
    fixture.send(10_000, 0).await;
    fixture.comes_to("from far above", 4..=45).await;
    let whole = fixture
        .sustains("all of it", AT_ONCE as f64 / BASE.as_secs_f64(), 0.5)
        .await;
    assert!(
        whole.most_streams <= 70,
        "{whole:?}: what is under way is what the knob says"
    );
    let before = fixture.knob().await;
    fixture.fake.set_latency(latency(AT_ONCE / 2));
    fixture
        .comes_to("half of it is gone", 1..=(before * 7 / 10))
        .await;
    fixture.app.stop().await;
}

#[test]
fn the_guide_shows_the_knobs_file_that_works() {
    let file = read("knobs/examples/push.toml");
    let page = read("docs/guides/push-by-latency.md");
    let shown = blocks(&page)
        .into_iter()
        .find(|(_, text)| text.contains("actuator"))
        .expect("a knobs file on the page")
        .1;
    let tables = file.find("[knobs]").unwrap();
    assert!(
        shown.contains(&file[tables..]),
        "the page shows\n{shown}\nand the file is\n{file}"
    );
}
