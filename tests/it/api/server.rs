//! A server of the API on a real Postgres and a real Redis, and a client.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, AuthToken, Deps, Live, NoDecisions, TokenSecret};
use flyball::jobs::{Handler, Issue, Kinds, Outcome, PreparedJob, Queue};
use flyball::runner::keep_depth;
use flyball::throttle::{Change, Knobs, Name, Store};

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, patient_store, redis_prefix, stack};

pub const SOON: Duration = Duration::from_secs(20);

pub struct Mail;

impl Handler for Mail {
    fn prepare(&self, args: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        let has_to = args.get("to").is_some_and(Value::is_string);
        if has_to {
            Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
        } else {
            Err(vec![Issue {
                pointer: "/to".into(),
                message: "must be a text".into(),
            }])
        }
    }
}

/// An API of a test's own: its database, its prefix in Redis, a port of its own.
pub struct Api {
    pub base: String,
    pub client: reqwest::Client,
    pub queue: Queue,
    pub store: Arc<dyn Store>,
    pub cancel: CancellationToken,
    pub served: JoinHandle<std::io::Result<()>>,
    pub prefix: String,
    _database: Database,
}

pub async fn spawn_api(token: Option<&str>) -> Api {
    let prefix = redis_prefix();
    let store = patient_store(&prefix).await;
    spawn_api_on(token, Arc::new(store), prefix).await
}

pub async fn spawn_api_on(token: Option<&str>, store: Arc<dyn Store>, prefix: String) -> Api {
    let database = database().await;
    let queue = Queue::connect(database.url(), 6, SOON).await.unwrap();
    sqlx::query("select flyball.register_kind($1)")
        .bind("mail")
        .execute(&queue.pool)
        .await
        .unwrap();
    let mut kinds = Kinds::default();
    kinds.register("mail", Mail);
    let cancel = CancellationToken::new();
    let deps = Deps {
        queue: queue.clone(),
        pools: Arc::default(),
        deliveries: flyball::notify::Deliveries::new(queue.pool.clone()),
        tools: crate::support::tools(),
        public_url: String::new(),
        throttles: store.clone(),
        check_knobs: Knobs::check,
        kinds,
        account_pools: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: Live::default(),
        tokens: token
            .map(|token| AuthToken::new("default", TokenSecret::new(token)))
            .into_iter()
            .collect(),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    tokio::spawn(keep_depth(queue.clone(), cancel.clone()));
    let listener = api::bind("127.0.0.1:0", token.is_some()).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let served = tokio::spawn(api::serve(deps, listener));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    Api {
        base,
        client,
        queue,
        store,
        cancel,
        served,
        prefix,
        _database: database,
    }
}

impl Api {
    pub async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
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
        self.store
            .set(&Name::new(throttle).unwrap(), &change)
            .await
            .unwrap();
    }

    pub async fn get(&self, path: &str) -> Response {
        self.client
            .get(format!("{}{path}", self.base))
            .send()
            .await
            .unwrap()
    }

    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Response {
        self.client
            .request(method, format!("{}{path}", self.base))
            .json(body)
            .send()
            .await
            .unwrap()
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        self.send(Method::POST, path, &body).await
    }

    pub async fn body(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    /// Enqueues a job and answers its id.
    pub async fn enqueue(&self, more: Value) -> i64 {
        let mut job = json!({"kind": "mail", "args": {"to": "a@example.org"}});
        job.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let response = self.post("/api/v1/jobs", job).await;
        assert_eq!(response.status(), StatusCode::CREATED);
        response.json::<Value>().await.unwrap()["id"]
            .as_i64()
            .unwrap()
    }

    pub async fn count_jobs(&self) -> i64 {
        sqlx::query_scalar("select count(*) from flyball.job")
            .fetch_one(&self.queue.pool)
            .await
            .unwrap()
    }

    /// Writes a knob as a person with redis-cli does.
    pub async fn hset(&self, throttle: &str, field: &str, value: &str) {
        let client = redis::Client::open(stack().await.redis_url.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let key = format!("{}throttle:{throttle}:knobs", self.prefix);
        let _: i64 = redis::cmd("HSET")
            .arg(key)
            .arg(field)
            .arg(value)
            .query_async(&mut connection)
            .await
            .unwrap();
    }
}

pub async fn problem(response: Response, status: u16, code: &str) -> Value {
    let (found, kind) = (
        response.status().as_u16(),
        response.headers()["content-type"]
            .to_str()
            .unwrap()
            .to_owned(),
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        (found, kind.as_str(), &body["code"]),
        (status, "application/problem+json", &json!(code)),
        "{body}"
    );
    body
}

pub fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect()
}

impl Api {
    pub async fn tokens(&self, path: &str, body: Value) -> Value {
        let response = self.post(&format!("/api/v1/throttles/{path}"), body).await;
        let (status, answer) = (response.status(), response.json::<Value>().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }
}
