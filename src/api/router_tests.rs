//! Tests of the HTTP interface through a real listener, with throttles in a map and a Postgres that
//! does not answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::api::live::{STREAMS_MAX, Tick};
use crate::api::state::NoDecisions;
use crate::api::{AuthToken, Live, TokenSecret};
use crate::jobs::{self, Handler, Issue, Outcome, PreparedJob};
use crate::throttle::store::KnobProblem;
use crate::throttle::{
    self, AcquireRequest, AcquireResponse, Change, Grant, Holder, KeyOutcomes, Knobs, Limit, Name,
    Refund, RefusalEffect, Status, Store, UpstreamRefusal,
};

// === a store of throttles in a map ===

#[derive(Default)]
struct Shelf {
    throttles: Mutex<BTreeMap<Name, Status>>,
    is_lost: AtomicBool,
    panics: AtomicBool,
}

fn status_of(name: &Name, rps: f64, seq: u64) -> Status {
    Status {
        name: name.clone(),
        knobs: Knobs {
            rps,
            max: 100.0,
            seq,
            by: "alice".into(),
            why: "a test".into(),
            ..Knobs::default()
        },
        raw: BTreeMap::from([("rps".into(), rps.to_string())]),
        problems: Vec::new(),
        effective_rps: rps,
        lease_lapsed: false,
        used: 0.0,
        limited_us: 0.0,
        at_us: 1,
        expires_in_s: None,
        refusal: None,
        debt_until_ms: None,
    }
}

impl Shelf {
    fn answers(&self) -> Result<(), throttle::Error> {
        assert!(
            !self.panics.load(Ordering::SeqCst),
            "the store has a defect"
        );
        if self.is_lost.load(Ordering::SeqCst) {
            Err(throttle::Error::Lost("connection refused".into()))
        } else {
            Ok(())
        }
    }

    fn find(&self, name: &Name) -> Option<Status> {
        self.throttles.lock().get(name).cloned()
    }

    fn grant(&self, ask: &AcquireRequest) -> AcquireResponse {
        let unknown = self.find(&ask.throttle).is_none().then(|| Limit::Unknown {
            name: ask.throttle.clone(),
        });
        let lanes = ask.lanes.iter().map(|lane| Grant {
            granted: if unknown.is_some() {
                0
            } else {
                lane.want.min(2)
            },
            wait: Duration::from_millis(if lane.want > 2 { 500 } else { 0 }),
            limit: unknown
                .clone()
                .or((lane.want > 2).then_some(Limit::Throttle)),
            ..Grant::default()
        });
        AcquireResponse {
            lanes: lanes.collect(),
            effective_rps: 5.0,
            at_us: 1_000_000,
            seq: 1,
            ..AcquireResponse::default()
        }
    }
}

impl Store for Shelf {
    fn acquire<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        Box::pin(async { self.grant(ask) })
    }

    fn hold<'a>(
        &'a self,
        _: &'a Name,
        _: &'a Holder,
        _: &'a [(String, u32)],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn takes_writes(&self) -> BoxFuture<'_, Result<(), throttle::Error>> {
        Box::pin(async { self.answers() })
    }

    fn search(&self) -> BoxFuture<'_, Result<Vec<String>, throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn persist<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn was_taken_away<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        unreachable!("no test here keeps or runs anything")
    }

    fn set_workers(&self, _: u32) {}

    fn refund_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [Refund<'a>],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        Box::pin(async { Ok(()) })
    }

    fn settle_many<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [(&'a str, f64)],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        Box::pin(async { Ok(()) })
    }

    fn pause_key<'a>(
        &'a self,
        _: &'a Name,
        _: &'a str,
        delay: Duration,
        _: &'a str,
    ) -> BoxFuture<'a, Result<i64, throttle::Error>> {
        Box::pin(async move { Ok(i64::try_from(delay.as_millis()).unwrap()) })
    }

    fn resume_key<'a>(
        &'a self,
        _: &'a Name,
        key: &'a str,
    ) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        Box::pin(async move { Ok(key.is_empty()) })
    }

    fn refused<'a>(
        &'a self,
        _: &'a Name,
        _: &'a UpstreamRefusal<'a>,
    ) -> BoxFuture<'a, Result<RefusalEffect, throttle::Error>> {
        unreachable!("no test runs jobs here")
    }

    fn ended<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [KeyOutcomes<'a>],
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test runs jobs here")
    }

    fn peek<'a>(&'a self, ask: &'a AcquireRequest) -> BoxFuture<'a, AcquireResponse> {
        self.acquire(ask)
    }

    fn status<'a>(
        &'a self,
        name: &'a Name,
    ) -> BoxFuture<'a, Result<Option<Status>, throttle::Error>> {
        Box::pin(async { self.answers().map(|()| self.find(name)) })
    }

    fn set_capacity<'a>(
        &'a self,
        _: &'a Name,
        _: Option<f64>,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), throttle::Error>> {
        unreachable!("no test here has accounts")
    }

    fn look<'a>(
        &'a self,
        _: &'a Name,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<throttle::KeyState>, throttle::Error>> {
        unreachable!("no test here has accounts")
    }

    fn delete<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<bool, throttle::Error>> {
        unreachable!("no test deletes a throttle here")
    }

    fn names(&self) -> BoxFuture<'_, Result<Vec<Name>, throttle::Error>> {
        Box::pin(async {
            self.answers()
                .map(|()| self.throttles.lock().keys().cloned().collect())
        })
    }

    fn set<'a>(
        &'a self,
        name: &'a Name,
        change: &'a Change,
    ) -> BoxFuture<'a, Result<(Option<Status>, Status), throttle::Error>> {
        Box::pin(async {
            self.answers()?;
            let before = self.find(name);
            if before.is_none() && !change.create {
                return Err(throttle::Error::Unknown(name.clone()));
            }
            let seq = before.as_ref().map_or(0, |before| before.knobs.seq);
            if change.if_seq.is_some_and(|wanted| wanted != seq) {
                return Err(throttle::Error::Conflict {
                    name: name.clone(),
                    what: format!("seq is {seq}"),
                });
            }
            let rps = change
                .fields
                .get("rps")
                .and_then(|text| text.as_ref()?.parse().ok())
                .unwrap_or(1.0);
            let after = status_of(name, rps, seq + 1);
            self.throttles.lock().insert(name.clone(), after.clone());
            Ok((before, after))
        })
    }
}

/// Checks `rps` only; the rules of all knobs have their own tests.
fn check_knobs(
    knobs: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Option<String>>, Vec<KnobProblem>> {
    let mut fields = BTreeMap::new();
    for (field, value) in knobs {
        if field == "rps" && value.as_f64().is_none_or(|rps| rps < -1.0) {
            return Err(vec![KnobProblem {
                field: "rps".into(),
                message: format!("{value} is not allowed"),
            }]);
        }
        fields.insert(field.clone(), Some(value.to_string()));
    }
    Ok(fields)
}

struct Noop;

impl Handler for Noop {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::Done }))
    }
}

// === a server for one test ===

struct Door {
    base: String,
    client: reqwest::Client,
    shelf: Arc<Shelf>,
    live: Live,
    cancel: CancellationToken,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn door(token: Option<&str>) -> Door {
    let shelf = Arc::new(Shelf::default());
    let name = Name::new("reindex").unwrap();
    shelf
        .throttles
        .lock()
        .insert(name.clone(), status_of(&name, 5.0, 17));
    let pool = PgPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy("postgres://nobody@127.0.0.1:1/none")
        .unwrap();
    let mut kinds = jobs::Kinds::default();
    kinds.register("noop", Noop);
    let (live, cancel) = (Live::default(), CancellationToken::new());
    let queue = jobs::Queue::new(pool);
    let http = Arc::new(crate::providers::Http::new(crate::outbound::Guard::open()).unwrap());
    let deps = Deps {
        deliveries: crate::notify::Deliveries::new(queue.pool.clone()),
        queue,
        pools: Arc::new(crate::api::provider_events::example_pools()),
        tools: crate::providers::Tools {
            http: http.clone(),
            guarded: http,
        },
        public_url: String::new(),
        throttles: shelf.clone(),
        check_knobs,
        kinds,
        desks: Vec::new(),
        decisions: Arc::new(NoDecisions),
        live: live.clone(),
        tokens: token
            .map(|token| AuthToken::new("default", TokenSecret::new(token)))
            .into_iter()
            .collect(),
        registry: Arc::default(),
        cancel: cancel.clone(),
    };
    let listener = crate::api::bind("127.0.0.1:0", token.is_some())
        .await
        .unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let ended = cancel.clone().cancelled_owned();
    let server = tokio::spawn(async move {
        axum::serve(listener, router(deps))
            .with_graceful_shutdown(ended)
            .await
    });
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .unwrap();
    Door {
        base,
        client,
        shelf,
        live,
        cancel,
        server,
    }
}

impl Door {
    fn ask(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.ask(Method::GET, path)
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Response {
        self.ask(method, path).json(&body).send().await.unwrap()
    }
}

/// Checks the shape of a problem and returns its body.
async fn problem(response: Response, status: u16, code: &str) -> Value {
    assert_eq!(response.status().as_u16(), status);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(
        (body["status"].as_u64(), body["code"].as_str()),
        (Some(status.into()), Some(code)),
        "{body}"
    );
    assert_eq!(body["type"], format!("urn:flyball:problem:{code}"));
    assert!(
        body["title"].is_string() && body["detail"].is_string() && body["errors"].is_array(),
        "{body}"
    );
    body
}

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect()
}

// === routes and problems ===

#[tokio::test]
async fn every_route_is_in_the_document_and_every_path_of_the_document_is_a_route() {
    let door = door(None).await;
    let document: Value = door
        .get("/openapi.json")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.len(), 46, "{:?}", paths.keys());

    for (path, item) in paths {
        let url = path
            .replace("{name}", "none")
            .replace("{key}", "acme")
            .replace("{id}", "x");
        let url = url.replace("{pool}", "none").replace("{account}", "none");
        for method in [
            Method::GET,
            Method::POST,
            Method::PATCH,
            Method::PUT,
            Method::DELETE,
        ] {
            let response = door.ask(method.clone(), &url).send().await.unwrap();
            let is_known = response.status() != StatusCode::METHOD_NOT_ALLOWED;
            let is_declared = item.get(method.as_str().to_lowercase()).is_some();
            assert_eq!(is_known, is_declared, "{method} {path}");
            if !is_known {
                assert!(!response.headers()["allow"].is_empty());
                let body = problem(response, 405, "method_not_allowed").await;
                assert!(
                    body["detail"].as_str().unwrap().contains("Allow header"),
                    "{body}"
                );
            } else if response.status() == StatusCode::NOT_FOUND {
                let code = match path.split('/').nth(3) {
                    Some("provider-events") => "account_not_found",
                    Some("pools") => "pool_not_found",
                    _ => "throttle_not_found",
                };
                problem(response, 404, code).await;
            }
        }
    }
}

#[tokio::test]
async fn every_reference_of_the_document_leads_somewhere_and_every_operation_may_answer_a_problem()
{
    let door = door(None).await;
    let document: Value = door
        .get("/openapi.json")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let text = document.to_string();
    for reference in text
        .split("\"$ref\":\"#")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
    {
        assert!(document.pointer(reference).is_some(), "{reference}");
    }
    let mut ids = std::collections::BTreeSet::new();
    for operation in document["paths"]
        .as_object()
        .unwrap()
        .values()
        .flat_map(|item| item.as_object().unwrap().values())
    {
        assert!(
            ids.insert(operation["operationId"].as_str().unwrap()),
            "two operations have one id: {operation}"
        );
        let responses = operation["responses"].as_object().unwrap();
        assert!(
            responses.values().all(|response| !response["description"]
                .as_str()
                .unwrap_or_default()
                .is_empty()),
            "{operation}"
        );
        assert!(
            operation
                .pointer("/responses/default/content/application~1problem+json")
                .is_some(),
            "{operation}"
        );
        assert!(operation["summary"].is_string(), "{operation}");
    }
}

#[tokio::test]
async fn an_unknown_route_is_a_problem_that_says_where_the_routes_are() {
    let body = problem(
        door(None)
            .await
            .get("/api/v2/jobs?x=1")
            .send()
            .await
            .unwrap(),
        404,
        "route_not_found",
    )
    .await;
    assert_eq!(
        body["detail"],
        "there is no route /api/v2/jobs; /openapi.json lists them"
    );
}

#[tokio::test]
async fn a_body_that_is_not_sent_as_json_is_refused_with_what_to_send() {
    let door = door(None).await;
    for kind in [
        Some("application/x-www-form-urlencoded"),
        Some("text/plain"),
        None,
    ] {
        let request = door.ask(Method::POST, "/api/v1/jobs").body("{}");
        let request = kind.map_or(request.try_clone().unwrap(), |kind| {
            request.header("content-type", kind)
        });
        let body = problem(request.send().await.unwrap(), 415, "unsupported_media_type").await;
        assert!(
            body["detail"]
                .as_str()
                .unwrap()
                .contains("application/json")
        );
    }
}

#[tokio::test]
async fn broken_json_is_refused_with_line_and_column() {
    let request = door(None)
        .await
        .ask(Method::POST, "/api/v1/jobs")
        .header("content-type", "application/json")
        .body("{\n\"cost\": NaN}");
    let body = problem(request.send().await.unwrap(), 400, "malformed_json").await;
    let detail = body["detail"].as_str().unwrap();
    assert!(
        detail.contains("line 2, column 9") && detail.contains("no NaN"),
        "{detail}"
    );
}

#[tokio::test]
async fn too_large_a_body_is_refused_with_the_limit_whether_or_not_its_length_is_announced() {
    let door = door(None).await;
    let body = json!({"kind": "noop", "args": {"blob": "x".repeat(10_000_000)}}).to_string();

    let announced = door
        .ask(Method::POST, "/api/v1/jobs")
        .header("content-type", "application/json")
        .body(body)
        .send()
        .await
        .unwrap();
    let refused = problem(announced, 413, "too_large").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("1048576 bytes (1 MiB)"),
        "{refused}"
    );

    let args = json!({"kind": "noop", "args": {"blob": "x".repeat(600_000)}});
    let refused = problem(
        door.send(Method::POST, "/api/v1/jobs", args).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/args"]);
}

#[tokio::test]
async fn a_batch_is_counted_while_it_is_read_and_a_length_beyond_the_limit_is_refused_at_once() {
    let door = door(None).await;
    let post = |body: String| {
        door.ask(Method::POST, "/api/v1/jobs/batch")
            .header("content-type", "application/json")
            .body(body)
    };

    let zeros = format!("[{}0]", "0,".repeat(8_000_000));
    let refused = problem(post(zeros).send().await.unwrap(), 422, "invalid_fields").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("more than 10000 jobs"),
        "{refused}"
    );
    let nested = format!("[[{}[]]]", "[],".repeat(8_000_000));
    let refused = problem(post(nested).send().await.unwrap(), 413, "too_large").await;
    assert!(
        refused["detail"]
            .as_str()
            .unwrap()
            .contains("bytes of memory"),
        "{refused}"
    );

    // The server does not wait for a body that is announced as this large.
    let mut stream = tokio::net::TcpStream::connect(door.base.trim_start_matches("http://"))
        .await
        .unwrap();
    let head = "POST /api/v1/jobs HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: 100000000000000\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut stream, head.as_bytes())
        .await
        .unwrap();
    let mut answer = Vec::new();
    let reading = tokio::io::AsyncReadExt::read_buf(&mut stream, &mut answer);
    tokio::time::timeout(std::time::Duration::from_secs(20), reading)
        .await
        .expect("an answer at once")
        .unwrap();
    assert!(
        answer.starts_with(b"HTTP/1.1 413 "),
        "{}",
        String::from_utf8_lossy(&answer)
    );
}

#[tokio::test]
async fn a_bad_job_is_refused_with_every_field_and_the_pointers_of_a_batch_have_indexes() {
    let door = door(None).await;
    let job = json!({"kind": 7, "priority": -1, "cost": "NaN", "colour": 1});
    let refused = problem(
        door.send(Method::POST, "/api/v1/jobs", job.clone()).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        pointers(&refused),
        ["/colour", "/kind", "/priority", "/cost"]
    );
    assert_eq!(refused["errors"][1]["in"], "body");
    assert!(
        refused["errors"][1]["message"]
            .as_str()
            .unwrap()
            .starts_with("must be a text of 1 to 128 bytes, not 7")
    );

    let batch = json!([{"kind": "noop"}, job]);
    let refused = problem(
        door.send(Method::POST, "/api/v1/jobs/batch", batch).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        pointers(&refused),
        ["/1/colour", "/1/kind", "/1/priority", "/1/cost"]
    );

    let many: Vec<Value> = vec![json!({"kind": 1}); 300];
    let refused = problem(
        door.send(Method::POST, "/api/v1/jobs/batch", json!(many))
            .await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(
        (pointers(&refused).len(), refused["errors_omitted"].as_u64()),
        (100, Some(200))
    );
}

#[tokio::test]
async fn bad_ids_names_and_parameters_are_refused_where_they_are() {
    let door = door(None).await;
    let refused = problem(
        door.get("/api/v1/jobs/abc").send().await.unwrap(),
        400,
        "invalid_path",
    )
    .await;
    assert_eq!(
        (refused["errors"][0]["in"].as_str(), pointers(&refused)),
        (Some("path"), vec!["/id"])
    );
    problem(
        door.get("/api/v1/throttles/two%20words")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_path",
    )
    .await;
    problem(
        door.get("/api/v1/throttles/%FF").send().await.unwrap(),
        400,
        "bad_request",
    )
    .await;
    let refused = problem(
        door.get("/api/v1/jobs?stat=ready&limit=0&state=redy")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_query",
    )
    .await;
    assert_eq!(pointers(&refused), ["/stat", "/state", "/limit"]);
    problem(
        door.get("/api/v1/decisions?limit=1e3")
            .send()
            .await
            .unwrap(),
        400,
        "invalid_query",
    )
    .await;
}

#[tokio::test]
async fn while_postgres_does_not_answer_requests_are_told_to_come_back() {
    let door = door(None).await;
    for path in ["/api/v1/workers", "/api/v1/audit"] {
        let response = door.get(path).send().await.unwrap();
        assert_eq!(response.headers()["retry-after"], "1");
        problem(response, 503, "queue_lost").await;
    }
    let ready = problem(door.get("/readyz").send().await.unwrap(), 503, "not_ready").await;
    assert_eq!(ready["detail"], "Postgres does not answer within 1 s");
    assert_eq!(
        door.get("/healthz")
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap(),
        json!({"status": "alive"})
    );
}

#[tokio::test]
async fn while_postgres_does_not_answer_nobody_can_say_that_a_kind_is_wrong() {
    let door = door(None).await;
    let job = json!({"kind": "elsewhere"});
    let schedule = json!({"kind": "elsewhere", "expression": "@daily"});

    for (method, path, body) in [
        (Method::POST, "/api/v1/jobs", job.clone()),
        (Method::POST, "/api/v1/jobs/batch", json!([job])),
        (Method::PUT, "/api/v1/crons/nightly", schedule),
    ] {
        let response = door.send(method, path, body).await;

        assert_eq!(response.headers()["retry-after"], "1", "{path}");
        problem(response, 503, "queue_lost").await;
    }
}

#[tokio::test]
async fn while_redis_does_not_answer_throttles_are_503_and_a_defect_is_a_500_problem() {
    let door = door(None).await;
    door.shelf.is_lost.store(true, Ordering::SeqCst);
    problem(
        door.get("/api/v1/throttles").send().await.unwrap(),
        503,
        "throttles_lost",
    )
    .await;
    assert_eq!(
        door.get("/readyz")
            .send()
            .await
            .unwrap()
            .json::<Value>()
            .await
            .unwrap()["detail"],
        "Postgres and Redis do not answer within 1 s"
    );
    door.shelf.panics.store(true, Ordering::SeqCst);
    let body = problem(
        door.get("/api/v1/throttles").send().await.unwrap(),
        500,
        "internal",
    )
    .await;
    assert!(
        !body.to_string().contains("the store has a defect"),
        "the reason belongs into the log"
    );
}

// === throttles ===

#[tokio::test]
async fn a_throttle_is_shown_with_its_seq_as_etag() {
    let door = door(None).await;
    let response = door.get("/api/v1/throttles/reindex").send().await.unwrap();
    assert_eq!(response.headers()["etag"], "\"17\"");
    let one: Value = response.json().await.unwrap();
    assert_eq!(
        (
            one["state"].as_str(),
            one["effective_rps"].as_f64(),
            &one["achieved_rps"]
        ),
        (Some("flowing"), Some(5.0), &Value::Null)
    );
    assert_eq!(one["knobs"]["on_store_loss"], "closed");
    let all: Value = door
        .get("/api/v1/throttles")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(all["throttles"], json!([one]));
    let why: Value = door
        .get("/api/v1/throttles/reindex/why")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        why["sentence"],
        "reindex runs at 5 a second; its knobs were last changed by alice: a test"
    );
}

#[tokio::test]
async fn an_edit_is_made_under_its_condition_and_a_lost_audit_line_is_a_warning() {
    let door = door(None).await;
    let edit = |seq: &'static str| {
        door.ask(Method::PATCH, "/api/v1/throttles/reindex")
            .header("if-match", seq)
    };

    problem(
        edit("\"16\"")
            .json(&json!({"rps": 9}))
            .send()
            .await
            .unwrap(),
        409,
        "conflict",
    )
    .await;
    problem(
        edit("seventeen")
            .json(&json!({"rps": 9}))
            .send()
            .await
            .unwrap(),
        400,
        "invalid_header",
    )
    .await;
    let response = edit("\"17\"")
        .json(&json!({"rps": 9, "by": "bob", "why": "quiet night"}))
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            response.status(),
            response.headers()["etag"].to_str().unwrap()
        ),
        (StatusCode::OK, "\"18\"")
    );
    let body: Value = response.json().await.unwrap();
    assert_eq!(body["knobs"]["rps"], 9.0);
    assert!(body["warnings"][0].as_str().unwrap().contains("audit log"));
}

#[tokio::test]
async fn a_wrong_edit_changes_nothing_and_lists_all_that_is_wrong() {
    let door = door(None).await;
    let edit = |path: &'static str, body: Value| door.send(Method::PATCH, path, body);

    let wrong = json!({"rps": "fast", "seq": 3, "by": 5, "parent": "reindex"});
    let refused = problem(
        edit("/api/v1/throttles/reindex", wrong).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/seq", "/by", "/rps", "/parent"]);
    problem(
        edit("/api/v1/throttles/reindex", json!({"why": "no reason"})).await,
        422,
        "invalid_fields",
    )
    .await;
    problem(
        edit("/api/v1/throttles/reindex", json!([1])).await,
        422,
        "invalid_fields",
    )
    .await;
    problem(
        edit("/api/v1/throttles/new", json!({"rps": 1})).await,
        404,
        "throttle_not_found",
    )
    .await;
    problem(
        edit("/api/v1/throttles/new?create=yes", json!({"rps": 1})).await,
        400,
        "invalid_query",
    )
    .await;
    assert_eq!(
        edit("/api/v1/throttles/new?create=true", json!({"rps": 1}))
            .await
            .status(),
        StatusCode::OK
    );
    assert_eq!(
        door.shelf
            .find(&Name::new("reindex").unwrap())
            .unwrap()
            .knobs
            .seq,
        17
    );
}

#[tokio::test]
async fn any_program_can_take_tokens() {
    let door = door(None).await;
    let take = |name: &str, body: Value| {
        door.ask(Method::POST, &format!("/api/v1/throttles/{name}/acquire"))
            .json(&body)
            .send()
    };

    let all: Value = take("reindex", json!({"want": 2}))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (&all["granted"], &all["wait_s"], &all["limit"]),
        (&json!(2), &json!(0.0), &Value::Null)
    );
    let some: Value = take("reindex", json!({"want": 3, "key": "acme", "cost": 0.5}))
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (&some["granted"], &some["wait_s"], &some["limit"]),
        (&json!(2), &json!(0.5), &json!({"level": "throttle"}))
    );
    assert_eq!(some["until"], "1970-01-01T00:00:01.5Z");
    problem(
        take("none", json!({})).await.unwrap(),
        404,
        "throttle_not_found",
    )
    .await;
    let wrong =
        json!({"want": -1, "cost": -1, "key": [], "held": 1.5, "holder": "", "ttl_s": 4000});
    let refused = problem(take("reindex", wrong).await.unwrap(), 422, "invalid_fields").await;
    let mut named = pointers(&refused);
    named.sort();
    assert_eq!(
        named,
        ["/cost", "/held", "/holder", "/key", "/ttl_s", "/want"]
    );
}

#[tokio::test]
async fn keys_are_paused_and_resumed_and_a_minus_is_the_lane_without_a_key() {
    let door = door(None).await;
    let paused: Value = door
        .send(
            Method::POST,
            "/api/v1/throttles/reindex/keys/a%2Fb/pause",
            json!({"seconds": 5}),
        )
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(
        (paused["key"].as_str(), paused["until"].as_str()),
        (Some("a/b"), Some("1970-01-01T00:00:05Z"))
    );
    let resumed: Value = door
        .ask(Method::POST, "/api/v1/throttles/reindex/keys/-/resume")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        (resumed["key"].as_str(), resumed["resumed"].as_bool()),
        (Some(""), Some(true))
    );
    let minus: Value = door
        .ask(Method::POST, "/api/v1/throttles/reindex/keys/--/resume")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(minus["key"], "-");
    for body in [
        json!({}),
        json!({"seconds": 0}),
        json!({"seconds": "5"}),
        json!({"seconds": 1e9}),
    ] {
        let refused = problem(
            door.send(Method::POST, "/api/v1/throttles/reindex/keys/a/pause", body)
                .await,
            422,
            "invalid_fields",
        )
        .await;
        assert_eq!(pointers(&refused), ["/seconds"]);
    }
    problem(
        door.send(
            Method::POST,
            "/api/v1/throttles/none/keys/a/pause",
            json!({"seconds": 5}),
        )
        .await,
        404,
        "throttle_not_found",
    )
    .await;
}

// === authentication ===

#[tokio::test]
async fn with_a_token_every_route_but_health_asks_for_it() {
    let door = door(Some("s3cret")).await;
    for path in [
        "/",
        "/metrics",
        "/openapi.json",
        "/api/v1/throttles",
        "/api/v1/stream",
        "/assets/app.js",
        "/nowhere",
    ] {
        let response = door.get(path).send().await.unwrap();
        assert_eq!(
            response.headers()["www-authenticate"],
            "Bearer realm=\"flyball\""
        );
        problem(response, 401, "unauthorized").await;
        problem(
            door.get(path).bearer_auth("s3cre").send().await.unwrap(),
            401,
            "unauthorized",
        )
        .await;
    }
    assert_eq!(
        door.get("/healthz").send().await.unwrap().status(),
        StatusCode::OK
    );
    let open = door
        .get("/api/v1/throttles")
        .bearer_auth("s3cret")
        .header("host", "flyball.example")
        .send()
        .await
        .unwrap();
    assert_eq!(open.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_browser_is_shown_the_login_page_and_stays_logged_in_by_a_cookie_that_pages_cannot_read()
{
    let door = door(Some("s3cret")).await;
    let page = door
        .get("/")
        .header("accept", "text/html,*/*")
        .send()
        .await
        .unwrap();
    assert_eq!(
        (
            page.status(),
            page.headers()["cache-control"].to_str().unwrap()
        ),
        (StatusCode::UNAUTHORIZED, "no-store")
    );
    assert!(page.text().await.unwrap().contains("name=\"token\""));

    let login = |token: &str| {
        let form = door
            .ask(Method::POST, "/login")
            .header("content-type", "application/x-www-form-urlencoded");
        form.body(format!("token={token}")).send()
    };
    assert_eq!(
        login("wrong").await.unwrap().status(),
        StatusCode::UNAUTHORIZED
    );
    let welcome = login("s3cret").await.unwrap();
    assert_eq!(
        (
            welcome.status(),
            welcome.headers()["location"].to_str().unwrap()
        ),
        (StatusCode::SEE_OTHER, "/")
    );
    let cookie = welcome.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(
        cookie.contains("; HttpOnly; SameSite=Strict")
            && !cookie.contains("Secure")
            && !cookie.contains("s3cret"),
        "{cookie}"
    );

    let value = cookie.split(';').next().unwrap();
    assert_eq!(
        door.get("/api/v1/throttles")
            .header("cookie", value)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::OK
    );
    let forged = value.replace('.', "0.");
    problem(
        door.get("/api/v1/throttles")
            .header("cookie", forged)
            .send()
            .await
            .unwrap(),
        401,
        "unauthorized",
    )
    .await;
    let edit = door
        .ask(Method::PATCH, "/api/v1/throttles/reindex")
        .header("cookie", value)
        .header("sec-fetch-site", "cross-site");
    problem(
        edit.json(&json!({"rps": 1})).send().await.unwrap(),
        403,
        "foreign_origin",
    )
    .await;
}

#[tokio::test]
async fn without_a_token_other_names_and_other_sites_are_refused() {
    let door = door(None).await;
    problem(
        door.get("/api/v1/throttles")
            .header("host", "evil.example")
            .send()
            .await
            .unwrap(),
        403,
        "foreign_host",
    )
    .await;
    let edit = door
        .ask(Method::PATCH, "/api/v1/throttles/reindex")
        .header("origin", "https://evil.example");
    problem(
        edit.json(&json!({"rps": 1})).send().await.unwrap(),
        403,
        "foreign_origin",
    )
    .await;
}

#[tokio::test]
async fn every_answer_carries_the_headers_that_keep_browsers_in_bounds() {
    let door = door(None).await;
    for path in ["/", "/healthz", "/nowhere", "/api/v1/throttles"] {
        let response = door.get(path).send().await.unwrap();
        let header = |name: &str| response.headers()[name].to_str().unwrap();
        assert!(
            header("content-security-policy").starts_with("default-src 'none'; script-src 'self'"),
            "{path}"
        );
        assert_eq!(
            (header("x-content-type-options"), header("referrer-policy")),
            ("nosniff", "no-referrer")
        );
    }
}

#[tokio::test]
async fn the_dashboard_is_served_with_etags_and_nothing_beside_its_files() {
    let door = door(None).await;
    let page = door.get("/").send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    let tag = page.headers()["etag"].to_str().unwrap().to_owned();
    assert_eq!(
        door.get("/")
            .header("if-none-match", tag)
            .send()
            .await
            .unwrap()
            .status(),
        StatusCode::NOT_MODIFIED
    );
    for path in [
        "/assets/none.js",
        "/assets/..%2fmod.rs",
        "/assets/login.html",
        "/assets/",
    ] {
        assert_eq!(
            door.get(path).send().await.unwrap().status(),
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

// === the stream ===

fn tick(at: i64) -> Tick {
    Tick {
        at,
        throttles: BTreeMap::new(),
        running_total: 0,
        workers: 1,
        depth_age_s: None,
    }
}

/// Reads `count` events.
async fn events(response: &mut Response, count: usize) -> String {
    let mut text = String::new();
    while text.matches("\n\n").count() < count {
        let chunk = tokio::time::timeout(Duration::from_secs(5), response.chunk())
            .await
            .expect("events in time")
            .unwrap();
        text.push_str(std::str::from_utf8(&chunk.expect("the stream goes on")).unwrap());
    }
    text
}

#[tokio::test]
async fn a_listener_gets_the_history_and_then_each_tick_and_after_a_break_only_what_it_missed() {
    let door = door(None).await;
    (1..=3).for_each(|at| door.live.publish_tick(&tick(at)));
    let mut stream = door.get("/api/v1/stream").send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");

    let history = events(&mut stream, 1).await;
    assert!(
        history.contains("event: history")
            && history.contains("id: 3")
            && history.contains("\"at\":1,"),
        "{history}"
    );
    door.live.publish_tick(&tick(4));
    door.live.publish("decision", &json!({"id": 1}));
    let next = events(&mut stream, 2).await;
    assert!(
        next.contains("event: tick") && next.contains("id: 4") && next.contains("event: decision"),
        "{next}"
    );

    let mut again = door
        .get("/api/v1/stream")
        .header("last-event-id", "3")
        .send()
        .await
        .unwrap();
    let history = events(&mut again, 1).await;
    assert!(
        history.contains("\"at\":4,") && !history.contains("\"at\":3,"),
        "{history}"
    );
}

#[tokio::test]
async fn streams_are_bounded_and_end_when_the_server_stops() {
    let door = door(None).await;
    let mut streams = Vec::new();
    for _ in 0..STREAMS_MAX {
        streams.push(door.get("/api/v1/stream").send().await.unwrap());
    }
    let refused = door.get("/api/v1/stream").send().await.unwrap();
    assert_eq!(refused.headers()["retry-after"], "5");
    problem(refused, 503, "too_many_streams").await;

    door.cancel.cancel();

    let ended = tokio::time::timeout(Duration::from_secs(5), door.server).await;
    assert!(
        ended
            .expect("the server ends although streams are open")
            .unwrap()
            .is_ok()
    );
}

// === metrics ===

#[tokio::test]
async fn requests_are_counted_by_the_routes_template_and_never_by_path_or_key() {
    let door = door(None).await;
    let _ = door.get("/api/v1/jobs/abc").send().await.unwrap();
    let _ = door.get("/secret-path").send().await.unwrap();
    let _ = door
        .ask(Method::from_bytes(b"BREW").unwrap(), "/healthz")
        .send()
        .await
        .unwrap();
    let text = door
        .get("/metrics")
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert!(
        text.contains(
            r#"flyball_http_requests_total{route="/api/v1/jobs/{id}",method="GET",status="400"} 1"#
        ),
        "{text}"
    );
    assert!(
        text.contains(r#"route="unmatched""#)
            && text.contains(r#"method="other""#)
            && !text.contains("secret-path")
            && !text.contains("BREW")
    );
}
