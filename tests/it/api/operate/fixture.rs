//! A server and a command line on one queue.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, Deps, Live, NoDecisions};
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Kinds, NewJob, Queue, State};
use flyball::throttle::{Change, Knobs, Name, Store};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, PROGRAM, database, patient_store, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(20);

/// A house with both doors: an API on a port of its own, and what a shell needs.
pub struct House {
    pub base: String,
    pub client: reqwest::Client,
    pub queue: Queue,
    pub store: Arc<dyn Store>,
    pub prefix: String,
    pub database: Database,
    pub cancel: CancellationToken,
}

pub async fn house() -> House {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    let prefix = redis_prefix();
    let store: Arc<dyn Store> = Arc::new(patient_store(&prefix).await);
    let cancel = CancellationToken::new();
    let deps = Deps {
        queue: queue.clone(),
        pools: Arc::default(),
        deliveries: flyball::notify::Deliveries::new(queue.pool.clone()),
        tools: crate::support::tools(),
        public_url: String::new(),
        throttles: store.clone(),
        check_knobs: Knobs::check,
        kinds: Kinds::default(),
        account_pools: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: Live::default(),
        tokens: Arc::new([]),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    let listener = api::bind("127.0.0.1:0", false).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(api::serve(deps, listener));
    House {
        base,
        client: reqwest::Client::builder().no_proxy().build().unwrap(),
        queue,
        store,
        prefix,
        database,
        cancel,
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

impl House {
    pub async fn send(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let response = self
            .client
            .request(method, format!("{}{path}", self.base))
            .json(&body)
            .send()
            .await
            .unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// Sends a request that must be answered with 200.
    pub async fn ok(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, printed) = self.send(method, path, body).await;
        assert_eq!(status, StatusCode::OK, "{path}: {printed}");
        printed
    }

    pub async fn post(&self, path: &str, body: Value) -> Value {
        self.ok(Method::POST, path, body).await
    }

    pub async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, json!({})).await
    }

    pub async fn enqueue(&self, count: usize, throttle: &str, key: &str) -> Vec<i64> {
        let mut job = NewJob::new("http", json!({"url": "http://127.0.0.1/"}));
        (job.throttle, job.key) = (throttle.into(), key.into());
        self.queue
            .enqueue(&vec![job; count])
            .await
            .unwrap()
            .iter()
            .map(|one| one.id)
            .collect()
    }

    /// Lets everything that is ready die of this error.
    pub async fn kill(&self, error: &str) {
        let kinds = vec!["http".into()];
        let worker = NewWorker {
            name: "w".into(),
            host: "h".into(),
            pid: 1,
            ttl: SOON,
            kinds,
        };
        let worker = self.queue.register(&worker).await.unwrap();
        let lanes = self.queue.ready_lanes().await.unwrap();
        let lanes: Vec<LaneClaim> = lanes
            .iter()
            .map(|lane| LaneClaim::first(lane.lane_id, 1000))
            .collect();
        let jobs = self.queue.claim(worker, 5, &lanes).await.unwrap();
        let end = |job_id| Finish {
            job_id,
            fence: 5,
            ending: Ending::Dead {
                error: error.into(),
            },
        };
        self.queue
            .finish(&jobs.iter().map(|one| end(one.job.id)).collect::<Vec<_>>())
            .await
            .unwrap();
    }

    pub async fn state(&self, id: i64) -> State {
        self.queue.get(id).await.unwrap().unwrap().summary.state
    }

    pub async fn turn(&self, throttle: &str, rps: &str) {
        let fields = BTreeMap::from([("rps".to_owned(), Some(rps.to_owned()))]);
        let change = Change {
            fields,
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        self.store
            .set(&Name::new(throttle).unwrap(), &change)
            .await
            .unwrap();
    }

    pub async fn actions(&self) -> Vec<(String, String)> {
        let mut entries: Vec<_> = self.get("/api/v1/audit").await["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| {
                (
                    entry["actor"].as_str().unwrap().to_owned(),
                    entry["action"].as_str().unwrap().to_owned(),
                )
            })
            .collect();
        entries.reverse();
        entries
    }

    /// A command with its exit code, what it printed and what it complained of.
    pub async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let redis_url = stack().await.redis_url.clone();
        let output = Command::new(PROGRAM.as_path())
            .args(args)
            .env_clear()
            .envs([
                ("DATABASE_URL", self.database.url()),
                ("REDIS_URL", &redis_url),
                ("FLYBALL_REDIS_PREFIX", &self.prefix),
                ("USER", "tester"),
            ])
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (
            output.status.code().unwrap_or(-1),
            text(output.stdout),
            text(output.stderr),
        )
    }

    pub async fn says(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    pub async fn refuses(&self, args: &[&str], code: i32, words: &str) {
        let (found, out, err) = self.run(args).await;
        assert!(
            found == code && err.contains(words) && !err.contains("panicked"),
            "{args:?}: {found} {out}{err}"
        );
    }
}
