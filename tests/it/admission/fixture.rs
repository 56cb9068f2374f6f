//! Processes that send messages of tenants through a pool at a fake provider, with a Redis of their
//! own behind a proxy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flyball::stack::{RunningStack, SpawnOptions, spawn};
use flyball::throttle::{RedisStore, Store};
use flyball_fakes::{Fake, FakeOptions, FakeProvider, Received};
use reqwest::{Method, Response, StatusCode};
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::fixture::turn;
use crate::support::ledger::{Ledger, assert_nothing_is_left_behind};
use crate::support::process::{Process, ProcessFixture, postmaster};
use crate::support::proxy::Proxy;
use crate::support::redis_server::Server;
use crate::support::sms_pool::{settings, sid};
use crate::support::{PROGRAM, database, eventually, poll, stack};

pub const SOON: Duration = Duration::from_secs(90);

/// The tokens of the tests: name, which is the module, tenant, and digit in the numbers of its
/// recipients. `alarm` may send critical messages.
const TOKENS: [(&str, &str, usize); 5] = [
    ("web", "acme", 1),
    ("shop", "acme", 2),
    ("alarm", "acme", 3),
    ("mail", "zulu", 4),
    ("desk", "initech", 5),
];

/// A module of a tenant that sends messages.
#[derive(Clone, Copy, Debug)]
pub struct Module {
    pub name: &'static str,
    pub tenant: &'static str,
    digit: usize,
}

/// Returns the module of this name.
pub fn module(name: &str) -> Module {
    let found = TOKENS.iter().find(|(token, ..)| *token == name);
    let (name, tenant, digit) = *found.expect("a token");
    Module {
        name,
        tenant,
        digit,
    }
}

impl Module {
    /// Returns the number of its `n`-th recipient.
    pub fn to(&self, n: usize) -> String {
        format!("+1555{}{n:06}", self.digit)
    }

    /// Returns true if a message was for one of its recipients.
    pub fn sent(&self, message: &Received) -> bool {
        message.to.starts_with(&format!("+1555{}", self.digit))
    }
}

/// A message that was accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    pub id: i64,
    /// True if it waits for its admission.
    pub waits: bool,
}

/// The processes with everything around them.
pub struct AdmissionFixture {
    pub process: ProcessFixture,
    pub fake: Fake,
    pub redis: Mutex<Server>,
    pub proxy: Proxy,
    /// The store in Redis, past the proxy.
    pub store: Arc<dyn Store>,
    pub client: reqwest::Client,
    /// The base URLs of the processes.
    urls: Mutex<Vec<String>>,
    next: AtomicUsize,
    postgres: Option<(TempDir, Mutex<RunningStack>)>,
    _secrets: TempDir,
}

impl AdmissionFixture {
    /// Creates all but the processes, on the Postgres of this test run, or on one that the test may
    /// crash.
    pub async fn new(has_own_postgres: bool) -> Arc<Self> {
        Self::with_settings(has_own_postgres, "").await
    }

    /// Creates all with further settings.
    pub async fn with_settings(has_own_postgres: bool, more: &str) -> Arc<Self> {
        let redis = Server::start();
        let proxy = Proxy::to_redis(redis.socket()).await;
        let prometheus = "http://127.0.0.1:9";
        let (process, postgres) = if has_own_postgres {
            let dir = tempfile::tempdir().unwrap();
            let options = SpawnOptions {
                program: Some(PROGRAM.clone()),
                redis_url: Some(redis.url()),
                prometheus_url: Some(prometheus.to_owned()),
                fsync: true,
                ..SpawnOptions::default()
            };
            let path = dir.path().to_owned();
            let running = tokio::task::spawn_blocking(move || spawn(&path, &options).unwrap())
                .await
                .unwrap();
            let url = running.urls.database_url.clone();
            let process =
                ProcessFixture::on(&url, &proxy.url, prometheus, "", "rps = -1", None).await;
            (process, Some((dir, Mutex::new(running))))
        } else {
            stack().await;
            let database = database().await;
            let url = database.url().to_owned();
            let fixture =
                ProcessFixture::on(&url, &proxy.url, prometheus, "", "rps = -1", Some(database));
            (fixture.await, None)
        };
        let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default())
            .await
            .unwrap();
        let secrets = tempfile::tempdir().unwrap();
        let mut text = settings(secrets.path(), &fake, 1, -1.0, "");
        for (name, tenant, _) in TOKENS {
            let file = secrets.path().join(name);
            std::fs::write(&file, secret(name)).unwrap();
            let scope = match name {
                "alarm" => ", \"notify:critical\"",
                _ => "",
            };
            text.push_str(&format!(
                "[api_tokens.{name}]\ntenant = \"{tenant}\"\nsecret_file = {:?}\nscopes = [\"notify:send\", \"notify:read\"{scope}]\n",
                file.display().to_string(),
            ));
        }
        process.settings_file(&format!("{more}\n{text}"));
        let store = RedisStore::connect(&redis.url(), "")
            .unwrap()
            .with_bound(Duration::from_secs(10));
        Arc::new(Self {
            process,
            fake,
            redis: Mutex::new(redis),
            proxy,
            store: Arc::new(store),
            client: reqwest::Client::builder()
                .no_proxy()
                .timeout(Duration::from_secs(30))
                .build()
                .unwrap(),
            urls: Mutex::default(),
            next: AtomicUsize::new(0),
            postgres,
            _secrets: secrets,
        })
    }

    /// Returns the data directory of the Postgres that the test may crash.
    pub fn postgres_data(&self) -> std::path::PathBuf {
        let (dir, _) = self.postgres.as_ref().expect("a Postgres of its own");
        dir.path().join("postgres/data")
    }

    /// Kills the Postgres of the test as `pg_ctl stop -m immediate` does, and waits until it is back.
    pub async fn crash_postgres(&self) {
        let data = self.postgres_data();
        let old = postmaster(&data);
        kill_process(old, Signal::QUIT).unwrap();
        eventually("another Postgres is there", SOON, || async {
            let text = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
            (text.lines().next()? != old.as_raw_nonzero().to_string()).then_some(())
        })
        .await;
        eventually("Postgres is back", SOON, || async {
            self.process.queue.ping().await.then_some(())
        })
        .await;
    }

    /// Starts a process that accepts and sends.
    pub async fn serve(&self) -> Process {
        let process = self.process.serve_with(
            &[],
            &[
                ("FLYBALL_WORKER_TTL_S", "30"),
                ("FLYBALL_CONCURRENCY", "32"),
            ],
        );
        process.worker_started().await;
        let url = process.url().await;
        self.urls.lock().unwrap().push(url);
        process
    }

    /// Sends no further requests to the processes that were started so far.
    pub fn forget_processes(&self) {
        self.urls.lock().unwrap().clear();
    }

    /// Sets the limits of a tenant and of each of its modules; messages within any `span_s`
    /// seconds.
    pub async fn limit(&self, tenant: &str, (per_tenant, per_module): (u32, u32), span_s: u32) {
        let windows = format!("{per_tenant}/{span_s}");
        let key_windows = format!("{per_module}/{span_s}");
        let knobs = [
            ("rps", "-1"),
            ("windows", windows.as_str()),
            ("key_windows", &key_windows),
        ];
        turn(&*self.store, &format!("notify:{tenant}"), &knobs).await;
    }

    /// Sends a request of a module to one of the processes.
    pub async fn ask(
        &self,
        by: Module,
        path: &str,
        body: &Value,
        key: Option<&str>,
    ) -> reqwest::Result<Response> {
        let url = {
            let urls = self.urls.lock().unwrap();
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            format!("{}/api/v1/notifications{path}", urls[next % urls.len()])
        };
        let mut request = self.client.request(Method::POST, url);
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        request.bearer_auth(secret(by.name)).json(body).send().await
    }

    /// Sends a message, again and again with one key, until it is accepted.
    pub async fn send(&self, by: Module, n: usize, priority: &str) -> Accepted {
        let body = json!({"channel": "sms", "to": by.to(n), "body": "the sale ends on Sunday", "priority": priority});
        let key = format!("{}-{n}", by.name);
        eventually("a message is accepted", SOON, async || {
            let answer = self.ask(by, "", &body, Some(&key)).await;
            answer.ok().as_ref().and_then(accepted)
        })
        .await
    }

    /// Returns the messages that the provider accepted, in order.
    pub fn received(&self) -> Vec<Received> {
        self.fake.received(&sid(1))
    }

    /// Returns those of a module.
    pub fn received_of(&self, by: Module) -> Vec<Received> {
        let mut all = self.received();
        all.retain(|message| by.sent(message));
        all
    }

    /// Waits until the provider has accepted `count` messages of a module.
    pub async fn until_received(&self, by: Module, count: usize) {
        let what = format!("{count} messages of {} arrived", by.name);
        eventually(&what, SOON, || async {
            (self.received_of(by).len() >= count).then_some(())
        })
        .await;
    }

    /// Returns the number of messages that wait for the admission of a module.
    pub async fn waiting(&self, by: Module) -> i64 {
        let sql =
            "select count(*) from flyball.ready r join flyball.lane l on l.lane_id = r.lane_id
            where l.throttle = $1 and l.key = $2";
        sqlx::query_scalar(sql)
            .bind(format!("notify:{}", by.tenant))
            .bind(by.name)
            .fetch_one(self.process.pool())
            .await
            .unwrap()
    }

    /// Waits until every job has ended, and checks that each message was delivered: those of `ids`
    /// and `others` whose ids were not told are all there are, none is lost, none came twice, and
    /// none counts as pending any more.
    pub async fn assert_each_is_delivered_once(&self, ids: &BTreeSet<i64>, others: usize) {
        let db = self.process.pool();
        let last = Mutex::new(None);
        let all = ids.len() + others;
        let patience = SOON + Duration::from_secs(all as u64 / 50);
        let settled = poll(patience, async || {
            let ledger = Ledger::look(db).await;
            *last.lock().unwrap() = ledger;
            ledger.filter(|ledger| ledger.waiting() == 0)
        })
        .await
        .unwrap_or_else(|| panic!("messages still wait: {:?}", last.lock().unwrap()));
        settled.assert_conserved();
        assert_eq!((settled.dead, settled.cancelled), (0, 0), "{settled:?}");
        assert_nothing_is_left_behind(db).await;
        let made: Vec<i64> =
            sqlx::query_scalar("select id from flyball.job where kind = 'notification'")
                .fetch_all(db)
                .await
                .unwrap();
        let made: BTreeSet<i64> = made.into_iter().collect();
        assert!(ids.is_subset(&made), "a promised message is not there");
        assert_eq!(made.len(), all, "one job for each that was promised");
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for message in self.received() {
            *times.entry(message.to).or_default() += 1;
        }
        let twice: Vec<_> = times.iter().filter(|(_, times)| **times > 1).collect();
        assert!(twice.is_empty(), "delivered twice: {twice:?}");
        assert_eq!(times.len(), all, "each was delivered");
        self.assert_nothing_is_pending().await;
    }

    /// Waits until what has ended takes no place in the queue of its tenant. A sweep passes over rows
    /// that the sweep of a process is deleting.
    pub async fn assert_nothing_is_pending(&self) {
        let db = self.process.pool();
        eventually("messages that have ended are not pending", SOON, || async {
            let _: i64 = sqlx::query_scalar("select flyball.sweep_all_pending()")
                .fetch_one(db)
                .await
                .unwrap();
            let pending: i64 = sqlx::query_scalar("select count(*) from flyball.pending")
                .fetch_one(db)
                .await
                .unwrap();
            (pending == 0).then_some(())
        })
        .await;
    }
}

/// Returns the message that an answer promises; `None` if it promises nothing.
pub fn accepted(answer: &Response) -> Option<Accepted> {
    let status = answer.status();
    let waits = answer.headers().contains_key("notification-status");
    let is_accepted = status.is_success() || status == StatusCode::TOO_MANY_REQUESTS && waits;
    if !is_accepted {
        return None;
    }
    let location = answer.headers().get("location")?.to_str().ok()?;
    let id = location.rsplit('/').next()?.parse().ok()?;
    Some(Accepted { id, waits })
}

fn secret(name: &str) -> String {
    format!("0123456789abcdef-{name}")
}

/// The grants of a window, read in the course of time.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    /// The tokens, by time in unix microseconds.
    pub grants: BTreeMap<i64, f64>,
}

impl Grants {
    /// Records the grants that count at `at_us`; what has been given back is forgotten.
    pub fn see(&mut self, at_us: i64, span_us: i64, counting: &[(f64, f64)]) {
        self.grants.retain(|at, _| *at + span_us <= at_us);
        let counting = counting.iter().map(|(at, tokens)| (*at as i64, *tokens));
        self.grants.extend(counting);
    }

    /// Returns the most tokens within any span.
    pub fn most(&self, span_us: i64) -> f64 {
        let sum = |until: i64| -> f64 {
            let span = self.grants.range(until - span_us + 1..=until);
            span.map(|(_, tokens)| tokens).sum()
        };
        self.grants.keys().map(|at| sum(*at)).fold(0.0, f64::max)
    }

    /// Returns the times of all grants, one for each token.
    pub fn times_us(&self) -> Vec<i64> {
        let each = |(at, tokens): (&i64, &f64)| vec![*at; tokens.round() as usize];
        self.grants.iter().flat_map(each).collect()
    }
}

/// Returns the most of these ascending times within any span.
pub fn most_within(times: &[i64], span: i64) -> usize {
    let within = |n: usize| times[..=n].partition_point(|at| *at <= times[n] - span);
    (0..times.len())
        .map(|n| n + 1 - within(n))
        .max()
        .unwrap_or(0)
}
