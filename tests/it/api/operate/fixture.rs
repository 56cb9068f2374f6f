//! A server and a command line on one queue.

use std::ops::Deref;
use std::process::{Command, Stdio};
use std::time::Duration;

use flyball::jobs::NewJob;
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{PROGRAM, stack};

const SOON: Duration = Duration::from_secs(60);

/// An API on a port of its own, and what a shell needs.
pub struct Operator(ApiServer);

impl Deref for Operator {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

pub async fn operator() -> Operator {
    Operator(ApiServer::start(Fixture::new().await, |_| ()).await)
}

impl Operator {
    pub async fn send(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let response = self.request(method, path).json(&body).send().await.unwrap();
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
        self.enqueue_many(job, count).await
    }

    /// Ends every ready job as dead with this error.
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

    /// A finished command: exit code, standard output and standard error.
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

    pub async fn output(&self, args: &[&str]) -> String {
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
