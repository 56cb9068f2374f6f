//! The HTTP API on a real Postgres and a real Redis.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, AuthToken, Deps, Live, NoDecisions, TokenSecret};
use flyball::jobs::{Handler, Issue, Kinds, NewJob, Outcome, PreparedJob, Queue};
use flyball::runner::keep_depth;
use flyball::throttle::{Change, Knobs, Name, RedisStore, Store};
use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::{Database, database, eventually, patient_store, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(20);

struct Mail;

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
struct Api {
    base: String,
    client: reqwest::Client,
    queue: Queue,
    store: Arc<dyn Store>,
    cancel: CancellationToken,
    served: JoinHandle<std::io::Result<()>>,
    prefix: String,
    _database: Database,
}

async fn spawn_api(token: Option<&str>) -> Api {
    let prefix = redis_prefix();
    let store = patient_store(&prefix).await;
    spawn_api_on(token, Arc::new(store), prefix).await
}

async fn spawn_api_on(token: Option<&str>, store: Arc<dyn Store>, prefix: String) -> Api {
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
        desks: Vec::new(),
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
    async fn turn(&self, throttle: &str, knobs: &[(&str, &str)]) {
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

    async fn get(&self, path: &str) -> Response {
        self.client
            .get(format!("{}{path}", self.base))
            .send()
            .await
            .unwrap()
    }

    async fn send(&self, method: Method, path: &str, body: &Value) -> Response {
        self.client
            .request(method, format!("{}{path}", self.base))
            .json(body)
            .send()
            .await
            .unwrap()
    }

    async fn post(&self, path: &str, body: Value) -> Response {
        self.send(Method::POST, path, &body).await
    }

    async fn body(&self, path: &str) -> Value {
        let response = self.get(path).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.json().await.unwrap()
    }

    /// Enqueues a job and answers its id.
    async fn enqueue(&self, more: Value) -> i64 {
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

    async fn count_jobs(&self) -> i64 {
        sqlx::query_scalar("select count(*) from flyball.job")
            .fetch_one(&self.queue.pool)
            .await
            .unwrap()
    }

    /// Writes a knob as a person with redis-cli does.
    async fn hset(&self, throttle: &str, field: &str, value: &str) {
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

async fn problem(response: Response, status: u16, code: &str) -> Value {
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

fn pointers(problem: &Value) -> Vec<&str> {
    problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|error| error["pointer"].as_str().unwrap())
        .collect()
}

// === enqueue ===

#[tokio::test]
async fn a_job_is_enqueued_with_its_place_and_a_second_one_with_its_unique_key_is_a_duplicate() {
    let api = spawn_api(None).await;
    api.turn("default", &[("rps", "5")]).await;
    let job = json!({"kind": "mail", "args": {"to": "a@example.org"}, "unique_key": "welcome", "unique_for": "10 minutes"});

    let first = api.post("/api/v1/jobs", job.clone()).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    let place = first.headers()["location"].to_str().unwrap().to_owned();
    let first: Value = first.json().await.unwrap();
    assert_eq!(place, format!("/api/v1/jobs/{}", first["id"]));
    assert_eq!(
        (&first["state"], &first["duplicate"], &first["warnings"]),
        (&json!("ready"), &json!(false), &json!([]))
    );
    assert_eq!(
        (
            &first["priority"],
            &first["max_attempts"],
            &first["throttle"]
        ),
        (&json!(1), &json!(10), &json!("default"))
    );

    let second = api.post("/api/v1/jobs", job).await;
    assert_eq!(second.status(), StatusCode::OK);
    let second: Value = second.json().await.unwrap();
    assert_eq!(
        (&second["id"], &second["duplicate"]),
        (&first["id"], &json!(true))
    );
    assert_eq!(
        api.body(&place).await["args"],
        json!({"to": "a@example.org"})
    );
}

#[tokio::test]
async fn a_batch_is_enqueued_whole_or_not_at_all() {
    let api = spawn_api(None).await;
    let good = json!({"kind": "mail", "args": {"to": "a"}});
    let bad = json!({"kind": "mail", "args": {}, "priority": 9});

    let refused = api
        .post("/api/v1/jobs/batch", json!([good, bad, good]))
        .await;
    assert_eq!(
        pointers(&problem(refused, 422, "invalid_fields").await),
        ["/1/args/to", "/1/priority"]
    );
    assert_eq!(api.count_jobs().await, 0);

    let all = api
        .post(
            "/api/v1/jobs/batch",
            Value::from(vec![good.clone(); 10_000]),
        )
        .await;
    assert_eq!(all.status(), StatusCode::CREATED);
    let all: Value = all.json().await.unwrap();
    let ids: BTreeSet<i64> = all["jobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|job| job["id"].as_i64().unwrap())
        .collect();
    assert_eq!((ids.len(), api.count_jobs().await), (10_000, 10_000));
    assert_eq!(
        all["warnings"].as_array().unwrap().len(),
        1,
        "the throttle default does not exist here"
    );
    problem(
        api.post("/api/v1/jobs/batch", Value::from(vec![good; 10_001]))
            .await,
        422,
        "invalid_fields",
    )
    .await;
}

#[tokio::test]
async fn what_only_postgres_refuses_is_a_field_error_too() {
    let api = spawn_api(None).await;
    let far = json!({"kind": "mail", "args": {"to": "a"}, "run_at": "2190-01-01T00:00:00Z"});
    let refused = problem(
        api.post("/api/v1/jobs", far.clone()).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/run_at"]);
    let near = json!({"kind": "mail", "args": {"to": "a"}});
    let refused = problem(
        api.post("/api/v1/jobs/batch", json!([near, far])).await,
        422,
        "invalid_fields",
    )
    .await;
    assert_eq!(pointers(&refused), ["/1/run_at"]);
    assert_eq!(api.count_jobs().await, 0);
}

#[tokio::test]
async fn a_kind_that_another_process_registered_is_known_and_others_are_not() {
    let api = spawn_api(None).await;
    sqlx::query("select flyball.register_kind('elsewhere')")
        .execute(&api.queue.pool)
        .await
        .unwrap();
    assert_eq!(
        api.post("/api/v1/jobs", json!({"kind": "elsewhere"}))
            .await
            .status(),
        StatusCode::CREATED
    );
    let refused = problem(
        api.post("/api/v1/jobs", json!({"kind": "elswhere"})).await,
        422,
        "invalid_fields",
    )
    .await;
    let message = refused["errors"][0]["message"].as_str().unwrap();
    assert!(
        message.contains("did you mean \"elsewhere\"?") && message.contains("mail"),
        "{message}"
    );
}

#[tokio::test]
async fn nonsense_on_every_door_is_a_clear_problem_and_nothing_is_lost() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let id = api.enqueue(json!({"throttle": "reindex"})).await;
    let doors = [
        (Method::POST, "/api/v1/jobs".to_owned()),
        (Method::POST, "/api/v1/jobs/batch".to_owned()),
        (Method::PATCH, "/api/v1/throttles/reindex".to_owned()),
        (Method::POST, "/api/v1/throttles/reindex/acquire".to_owned()),
        (
            Method::POST,
            "/api/v1/throttles/reindex/keys/acme/pause".to_owned(),
        ),
    ];
    let nonsense: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"{".to_vec(),
        b"null".to_vec(),
        b"\"text\"".to_vec(),
        b"[[[]]]".to_vec(),
        b"{\"kind\":{}}".to_vec(),
        b"{\"rps\":NaN}".to_vec(),
        b"{\"rps\":1e999}".to_vec(),
        b"{\"rps\":-5,\"cost\":-5,\"seconds\":-5,\"kind\":\"mail\"}".to_vec(),
        b"{\"rps\":\"NaN\",\"mode\":\"fast\",\"paused\":\"perhaps\",\"burst\":[]}".to_vec(),
        b"{\"kind\":\"mail\",\"kind\":\"mail\"}".to_vec(),
        b"{\"key\":\"\\ud800\"}".to_vec(),
        b"{\"kind\":\"mail\",\"args\":{\"to\":\"\\u0000\"},\"why\":\"\\u0000\",\"key\":\"\\u0000\"}".to_vec(),
        b"\xff\xfe".to_vec(),
        "[".repeat(100_000).into_bytes(),
        format!("{{\"kind\":\"mail\",\"want\":0,\"args\":{{\"to\":\"{}\"}}}}", "x".repeat(300_000)).into_bytes(),
    ];
    for (method, path) in &doors {
        // Taking one token needs no body.
        for body in nonsense
            .iter()
            .filter(|body| !(body.is_empty() && path.ends_with("/acquire")))
        {
            let request = api
                .client
                .request(method.clone(), format!("{}{path}", api.base));
            let response = request
                .header("content-type", "application/json")
                .body(body.clone())
                .send()
                .await
                .unwrap();
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            let status = response.status();
            assert_eq!(
                response.headers()["content-type"],
                "application/problem+json",
                "{method} {path} {shown}: {status}"
            );
            assert!(
                matches!(status.as_u16(), 400 | 422),
                "{method} {path} {shown}: {status}"
            );
        }
    }
    assert_eq!(api.count_jobs().await, 1);
    assert_eq!(
        api.body(&format!("/api/v1/jobs/{id}")).await["state"],
        "ready"
    );
    assert_eq!(
        api.body("/api/v1/throttles/reindex").await["knobs"]["rps"],
        5.0
    );
}

// === look, cancel, retry ===

#[tokio::test]
async fn a_waiting_job_says_why_and_until_when() {
    let api = spawn_api(None).await;
    api.turn("stopped", &[("rps", "0")]).await;
    api.turn("open", &[("rps", "-1")]).await;
    api.turn("slow", &[("rps", "0.01")]).await;
    let waiting = async |more: Value| {
        let id = api.enqueue(more).await;
        api.body(&format!("/api/v1/jobs/{id}")).await["waiting"].clone()
    };

    let stopped = waiting(json!({"throttle": "stopped"})).await;
    assert!(
        stopped["reason"]
            .as_str()
            .unwrap()
            .starts_with("throttle stopped is stopped"),
        "{stopped}"
    );
    let unknown = waiting(json!({"throttle": "not-there-yet"})).await;
    assert!(
        unknown["reason"]
            .as_str()
            .unwrap()
            .contains("flyball throttle set not-there-yet"),
        "{unknown}"
    );
    let nobody = waiting(json!({"throttle": "open"})).await;
    assert_eq!(nobody["reason"], "no live worker runs jobs of kind mail");
    let later = waiting(json!({"throttle": "open", "run_at": "2035-01-01T00:00:00Z"})).await;
    assert_eq!(
        (&later["reason"], &later["until"]),
        (
            &json!("it is scheduled for a later time"),
            &json!("2035-01-01T00:00:00Z")
        )
    );

    let taken = api
        .post("/api/v1/throttles/slow/acquire", json!({}))
        .await
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!(taken["granted"], 1);
    let slow = waiting(json!({"throttle": "slow"})).await;
    assert_eq!(
        slow["reason"],
        "throttle slow grants 0.01 tokens a second, and other jobs go first"
    );
    assert!(slow["until"].is_string(), "{slow}");

    let pause = api
        .post(
            "/api/v1/throttles/open/keys/acme/pause",
            json!({"seconds": 60, "why": "429"}),
        )
        .await;
    let paused: Value = pause.json().await.unwrap();
    let held = waiting(json!({"throttle": "open", "key": "acme"})).await;
    assert_eq!(
        (&held["reason"], &held["until"]),
        (
            &json!("key \"acme\" of throttle open is paused: 429"),
            &paused["until"]
        )
    );
    let resumed = api
        .post("/api/v1/throttles/open/keys/acme/resume", json!({}))
        .await
        .json::<Value>()
        .await
        .unwrap();
    assert_eq!(resumed["resumed"], true);
}

#[tokio::test]
async fn programs_that_name_themselves_are_counted_by_limits_of_concurrency() {
    let api = spawn_api(None).await;
    api.turn(
        "slots",
        &[
            ("rps", "-1"),
            ("concurrency", "3"),
            ("key_concurrency", "2"),
        ],
    )
    .await;
    let take = async |body: Value| {
        let answer = api
            .post("/api/v1/throttles/slots/acquire", body)
            .await
            .json::<Value>()
            .await
            .unwrap();
        (
            answer["granted"].as_u64().unwrap(),
            answer["limit"]["level"].as_str().map(str::to_owned),
            answer["reason"].clone(),
        )
    };

    assert_eq!(
        take(json!({"holder": "a", "key": "acme", "want": 9}))
            .await
            .0,
        2
    );
    let (granted, level, reason) = take(json!({"holder": "b", "want": 9})).await;
    assert_eq!((granted, level.as_deref()), (1, Some("concurrency")));
    assert_eq!(
        reason,
        "throttle slots is at its concurrency limit; it starts when another job ends"
    );
    assert_eq!(
        take(json!({"want": 9})).await.0,
        9,
        "without a name nobody is counted"
    );
    let id = api
        .enqueue(json!({"throttle": "slots", "key": "acme"}))
        .await;
    let waiting = api.body(&format!("/api/v1/jobs/{id}")).await["waiting"].clone();
    assert_eq!(waiting["reason"], reason);

    assert_eq!(
        take(json!({"holder": "a", "key": "acme", "want": 0, "held": 1, "key_held": 1}))
            .await
            .0,
        0
    );

    assert_eq!(
        take(json!({"holder": "b", "want": 9, "held": 1})).await.0,
        1
    );
}

#[tokio::test]
async fn an_unknown_throttle_parks_its_jobs_and_is_shown_as_such() {
    let api = spawn_api(None).await;
    let response = api
        .post(
            "/api/v1/jobs",
            json!({"kind": "mail", "args": {"to": "a"}, "throttle": "parked"}),
        )
        .await;
    assert_eq!(response.status(), StatusCode::CREATED);
    let job: Value = response.json().await.unwrap();
    assert!(
        job["warnings"][0]
            .as_str()
            .unwrap()
            .contains("there is no throttle parked"),
        "{job}"
    );

    let shown = eventually("the parked throttle in the list", SOON, || async {
        let all = api.body("/api/v1/throttles").await;
        all["throttles"]
            .as_array()
            .unwrap()
            .iter()
            .find(|throttle| throttle["name"] == "parked")
            .cloned()
    })
    .await;
    assert_eq!(
        (&shown["state"], &shown["knobs"], &shown["depth"]["ready"]),
        (&json!("unknown"), &Value::Null, &json!(1))
    );
}

#[tokio::test]
async fn lanes_are_listed_with_depth_age_and_pause() {
    let api = spawn_api(None).await;
    api.turn("a/b", &[("rps", "0.01")]).await;
    for (key, jobs) in [("acme", 3), ("", 2), ("idle/ü", 1)] {
        let job = json!({"kind": "mail", "args": {"to": "a"}, "throttle": "a/b", "key": key});
        api.post("/api/v1/jobs/batch", json!(vec![job; jobs])).await;
    }
    api.post(
        "/api/v1/throttles/a%2Fb/keys/acme/pause",
        json!({"seconds": 60, "why": "429"}),
    )
    .await;
    api.queue.count_now().await.unwrap();

    let first = api.body("/api/v1/throttles/a%2Fb/lanes?limit=2").await;
    let second = api.body(first["next"].as_str().unwrap()).await;

    let lanes: Vec<_> = [&first, &second]
        .iter()
        .flat_map(|page| page["lanes"].as_array().unwrap())
        .map(|lane| (&lane["key"], &lane["depth"]))
        .collect();
    assert_eq!(
        lanes,
        [
            (&json!("acme"), &json!(3)),
            (&json!(""), &json!(2)),
            (&json!("idle/ü"), &json!(1))
        ]
    );
    assert_eq!(
        (
            &first["lanes"][0]["paused"]["why"],
            &first["lanes"][1]["paused"]
        ),
        (&json!("429"), &Value::Null)
    );
    assert!(
        first["lanes"][0]["oldest_ready_s"].as_f64().unwrap() >= 0.0
            && first["lanes"][0]["counted_at"].is_string()
    );
    assert_eq!(second["next"], Value::Null);
    let by_key = api
        .body("/api/v1/throttles/a%2Fb/lanes?order=key&limit=1")
        .await;
    assert_eq!(by_key["lanes"][0]["key"], "");
    assert_eq!(
        api.body(by_key["next"].as_str().unwrap()).await["lanes"][0]["key"],
        "acme"
    );
    assert_eq!(
        api.body("/api/v1/throttles/a%2Fb/lanes?key=acme").await["lanes"][0]["weight"],
        1.0
    );
    assert_eq!(
        api.body("/api/v1/throttles/a%2Fb/lanes?key=-").await["lanes"][0]["depth"],
        2
    );
    let wrong = api
        .get("/api/v1/throttles/a%2Fb/lanes?after=x&order=deep")
        .await;
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    let problem: Value = wrong.json().await.unwrap();
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2, "{problem}");
}

#[tokio::test]
async fn jobs_are_cancelled_and_retried_where_their_state_allows_it() {
    let api = spawn_api(None).await;
    let ready = api.enqueue(json!({})).await;
    let later = api.enqueue(json!({"run_at": "2035-01-01T00:00:00Z"})).await;
    let delete = async |id: i64| {
        api.send(Method::DELETE, &format!("/api/v1/jobs/{id}"), &Value::Null)
            .await
    };
    let retry = async |id: i64| {
        api.post(&format!("/api/v1/jobs/{id}/retry"), Value::Null)
            .await
    };

    let now: Value = retry(later).await.json().await.unwrap();
    assert_eq!(now["state"], "ready");
    let gone: Value = delete(ready).await.json().await.unwrap();
    assert_eq!(gone["state"], "cancelled");
    assert_eq!(
        delete(ready).await.status(),
        StatusCode::OK,
        "cancelling twice is no error"
    );
    let refused = problem(retry(ready).await, 409, "wrong_state").await;
    assert!(
        refused["detail"].as_str().unwrap().contains("is cancelled"),
        "{refused}"
    );
    problem(delete(12_345).await, 404, "job_not_found").await;
    problem(retry(12_345).await, 404, "job_not_found").await;
    problem(api.get("/api/v1/jobs/12345").await, 404, "job_not_found").await;
}

#[tokio::test]
async fn pages_lead_to_every_job_once_and_keep_the_filter() {
    let api = spawn_api(None).await;
    let job = |key: &str| NewJob {
        key: key.into(),
        ..NewJob::new("mail", json!({"to": "a"}))
    };
    let jobs: Vec<NewJob> = (0..25)
        .map(|i| job(if i % 5 == 0 { "other" } else { "a&b" }))
        .collect();
    api.queue.enqueue(&jobs).await.unwrap();

    let (mut seen, mut page) = (
        Vec::new(),
        Some("/api/v1/jobs?state=ready&kind=mail&key=a%26b&limit=7".to_owned()),
    );
    while let Some(path) = page {
        let response = api.get(&path).await;
        let link = response
            .headers()
            .get("link")
            .map(|link| link.to_str().unwrap().to_owned());
        let body: Value = response.json().await.unwrap();
        seen.extend(
            body["jobs"]
                .as_array()
                .unwrap()
                .iter()
                .map(|job| job["id"].as_i64().unwrap()),
        );
        page = body["next"].as_str().map(str::to_owned);
        assert_eq!(
            link,
            page.as_ref().map(|next| format!("<{next}>; rel=\"next\""))
        );
    }
    assert_eq!(seen.len(), 20);
    assert!(seen.is_sorted_by(|a, b| a > b), "newest first, none twice");
    assert_eq!(api.body("/api/v1/jobs?state=dead").await["jobs"], json!([]));
}

// === throttles ===

#[tokio::test]
async fn a_knob_is_turned_under_its_seq_with_a_line_in_the_audit_log() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let before = api.body("/api/v1/throttles/reindex").await;
    let edit = |seq: u64, body: Value| {
        let request = api
            .client
            .patch(format!("{}/api/v1/throttles/reindex", api.base))
            .header("if-match", format!("\"{seq}\""));
        request.json(&body).send()
    };
    let seq = before["seq"].as_u64().unwrap();

    let turned = edit(
        seq,
        json!({"rps": 12.5, "mode": "manual", "by": "alice", "why": "quiet night"}),
    )
    .await
    .unwrap();
    assert_eq!(turned.status(), StatusCode::OK);
    let turned: Value = turned.json().await.unwrap();
    assert_eq!(
        (
            &turned["knobs"]["rps"],
            &turned["effective_rps"],
            &turned["mode"]
        ),
        (&json!(12.5), &json!(12.5), &json!("manual"))
    );
    assert!(
        turned["seq"].as_u64().unwrap() > seq && turned.get("warnings").is_none(),
        "{turned}"
    );
    problem(
        edit(seq, json!({"rps": 99})).await.unwrap(),
        409,
        "conflict",
    )
    .await;

    let audit = api.body("/api/v1/audit").await;
    let entry = &audit["entries"][0];
    assert_eq!(
        (&entry["actor"], &entry["action"], &entry["subject"]),
        (&json!("alice"), &json!("throttle.set"), &json!("reindex"))
    );
    assert_eq!(
        (
            &entry["before"]["rps"],
            &entry["after"]["rps"],
            &entry["why"]
        ),
        (&json!("5"), &json!("12.5"), &json!("quiet night"))
    );
    let seq = turned["seq"].as_u64().unwrap();
    let past = edit(
        seq,
        json!({"mode": "manual", "manual_until_ms": 1_600_000_000_000_u64}),
    )
    .await
    .unwrap();
    assert_eq!(past.status(), StatusCode::UNPROCESSABLE_ENTITY);
    let past: Value = past.json().await.unwrap();
    assert!(
        past["errors"][0]["pointer"] == "/manual_until_ms"
            && past.to_string().contains("is in the past"),
        "{past}"
    );
    let why = api.body("/api/v1/throttles/reindex/why").await;
    assert!(why["sentence"].as_str().unwrap().contains("alice"), "{why}");
}

#[tokio::test]
async fn wrong_knobs_are_refused_each_with_its_pointer_and_nothing_changes() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let wrong = json!({"rps": "ten", "burst": -1, "mode": "fast", "paused": "perhaps", "safe_rps": null, "rsp": 1});
    let refused = problem(
        api.send(Method::PATCH, "/api/v1/throttles/reindex", &wrong)
            .await,
        422,
        "invalid_fields",
    )
    .await;
    let mut found = pointers(&refused);
    found.sort_unstable();
    assert_eq!(found, ["/burst", "/mode", "/paused", "/rps", "/rsp"]);
    assert_eq!(
        api.body("/api/v1/throttles/reindex").await["knobs"]["rps"],
        5.0
    );
    assert_eq!(api.body("/api/v1/audit").await["entries"], json!([]));
}

#[tokio::test]
async fn a_throttle_is_made_only_when_that_is_asked_for() {
    let api = spawn_api(None).await;
    let path = "/api/v1/throttles/%7Bnotify%7D.sms";
    problem(
        api.send(Method::PATCH, path, &json!({"rps": 1})).await,
        404,
        "throttle_not_found",
    )
    .await;
    let made = api
        .send(
            Method::PATCH,
            &format!("{path}?create=true"),
            &json!({"rps": 1}),
        )
        .await;
    assert_eq!(made.status(), StatusCode::OK);
    assert_eq!(api.body(path).await["name"], "{notify}.sms");
}

#[tokio::test]
async fn an_edit_by_redis_cli_shows_in_the_stream_within_two_seconds_with_the_pace_that_follows() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "50")]).await;
    // Several, so that somebody waits all the time, however slow this machine is.
    let takers = (0..4).map(|_| {
        let (client, url) = (
            api.client.clone(),
            format!("{}/api/v1/throttles/reindex/acquire", api.base),
        );
        tokio::spawn(async move {
            loop {
                let answer = client
                    .post(&url)
                    .json(&json!({"want": 100}))
                    .send()
                    .await
                    .unwrap()
                    .json::<Value>()
                    .await
                    .unwrap();
                let wait_s = answer["wait_s"].as_f64().unwrap();
                tokio::time::sleep(Duration::from_secs_f64(wait_s.clamp(0.005, 0.2))).await;
            }
        })
    });
    let takers: Vec<JoinHandle<()>> = takers.collect();
    let mut stream = api.get("/api/v1/stream").await;
    let paced = |low: f64, high: f64| {
        move |tick: &Value| {
            let one = &tick["throttles"]["reindex"];
            one["achieved_rps"]
                .as_f64()
                .is_some_and(|rps| rps > low && rps < high)
                && one["limiting_share"].as_f64() > Some(0.5)
        }
    };
    tick_where(&mut stream, paced(45.0, 55.0)).await;

    api.hset("reindex", "rps", "5").await;

    let tick = tick_where(&mut stream, |tick| {
        tick["throttles"]["reindex"]["rps"] == 5.0
    })
    .await;
    assert_eq!(tick["throttles"]["reindex"]["effective_rps"], 5.0);
    tick_where(&mut stream, paced(4.0, 6.5)).await;
    api.hset("reindex", "rps", "ten").await;
    tick_where(&mut stream, |tick| {
        tick["throttles"]["reindex"]["state"] == "safe_rps"
    })
    .await;
    let shown = api.body("/api/v1/throttles/reindex").await;
    assert!(
        shown["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("ten"),
        "{shown}"
    );
    takers.iter().for_each(JoinHandle::abort);
}

// === tokens for other programs ===

impl Api {
    async fn tokens(&self, path: &str, body: Value) -> Value {
        let response = self.post(&format!("/api/v1/throttles/{path}"), body).await;
        let (status, answer) = (response.status(), response.json::<Value>().await.unwrap());
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer
    }
}

/// So slow that no test lasts until the next token; ten fit.
const SLOW: [(&str, &str); 3] = [("rps", "0.0001"), ("burst", "2"), ("window", "50000")];

#[tokio::test]
async fn tokens_are_taken_all_or_nothing_peeked_at_and_given_back_and_never_above_full() {
    let api = spawn_api(None).await;
    api.turn("mail", &SLOW).await;

    let back = api.tokens("mail/return", json!({"tokens": 500})).await;
    assert_eq!(
        (&back["returned"], &back["remaining"]),
        (&json!(500.0), &json!(10)),
        "{back}"
    );
    let some = api.tokens("mail/acquire", json!({"tokens": 4})).await;
    assert_eq!(
        (
            &some["allowed"],
            &some["granted"],
            &some["remaining"],
            &some["retry_after_ms"],
            &some["limit"]
        ),
        (&json!(true), &json!(1), &json!(6), &json!(0), &Value::Null)
    );
    let none = api
        .tokens("mail/acquire", json!({"tokens": 7, "wait_ms": 0}))
        .await;
    assert_eq!(
        (
            &none["allowed"],
            &none["granted"],
            &none["remaining"],
            &none["limit"]
        ),
        (
            &json!(false),
            &json!(0),
            &json!(6),
            &json!({"level": "throttle"})
        )
    );
    let wait_ms = none["retry_after_ms"].as_u64().unwrap();
    assert!(
        (9_000_000..=10_000_000).contains(&wait_ms),
        "one token is due after 10,000 s: {none}"
    );
    for _ in 0..2 {
        let peeked = api.tokens("mail/peek", json!({"tokens": 6})).await;
        assert_eq!(
            (&peeked["allowed"], &peeked["remaining"]),
            (&json!(true), &json!(0)),
            "{peeked}"
        );
    }
    let more = api.tokens("mail/peek", json!({"tokens": 7})).await;
    assert_eq!(
        (
            &more["allowed"],
            &more["remaining"],
            &more["retry_after_ms"].is_u64()
        ),
        (&json!(false), &json!(6), &true)
    );
    assert_eq!(
        api.tokens("mail/return", json!({"tokens": 2})).await["remaining"],
        8
    );
    let units = api
        .tokens("mail/acquire", json!({"want": 20, "cost": 2}))
        .await;
    assert_eq!(
        (&units["allowed"], &units["granted"], &units["remaining"]),
        (&json!(false), &json!(4), &json!(0)),
        "{units}"
    );
    api.turn("free", &[("rps", "-1")]).await;
    let free = api.tokens("free/acquire", json!({"tokens": 1e6})).await;
    assert_eq!(
        (&free["allowed"], &free["remaining"]),
        (&json!(true), &Value::Null)
    );
}

#[tokio::test]
async fn the_level_that_limits_is_named_and_what_remains_is_what_it_holds() {
    let api = spawn_api(None).await;
    api.turn("all", &SLOW).await;
    api.turn(
        "mail",
        &[
            ("rps", "-1"),
            ("key_rps", "0.0001"),
            ("window", "40000"),
            ("parent", "all"),
        ],
    )
    .await;
    api.tokens("all/return", json!({"tokens": 500})).await;

    // A key is full when it is first seen: it holds four, the tier ten.
    let first = api
        .tokens("mail/acquire", json!({"tokens": 4, "key": "acme"}))
        .await;
    assert_eq!(
        (&first["allowed"], &first["remaining"]),
        (&json!(true), &json!(0)),
        "{first}"
    );
    let key = api
        .tokens("mail/acquire", json!({"tokens": 1, "key": "acme"}))
        .await;
    assert_eq!(
        (&key["allowed"], &key["limit"]["level"]),
        (&json!(false), &json!("key"))
    );
    let other = api
        .tokens("mail/acquire", json!({"tokens": 3, "key": "zeta"}))
        .await;
    assert_eq!(
        (&other["allowed"], &other["remaining"]),
        (&json!(true), &json!(1))
    );
    let tier = api.tokens("mail/acquire", json!({"tokens": 4})).await;
    assert_eq!(
        (&tier["limit"], &tier["remaining"]),
        (&json!({"level": "tier", "name": "all"}), &json!(3))
    );
    assert_eq!(
        api.tokens("mail/return", json!({"tokens": 2, "key": "zeta"}))
            .await["remaining"],
        3
    );
    api.post(
        "/api/v1/throttles/mail/keys/acme/pause",
        json!({"seconds": 60, "why": "429"}),
    )
    .await;
    let paused = api
        .tokens("mail/peek", json!({"tokens": 1, "key": "acme"}))
        .await;
    assert_eq!(
        (
            &paused["allowed"],
            &paused["remaining"],
            &paused["limit"]["why"]
        ),
        (&json!(false), &json!(0), &json!("429"))
    );
}

#[tokio::test]
async fn wrong_fields_of_acquire_peek_and_return_are_named_and_an_unknown_throttle_is_404() {
    let api = spawn_api(None).await;
    api.turn("mail", &[("rps", "5")]).await;
    for (path, body, wrong) in [
        ("acquire", json!({"tokens": 0}), "/tokens"),
        ("acquire", json!({"tokens": "many"}), "/tokens"),
        ("acquire", json!({"tokens": 1, "want": 2}), "/tokens"),
        ("acquire", json!({"wait_ms": 30_001}), "/wait_ms"),
        ("acquire", json!({"wait_ms": -1}), "/wait_ms"),
        ("acquire", json!({"wait_ms": 1.5}), "/wait_ms"),
        ("acquire", json!({"wait": 1}), "/wait"),
        ("peek", json!({"wait_ms": 1}), "/wait_ms"),
        ("peek", json!({"key": 5}), "/key"),
        ("return", json!({}), "/tokens"),
        ("return", json!({"tokens": -1}), "/tokens"),
        (
            "return",
            json!({"tokens": 1, "key": "x".repeat(600)}),
            "/key",
        ),
    ] {
        let refused = problem(
            api.post(&format!("/api/v1/throttles/mail/{path}"), body.clone())
                .await,
            422,
            "invalid_fields",
        )
        .await;
        assert_eq!(pointers(&refused), [wrong], "{path} {body}");
    }
    for path in ["acquire", "peek", "return"] {
        let body = json!({"tokens": 1});
        problem(
            api.post(&format!("/api/v1/throttles/none/{path}"), body)
                .await,
            404,
            "throttle_not_found",
        )
        .await;
    }
    let body = json!({"tokens": 1, "wait_ms": 30_000});
    problem(
        api.post("/api/v1/throttles/none/acquire", body).await,
        404,
        "throttle_not_found",
    )
    .await;
}

#[tokio::test]
async fn a_request_waits_on_the_server_for_its_tokens_and_no_longer_than_it_said() {
    let api = spawn_api(None).await;
    api.turn("mail", &[("rps", "20")]).await;
    api.turn("stopped", &[("rps", "0")]).await;

    let took = api
        .tokens("mail/acquire", json!({"tokens": 10, "wait_ms": 30_000}))
        .await;
    assert_eq!(
        (&took["allowed"], &took["retry_after_ms"]),
        (&json!(true), &json!(0))
    );
    let began = std::time::Instant::now();
    let refused = api.tokens("stopped/acquire", json!({"wait_ms": 300})).await;
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(
        (&refused["allowed"], &refused["limit"]["level"]),
        (&json!(false), &json!("stopped"))
    );

    // A person turns the knob up while a request waits.
    let waiting = api.tokens("stopped/acquire", json!({"wait_ms": 30_000}));
    let (waited, ()) = tokio::join!(waiting, api.turn("stopped", &[("rps", "50")]));
    assert_eq!(waited["allowed"], true);
}

#[tokio::test]
async fn those_who_wait_for_one_lane_stand_in_line_and_only_the_first_asks_redis() {
    let server = crate::support::redis_server::Server::start();
    let store = RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let api = spawn_api_on(None, Arc::new(store), String::new()).await;
    eventually("Redis", SOON, || async { api.store.names().await.ok() }).await;
    api.turn("mail", &[("rps", "100")]).await;

    let take = |_| api.tokens("mail/acquire", json!({"tokens": 1, "wait_ms": 30_000}));
    let answers = futures_util::future::join_all((0..60).map(take)).await;

    assert!(answers.iter().all(|answer| answer["allowed"] == true));
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut connection)
        .await
        .unwrap();
    let asked = info.lines().find_map(|line| {
        line.strip_prefix("cmdstat_evalsha:calls=")?
            .split(',')
            .next()?
            .parse::<u32>()
            .ok()
    });
    // One to hear how long, one to take and one to see what is left. If all asked
    // whenever one token is due, it would be two thousand.
    assert!(asked.unwrap() < 60 * 6, "{asked:?}");
}

/// Reads the stream until a tick is as wanted.
async fn tick_where(stream: &mut Response, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut text = String::new();
    let found = async {
        loop {
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((event, rest)) = text
                .split_once("\n\n")
                .map(|(event, rest)| (event.to_owned(), rest.to_owned()))
            {
                text = rest;
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let is_tick = event.lines().any(|line| line == "event: tick");
                if let Some(tick) = data
                    .filter(|_| is_tick)
                    .map(|data| serde_json::from_str::<Value>(data).unwrap())
                    && wanted(&tick)
                {
                    return tick;
                }
            }
        }
    };
    tokio::time::timeout(SOON, found)
        .await
        .expect("the tick that was wanted")
}

#[tokio::test]
async fn a_change_by_anybody_is_an_event_of_the_stream() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let mut stream = api.get("/api/v1/stream").await;
    let insert = "insert into flyball.audit (actor, action, subject) values ('cli', 'throttle.set', 'reindex')";
    let mut text = String::new();
    let seen = async {
        // The first look at the journals sets the mark, so lines are written until one is seen.
        while !text.contains("event: audit") {
            sqlx::query(insert).execute(&api.queue.pool).await.unwrap();
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    tokio::time::timeout(SOON, seen)
        .await
        .expect("an audit event");
    assert!(text.contains("\"actor\":\"cli\""), "{text}");
}

// === the process ===

#[tokio::test]
async fn the_process_is_ready_counts_its_jobs_and_ends_although_somebody_listens() {
    let api = spawn_api(Some("s3cret")).await;
    api.turn("default", &[("rps", "5")]).await;
    api.queue
        .enqueue(&vec![NewJob::new("mail", json!({"to": "a"})); 3])
        .await
        .unwrap();
    assert_eq!(
        api.body("/readyz").await["checks"],
        json!({"postgres": "ok", "redis": "ok"})
    );
    let metrics = eventually("the count of jobs in the metrics", SOON, || async {
        let text = api
            .client
            .get(format!("{}/metrics", api.base))
            .bearer_auth("s3cret")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        text.contains("flyball_throttle_ready_jobs{throttle=\"default\"} 3.0")
            .then_some(text)
    })
    .await;
    assert!(
        metrics.contains("flyball_throttle_rps{throttle=\"default\"} 5.0")
            && metrics.contains("flyball_store_lost 0.0")
    );
    let stream = api
        .client
        .get(format!("{}/api/v1/stream", api.base))
        .bearer_auth("s3cret")
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), StatusCode::OK);

    api.cancel.cancel();

    tokio::time::timeout(Duration::from_secs(5), api.served)
        .await
        .expect("the server ends")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn every_statement_of_the_api_can_be_prepared_on_the_migrated_schema() {
    use sqlx::{Executor as _, SqlSafeStr as _};
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();
    for (name, statement) in api::postgres::STATEMENTS {
        let prepared = connection
            .prepare(sqlx::AssertSqlSafe(statement.to_owned()).into_sql_str())
            .await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

async fn cap(api: &Api, throttle: &str, fields: Value) {
    let sql = "insert into flyball.knobs (throttle, fields) values ($1, $2)";
    sqlx::query(sql)
        .bind(throttle)
        .bind(fields)
        .execute(&api.queue.pool)
        .await
        .unwrap();
}

#[tokio::test]
async fn a_full_lane_answers_503_with_its_depth_and_when_to_try_again() {
    let api = spawn_api(None).await;
    cap(
        &api,
        "hooks",
        json!({"max_backlog": "1", "on_backlog": "reject"}),
    )
    .await;
    cap(&api, "mails", json!({"max_backlog": "1"})).await;
    let job = |throttle: &str| json!({"kind": "mail", "args": {"to": "a"}, "throttle": throttle, "key": "k"});

    let first = api.post("/api/v1/jobs", job("hooks")).await;
    assert_eq!(first.status(), StatusCode::CREATED);
    assert_eq!(first.json::<Value>().await.unwrap()["backlog"], Value::Null);
    for (path, body) in [
        ("/api/v1/jobs", job("hooks")),
        ("/api/v1/jobs/batch", json!([job("mails"), job("hooks")])),
    ] {
        let full = api.post(path, body).await;
        assert_eq!(full.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(full.headers()["retry-after"], "5");
        assert_eq!(full.headers()["content-type"], "application/problem+json");
        let problem: Value = full.json().await.unwrap();
        assert_eq!(
            (&problem["code"], &problem["depth"], &problem["max_backlog"]),
            (&json!("lane_full"), &json!(1), &json!(1))
        );
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("throttle \"hooks\", key \"k\": 1 jobs of this lane are ready"),
            "{detail}"
        );
    }

    let batch: Value = api
        .post("/api/v1/jobs/batch", json!([job("mails"), job("mails")]))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(batch["jobs"][1]["backlog"], json!({"depth": 2, "max": 1}));
    let metrics = api.get("/metrics").await.text().await.unwrap();
    assert!(
        metrics.contains(r#"flyball_enqueue_over_backlog_total{answer="rejected"} 2"#),
        "{metrics}"
    );
    assert!(
        metrics.contains(r#"flyball_enqueue_over_backlog_total{answer="signalled"} 2"#),
        "{metrics}"
    );
}

#[tokio::test]
async fn the_trace_of_a_request_is_kept_with_its_jobs_unless_the_body_names_one() {
    let api = spawn_api(None).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let other = trace.replace("00f0", "11f0");
    let post = async |header: &str, path: &str, body: Value| {
        let request = api
            .client
            .post(format!("{}{path}", api.base))
            .header("traceparent", header)
            .json(&body);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::CREATED);
    };
    let job = json!({"kind": "mail", "args": {"to": "a"}});
    let mut named = job.clone();
    named["traceparent"] = json!(other);

    post(trace, "/api/v1/jobs", job.clone()).await;
    post(trace, "/api/v1/jobs", named.clone()).await;
    post(trace, "/api/v1/jobs/batch", json!([job, named])).await;
    post("nonsense", "/api/v1/jobs", job.clone()).await;

    let sql = "select coalesce(traceparent, '') from flyball.job order by id";
    let kept: Vec<String> = sqlx::query_scalar(sql)
        .fetch_all(&api.queue.pool)
        .await
        .unwrap();
    assert_eq!(kept, [trace, &other, trace, &other, ""]);
    named["traceparent"] = json!("nonsense");
    let refused: Value = api.post("/api/v1/jobs", named).await.json().await.unwrap();
    assert_eq!(refused["errors"][0]["pointer"], "/traceparent");
}

#[tokio::test]
async fn a_job_that_replaces_the_waiting_one_is_no_new_job() {
    let api = spawn_api(None).await;
    let job = |n: i32| json!({"kind": "mail", "args": {"to": "a", "n": n}, "unique_key": "k", "debounce": "1 minute"});
    let first: Value = api.post("/api/v1/jobs", job(1)).await.json().await.unwrap();

    let second = api.post("/api/v1/jobs", job(2)).await;

    assert_eq!(second.status(), StatusCode::OK);
    let second: Value = second.json().await.unwrap();
    assert_eq!(
        (&second["id"], &second["replaced"], &second["duplicate"]),
        (&first["id"], &json!(true), &json!(true))
    );
    assert_eq!(
        (&second["state"], &second["args"]["n"]),
        (&json!("scheduled"), &json!(2))
    );
}
