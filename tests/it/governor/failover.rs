//! Failover with real processes on real servers: the leader is killed, suspended, or cut off from
//! one server or all.
//!
//! Every change of the knob is read from Redis with MONITOR, and a trigger records each row of the
//! journal with the process that wrote it. The duration of each case is printed: `cargo test --test
//! it -- failover --nocapture`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::throttle::{Name, RedisStore, Status, Store};
use rustix::process::Signal;

use crate::support::exporter::Exporter;
use crate::support::process::{Process, ProcessFixture};
use crate::support::proxy::{Proxy, Way};
use crate::support::redis_server::Server;
use crate::support::{database, eventually, redis_prefix, stack};

/// The time limit for each step on a busy machine.
const LONG: Duration = Duration::from_secs(90);

/// The minimum remaining lease of a knob when its writer dies.
const KNOB_LEFT: Duration = Duration::from_secs(20);

/// The initial rate, at which the load equals the setpoint, and the safe rate.
const RPS: f64 = 50.0;
const SAFE_RPS: f64 = 5.0;

/// A load slightly above the setpoint, so that the governor lowers the knob before the failure.
const HIGH: f64 = 1.3;

/// Records the writer of each row, with the journal's term at that moment.
const NOTE_ROWS: &str = "
create table public.noted (n bigserial, who text, what text, term bigint);
create function public.note() returns trigger language plpgsql as $$ begin
  insert into public.noted (who, what, term)
  values (current_setting('application_name'), tg_table_name, (select term from flyball.governor where throttle = new.throttle));
  return null;
end $$;
create trigger note after insert or update on flyball.governor for each row execute function public.note();
create trigger note after insert on flyball.decision for each row execute function public.note()";

/// The shared resources of the processes of one case. Each case has its own Redis.
struct Scene {
    fixture: ProcessFixture,
    redis: Server,
    store: RedisStore,
    exporter: Exporter,
    written: Arc<Mutex<Vec<Written>>>,
    looks: Arc<Mutex<Vec<Status>>>,
}

/// A field of the knob that was written, as reported by Redis.
#[derive(Clone, Debug)]
struct Written {
    field: String,
    text: String,
}

/// A candidate for governor, with proxies to its servers.
struct Candidate {
    process: Process,
    postgres: Proxy,
    redis: Proxy,
    prometheus: Proxy,
}

fn throttle() -> Name {
    Name::new("governed").expect("a name")
}

impl Scene {
    async fn new() -> Self {
        let (stack, database, redis) = (stack().await, database().await, Server::start());
        let exporter = Exporter::start(HIGH).await;
        let url = database.url().to_owned();
        let fixture = ProcessFixture::on(
            &url,
            &redis.url(),
            &stack.prometheus_url,
            &redis_prefix(),
            "rps = -1",
            Some(database),
        )
        .await;
        let signal = exporter.signal();
        fixture.knobs_file(
            "governed",
            &format!(
                "[knobs]\nrps = {RPS}\nmode = \"auto\"\nmin = 1.0\nmax = 2000.0\nsafe_rps = {SAFE_RPS}\n\
                 {signal}\n[governor]\ntick_s = 1.0\nintegral_min_s = 4\nstale_hold_s = 12\nstale_half_s = 2\n"
            ),
        );
        sqlx::raw_sql(NOTE_ROWS)
            .execute(fixture.pool())
            .await
            .expect("the triggers");
        let written = Arc::new(Mutex::new(Vec::new()));
        monitor(&redis, written.clone());
        let store = RedisStore::connect(&redis.url(), &fixture.prefix)
            .expect("a URL")
            .with_bound(Duration::from_secs(10));
        Self {
            fixture,
            redis,
            store,
            exporter,
            written,
            looks: Arc::default(),
        }
    }

    async fn candidate(&self, who: &str) -> Candidate {
        let postgres = Proxy::start(&self.fixture.database_url).await;
        let redis = Proxy::to_redis(self.redis.socket()).await;
        let prometheus = Proxy::to_http(&stack().await.prometheus_url).await;
        let database_url = format!("{}&application_name={who}", postgres.url);
        let settings = [
            ("DATABASE_URL", database_url.as_str()),
            ("REDIS_URL", redis.url.as_str()),
            ("PROMETHEUS_URL", prometheus.url.as_str()),
        ];
        let process = self.fixture.serve_with(&["--roles", "governor"], &settings);
        Candidate {
            process,
            postgres,
            redis,
            prometheus,
        }
    }

    /// Starts two candidates; the first leads and has settled the rate.
    async fn governed_by_the_first(&self) -> (Candidate, Candidate, f64) {
        let first = self.candidate("first").await;
        first
            .process
            .logged("leads the governor term=1", LONG)
            .await;
        let second = self.candidate("second").await;
        let rate = self.steady().await;
        (first, second, rate)
    }

    /// Returns the rate once it no longer changes.
    async fn steady(&self) -> f64 {
        eventually("the governor turns the knob", LONG, || async {
            (self.status().await.effective_rps.number() < 0.9 * RPS).then_some(())
        })
        .await;
        self.exporter.show(1.0);
        let mut last = (Instant::now(), self.status().await.effective_rps.number());
        let deadline = Instant::now() + LONG;
        while last.0.elapsed() < Duration::from_secs(4) {
            assert!(Instant::now() < deadline, "the rate does not come to rest");
            // Real time: the rate rests for several turns, each a second apart.
            tokio::time::sleep(Duration::from_millis(100)).await;
            let rate = self.status().await.effective_rps.number();
            if (rate / last.1 - 1.0).abs() > 0.005 {
                last = (Instant::now(), rate);
            }
        }
        self.status().await.effective_rps.number()
    }

    async fn status(&self) -> Status {
        self.store
            .status(&throttle())
            .await
            .expect("Redis")
            .expect("knobs")
    }

    /// Records the effective rate every 50 ms from now on.
    fn watch(&self) -> tokio::task::JoinHandle<()> {
        let store = RedisStore::connect(&self.redis.url(), &self.fixture.prefix)
            .expect("a URL")
            .with_bound(Duration::from_secs(10));
        let looks = self.looks.clone();
        tokio::spawn(async move {
            loop {
                if let Ok(Some(status)) = store.status(&throttle()).await {
                    looks.lock().expect("the looks").push(status);
                }
                // Real time: the pace of the looks.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
    }

    /// Waits until the leader of this term has turned the knob.
    async fn turned_by(&self, term: u64) {
        eventually(&format!("term {term} turns the knob"), LONG, || async {
            (self.status().await.knobs.term == term).then_some(())
        })
        .await;
    }

    /// Asserts that no write of an older term arrived, in Redis or in Postgres.
    async fn only_the_newest_term_wrote(&self, case: &str) {
        let written = self.written.lock().expect("the writes").clone();
        let of = |field: &str| {
            written
                .iter()
                .filter(|w| w.field == field)
                .map(|w| w.text.clone())
                .collect::<Vec<_>>()
        };
        let terms: Vec<u64> = of("term")
            .iter()
            .map(|text| text.parse().expect("a term"))
            .collect();
        assert!(
            !terms.is_empty() && terms.windows(2).all(|pair| pair[0] < pair[1]),
            "{case}: terms of the knob: {terms:?}"
        );

        let rows: Vec<(String, String, i64)> =
            sqlx::query_as("select who, what, coalesce(term, 0) from public.noted order by n")
                .fetch_all(self.fixture.pool())
                .await
                .expect("the notes");
        let states: Vec<&(String, String, i64)> =
            rows.iter().filter(|row| row.1 == "governor").collect();
        assert!(
            !states.is_empty() && states.windows(2).all(|pair| pair[0].2 <= pair[1].2),
            "{case}: terms of the states: {states:?}"
        );
        for (who, what, term) in &rows {
            let leads = states
                .iter()
                .find(|state| state.2 == *term)
                .map(|state| &state.0);
            assert_eq!(
                Some(who),
                leads,
                "{case}: a {what} in term {term} is its leader's"
            );
        }
        println!(
            "{case}: terms of {} writes of rps: {terms:?}; {} rows in the journal, each by the leader of its time",
            of("rps").len(),
            rows.len()
        );
    }

    /// Asserts that the rate stayed within 5 %. If the machine was too slow for a takeover before
    /// the knob's lease expired, asserts the safe rate instead.
    fn keeps_the_rate(&self, case: &str, before: f64, took: Duration) {
        let looks = self.looks.lock().expect("the looks").clone();
        if looks.iter().any(|look| look.lease_expired) {
            assert!(
                took > KNOB_LEFT,
                "{case}: the knob lapsed although another led after {took:?}"
            );
            return;
        }
        let rates = || looks.iter().map(|look| look.effective_rps.number());
        let (least, most) = (
            rates().fold(f64::MAX, f64::min),
            rates().fold(0.0, f64::max),
        );
        let after = rates().next_back().expect("looks");
        println!(
            "{case}: another led after {took:.1?}; rate {before:.2} before, {after:.2} after, {least:.2} to {most:.2} meanwhile"
        );
        assert!(
            least >= 0.95 * before && most <= 1.05 * before,
            "{case}: {least} to {most}, {before} before"
        );
    }
}

impl Candidate {
    fn ways(&self, which: &[Dependency], way: Way) {
        for server in which {
            match server {
                Dependency::Postgres => self.postgres.way(way),
                Dependency::Redis => self.redis.way(way),
                Dependency::Prometheus => self.prometheus.way(way),
            }
        }
    }
}

/// The servers that the governor uses.
#[derive(Clone, Copy, Debug)]
enum Dependency {
    Postgres,
    Redis,
    Prometheus,
}

const ALL: [Dependency; 3] = [
    Dependency::Postgres,
    Dependency::Redis,
    Dependency::Prometheus,
];

/// Records every field of the knob written to Redis, until Redis ends.
fn monitor(redis: &Server, written: Arc<Mutex<Vec<Written>>>) {
    let mut socket = UnixStream::connect(redis.socket()).expect("Redis");
    socket.write_all(b"MONITOR\r\n").expect("Redis");
    let mut lines = BufReader::new(socket).lines();
    let first = lines.next().expect("an answer").expect("an answer");
    assert_eq!(first, "+OK");
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            if let ["HSET", key, field, text] = words[..]
                && key.ends_with("governed:knobs")
            {
                written.lock().expect("the writes").push(Written {
                    field: field.to_owned(),
                    text: text.to_owned(),
                });
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_killed_or_asleep_is_followed_without_a_bump_and_never_heard_again() {
    let killed = async {
        let scene = Scene::new().await;
        let (mut first, _second, before) = scene.governed_by_the_first().await;
        let watch = scene.watch();
        first.process.kill();
        let event = Instant::now();
        scene.turned_by(2).await;
        let took = event.elapsed();
        scene.fixture.turns_of_governor("governed", 2).await;
        watch.abort();
        scene.keeps_the_rate("killed", before, took);
        scene.only_the_newest_term_wrote("killed").await;
    };
    let asleep = async {
        let scene = Scene::new().await;
        let (first, _second, before) = scene.governed_by_the_first().await;
        let watch = scene.watch();
        first.process.signal(Signal::STOP);
        let event = Instant::now();
        scene.turned_by(2).await;
        let took = event.elapsed();
        first.process.signal(Signal::CONT);
        first
            .process
            .logged_any(
                // Its fast path may hear of the newer term first.
                &["no longer leads the governor", "resting", "standing by"],
                LONG,
            )
            .await;
        scene.fixture.turns_of_governor("governed", 2).await;
        watch.abort();
        scene.keeps_the_rate("asleep", before, took);
        scene.only_the_newest_term_wrote("asleep").await;
    };
    tokio::join!(killed, asleep);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_is_followed_without_a_bump_and_what_it_sent_arrives_too_late() {
    let cut_off = |case: &'static str, from: &'static [Dependency], way: Way| async move {
        let scene = Scene::new().await;
        let (first, _second, before) = scene.governed_by_the_first().await;
        let watch = scene.watch();
        first.ways(from, way);
        let event = Instant::now();
        scene.turned_by(2).await;
        let took = event.elapsed();
        first
            .process
            .logged_any(
                &[
                    "no longer leads the governor",
                    "resting",
                    "another process may lead",
                    // Its fenced write may tell it before its lease does.
                    "standing by",
                ],
                LONG,
            )
            .await;
        first.ways(from, Way::Open);
        // Its delayed requests arrive now.
        scene.fixture.turns_of_governor("governed", 3).await;
        watch.abort();
        scene.keeps_the_rate(case, before, took);
        scene.only_the_newest_term_wrote(case).await;
    };
    tokio::join!(
        cut_off("Postgres hangs", &[Dependency::Postgres], Way::Hung),
        cut_off("Redis hangs", &[Dependency::Redis], Way::Hung),
        cut_off("all hang", &ALL, Way::Hung),
        cut_off("all refuse", &ALL, Way::Closed),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_without_prometheus_stays_and_holds_and_one_that_nobody_follows_lets_the_knob_lapse()
 {
    let blind = async {
        let scene = Scene::new().await;
        let (first, second, before) = scene.governed_by_the_first().await;
        let watch = scene.watch();
        first.ways(&[Dependency::Prometheus], Way::Hung);
        // Real time: half of `stale_hold_s`, for which the rate stays.
        tokio::time::sleep(Duration::from_secs(6)).await;
        watch.abort();
        scene.keeps_the_rate("without Prometheus", before, Duration::ZERO);
        let slower = eventually("it goes slower while it is blind", LONG, || async {
            let status = scene.status().await;
            (status.effective_rps.number() < 0.8 * before).then_some(status)
        })
        .await;
        assert!(
            slower.effective_rps.number() >= SAFE_RPS
                && slower.knobs.why.contains("no new reading of load"),
            "{slower:?}"
        );
        first.ways(&[Dependency::Prometheus], Way::Open);
        eventually("it reads again", LONG, || async {
            scene
                .status()
                .await
                .knobs
                .why
                .contains("load reads")
                .then_some(())
        })
        .await;
        assert!(
            !scene.status().await.lease_expired
                && !second.process.log().contains("leads the governor"),
            "nobody took over"
        );
        scene.only_the_newest_term_wrote("without Prometheus").await;
    };
    let alone = async {
        let scene = Scene::new().await;
        let only = scene.candidate("first").await;
        only.process.logged("leads the governor term=1", LONG).await;
        let before = scene.steady().await;
        only.ways(&[Dependency::Postgres], Way::Hung);
        let event = Instant::now();
        let lapsed = eventually("the safe rate is in force", LONG, || async {
            let status = scene.status().await;
            (status.effective_rps.number() == SAFE_RPS).then_some(status)
        })
        .await;
        println!(
            "nobody left: {before:.2} rps lapsed to {} after {:.1?}",
            lapsed.effective_rps.number(),
            event.elapsed()
        );
        assert!(
            lapsed.lease_expired && event.elapsed() >= KNOB_LEFT,
            "the knob was good for its lease"
        );
        only.ways(&[Dependency::Postgres], Way::Open);
        scene.turned_by(2).await;
        let again = scene.status().await;
        assert!(
            !again.lease_expired && again.effective_rps.number() < 1.2 * SAFE_RPS,
            "it starts from the safe rate: {again:?}"
        );
        scene.only_the_newest_term_wrote("nobody left").await;
    };
    tokio::join!(blind, alone);
}
