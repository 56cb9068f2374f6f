//! A server of the API on a real Postgres and a real Redis, and a client.

use std::ops::Deref;
use std::time::Duration;

use flyball::api::{AuthToken, TokenSecret};
use flyball::jobs::{Handler, Issue, Outcome, PreparedJob};
use flyball::runner::keep_depth;
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{connect_redis, stack};

pub const SOON: Duration = Duration::from_secs(60);

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

/// An API with the kind `mail`.
pub struct Api(pub ApiServer);

impl Deref for Api {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

pub async fn spawn_api(token: Option<&str>) -> Api {
    spawn_api_on(token, Fixture::new().await).await
}

pub async fn spawn_api_on(token: Option<&str>, fixture: Fixture) -> Api {
    fixture.register("mail").await;
    let queue = fixture.queue.clone();
    let server = ApiServer::start(fixture, |deps| {
        deps.kinds.register("mail", Mail);
        deps.tokens = token
            .map(|token| AuthToken::new(TokenSecret::new(token)))
            .into_iter()
            .collect();
    })
    .await;
    tokio::spawn(keep_depth(queue, server.cancel.clone()));
    Api(server)
}

impl Api {
    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub async fn send(&self, method: Method, path: &str, body: &Value) -> Response {
        self.request(method, path).json(body).send().await.unwrap()
    }

    pub async fn post(&self, path: &str, body: Value) -> Response {
        self.send(Method::POST, path, &body).await
    }

    pub async fn body(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    /// Enqueues a job and returns its id.
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

    /// Writes a knob with plain Redis commands, as a person with redis-cli does.
    pub async fn hset(&self, throttle: &str, field: &str, value: &str) {
        let mut connection = connect_redis(&stack().await.redis_url).await.unwrap();
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
