//! A program with one pool, and servers with scripted answers.

use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State as Shared;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use flyball::jobs::{NewJob, State};
use serde_json::Value;

use crate::support::app::{RUNNER, RunningApp};
use crate::support::eventually;

pub const SOON: Duration = Duration::from_secs(120);

type Reply = (u16, Vec<(&'static str, String)>, String);

type Answers = dyn Fn(&str, &str, usize) -> Reply + Send + Sync;

#[derive(Clone)]
pub struct Server {
    pub answers: Arc<Answers>,
    pub came: Arc<Mutex<Vec<(String, Instant)>>>,
    pub url: String,
}

impl Server {
    /// `answers` receives the path, the body, and the number of earlier requests to the path.
    pub async fn start(
        answers: impl Fn(&str, &str, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self {
            answers: Arc::new(answers),
            came: Arc::default(),
            url,
        };
        let router = Router::new().fallback(serve).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub fn times(&self, path: &str) -> Vec<Instant> {
        self.came
            .lock()
            .unwrap()
            .iter()
            .filter(|(came, _)| came == path)
            .map(|(_, at)| *at)
            .collect()
    }
}

pub async fn serve(
    Shared(server): Shared<Server>,
    uri: Uri,
    body: String,
) -> (StatusCode, HeaderMap, String) {
    let path = uri.path().to_owned();
    let before = server.times(&path).len();
    server
        .came
        .lock()
        .unwrap()
        .push((path.clone(), Instant::now()));
    if path == "/hangs" {
        std::future::pending::<()>().await;
    }
    let (status, headers, body) = (server.answers)(&path, &body, before);
    let header = |(name, text): (&'static str, String)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(&text).unwrap(),
        )
    };
    (
        StatusCode::from_u16(status).unwrap(),
        headers.into_iter().map(header).collect(),
        body,
    )
}

pub fn plain(status: u16, body: &str) -> Reply {
    (status, Vec::new(), body.to_owned())
}

/// A worker with one pool.
pub struct PoolFixture {
    pub program: RunningApp,
}

impl Deref for PoolFixture {
    type Target = RunningApp;

    fn deref(&self) -> &RunningApp {
        &self.program
    }
}

/// The settings of a pool with one account; `secret` is the key of its credential.
pub fn settings(
    pool: &str,
    provider: &str,
    secret: (&str, &str),
    keys: &str,
    folder: &std::path::Path,
) -> String {
    let file = folder.join("secret");
    std::fs::write(&file, secret.1).unwrap();
    format!(
        "allow_private_urls = true\n[pools.{pool}]\nprovider = {provider:?}\n{}_file = {:?}\n{keys}\n[[pools.{pool}.accounts]]\nname = \"main\"\n",
        secret.0,
        file.display().to_string()
    )
}

impl PoolFixture {
    pub async fn new(text: impl FnOnce(&std::path::Path) -> String) -> Self {
        Self {
            program: RunningApp::start(RUNNER, text).await,
        }
    }

    pub async fn enqueue(&self, jobs: &[NewJob]) -> Vec<i64> {
        self.app
            .queue
            .enqueue(jobs)
            .await
            .unwrap()
            .into_iter()
            .map(|made| made.id)
            .collect()
    }

    pub async fn until(&self, ids: &[i64], wanted: State) {
        for id in ids {
            let state = || async {
                self.app
                    .queue
                    .get(*id)
                    .await
                    .unwrap()
                    .map(|detail| detail.summary.state)
            };
            eventually(&format!("{id} is {wanted:?}"), SOON, || async {
                (state().await == Some(wanted)).then_some(())
            })
            .await;
        }
    }

    pub async fn opened(&self) -> i64 {
        let sql = "select count(*) from flyball.account_event where to_state = 'open'";
        sqlx::query_scalar(sql)
            .fetch_one(self.database.pool())
            .await
            .unwrap()
    }
}

pub fn job(pool: &str, args: Value) -> NewJob {
    NewJob::new("notification", args).throttle(pool)
}
