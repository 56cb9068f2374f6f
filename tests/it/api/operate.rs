//! Operating the queue through its doors: the HTTP API and the command line.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use flyball::api::{self, Deps, Live, NoDecisions};
use flyball::jobs::postgres::{Ending, Finish, LaneClaim, NewWorker};
use flyball::jobs::{Kinds, NewJob, Queue, State};
use flyball::throttle::postgres::KnobRecord;
use flyball::throttle::{Change, Knobs, Name, Store};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Database, PROGRAM, database, patient_store, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(20);

/// A house with both doors: an API on a port of its own, and what a shell needs.
struct House {
    base: String,
    client: reqwest::Client,
    queue: Queue,
    store: Arc<dyn Store>,
    prefix: String,
    database: Database,
    cancel: CancellationToken,
}

async fn house() -> House {
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
        desks: Vec::new(),
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
    async fn send(&self, method: Method, path: &str, body: Value) -> (StatusCode, Value) {
        let response = self
            .client
            .request(method, format!("{}{path}", self.base))
            .json(&body)
            .send()
            .await
            .unwrap();
        (response.status(), response.json().await.unwrap())
    }

    /// What must be answered with 200.
    async fn ok(&self, method: Method, path: &str, body: Value) -> Value {
        let (status, said) = self.send(method, path, body).await;
        assert_eq!(status, StatusCode::OK, "{path}: {said}");
        said
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.ok(Method::POST, path, body).await
    }

    async fn get(&self, path: &str) -> Value {
        self.ok(Method::GET, path, json!({})).await
    }

    async fn enqueue(&self, count: usize, throttle: &str, key: &str) -> Vec<i64> {
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
    async fn kill(&self, error: &str) {
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

    async fn state(&self, id: i64) -> State {
        self.queue.get(id).await.unwrap().unwrap().summary.state
    }

    async fn turn(&self, throttle: &str, rps: &str) {
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

    async fn actions(&self) -> Vec<(String, String)> {
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
    async fn run(&self, args: &[&str]) -> (i32, String, String) {
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

    async fn says(&self, args: &[&str]) -> String {
        let (code, out, err) = self.run(args).await;
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        out
    }

    async fn refuses(&self, args: &[&str], code: i32, words: &str) {
        let (found, out, err) = self.run(args).await;
        assert!(
            found == code && err.contains(words) && !err.contains("panicked"),
            "{args:?}: {found} {out}{err}"
        );
    }
}

// === HTTP ===

#[tokio::test]
async fn one_job_is_rescheduled_discarded_and_retried_over_http() {
    let house = house().await;
    let id = house.enqueue(1, "t", "").await[0];
    let at = |verb: &str| format!("/api/v1/jobs/{id}/{verb}");

    let later = house
        .post(
            &at("reschedule"),
            json!({"run_at": "2033-01-01T10:00:00+01:00", "by": "alice", "why": "not now"}),
        )
        .await;
    assert_eq!(
        (&later["state"], &later["due_at"]),
        (&json!("scheduled"), &json!("2033-01-01T09:00:00Z"))
    );
    for (body, words) in [
        (json!({}), "is missing: it must be"),
        (json!({"run_at": "soon"}), "must be an RFC 3339 time"),
        (json!({"run_at": 5}), "must be an RFC 3339 time"),
        (
            json!({"run_at": "2033-01-01T10:00:00Z", "at": 1}),
            "is not a known field",
        ),
        (json!([]), "must be an object"),
    ] {
        let (status, said) = house.send(Method::POST, &at("reschedule"), body).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{said}");
        assert!(said["detail"].as_str().unwrap().contains(words), "{said}");
    }
    let (status, said) = house.send(Method::POST, &at("discard"), json!({})).await;
    assert_eq!(
        (status, &said["code"]),
        (StatusCode::CONFLICT, &json!("wrong_state"))
    );
    assert!(
        said["detail"]
            .as_str()
            .unwrap()
            .contains("is scheduled; only dead jobs can be discarded"),
        "{said}"
    );

    house.post(&at("retry"), Value::Null).await;
    house.kill("no").await;
    let again = house
        .post(&at("retry"), json!({"keep_attempts": true}))
        .await;
    assert_eq!(
        (&again["state"], &again["attempt"]),
        (&json!("ready"), &json!(1))
    );
    let (status, said) = house
        .send(Method::POST, &at("retry"), json!({"keep_attempts": "yes"}))
        .await;
    assert_eq!(
        (status, &said["errors"][0]["pointer"]),
        (StatusCode::UNPROCESSABLE_ENTITY, &json!("/keep_attempts"))
    );
    house.kill("no").await;
    assert_eq!(
        house.post(&at("discard"), json!({})).await["state"],
        "cancelled"
    );
    let attempts = house
        .get(&format!("/api/v1/jobs/{id}/attempts?limit=2"))
        .await;
    assert_eq!(attempts["attempts"].as_array().unwrap().len(), 2);
    let rest = house.get(attempts["next"].as_str().unwrap()).await;
    assert_eq!(
        (rest["attempts"].as_array().unwrap().len(), &rest["next"]),
        (1, &Value::Null)
    );
    for verb in ["reschedule", "discard", "retry"] {
        let (status, said) = house
            .send(
                Method::POST,
                &format!("/api/v1/jobs/7/{verb}"),
                json!({"run_at": "2033-01-01T10:00:00Z"}),
            )
            .await;
        assert!(
            status == StatusCode::NOT_FOUND || said["code"] == "invalid_fields",
            "{verb}: {said}"
        );
    }
    let done: Vec<String> = house
        .actions()
        .await
        .into_iter()
        .map(|(who, action)| format!("{who} {action}"))
        .collect();
    assert_eq!(
        done,
        [
            "alice job.reschedule",
            "http job.retry",
            "http job.retry",
            "http job.discard"
        ]
    );
}

#[tokio::test]
async fn many_jobs_are_counted_and_cancelled_over_http_step_by_step() {
    let house = house().await;
    house.enqueue(25, "t", "a").await;
    let stays = house.enqueue(1, "u", "a").await[0];

    let counted = house
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "dry_run": true}),
        )
        .await;
    assert_eq!(
        counted,
        json!({"jobs": 25, "requested": 0, "dry_run": true, "more": false, "next": null})
    );
    let first = house
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "limit": 20, "by": "alice", "why": "moved"}),
        )
        .await;
    assert_eq!((&first["jobs"], &first["more"]), (&json!(20), &json!(true)));
    let rest = house
        .post(
            "/api/v1/jobs/cancel",
            json!({"throttle": "t", "start": first["next"], "by": "alice", "why": "moved"}),
        )
        .await;
    assert_eq!(
        (&rest["jobs"], &rest["more"], &rest["next"]),
        (&json!(5), &json!(false), &Value::Null)
    );

    assert_eq!(house.state(stays).await, State::Ready);
    assert_eq!(
        house.actions().await,
        [("alice".to_owned(), "jobs.cancel".to_owned())]
    );
    let refused = [
        (
            json!({}),
            "",
            "no filter is given; set at least one of kind, throttle, key, state, created_after, \
             created_before",
        ),
        (json!({"throttle": null}), "", "no filter is given"),
        (
            json!({"state": "dead"}),
            "/state",
            "must be ready, scheduled, retryable or running",
        ),
        (json!({"state": 3}), "/state", ", not 3"),
        (
            json!({"throttle": "u", "limit": 0}),
            "/limit",
            "must be a whole number from 1 to",
        ),
        (
            json!({"throttle": "u", "limit": 10_001}),
            "/limit",
            "must be a whole number from 1 to",
        ),
        (
            json!({"throttle": "u", "dry_run": "no"}),
            "/dry_run",
            "must be true or false",
        ),
        (
            json!({"throttle": "u", "created_after": "yesterday"}),
            "/created_after",
            "must be an RFC 3339 time",
        ),
        (
            json!({"created_after": "2026-01-02T00:00:00Z", "created_before": "2026-01-01T00:00:00Z"}),
            "/created_after",
            "is not before",
        ),
        (
            json!({"throttle": "u", "start": "nowhere"}),
            "/start",
            "is not a place to go on from",
        ),
        (json!({"throttle": "u", "key": "\u{0}"}), "/key", "NUL"),
        (json!({"thorttle": "u"}), "", "no filter is given"),
        (json!("all"), "", "must be an object"),
    ];
    for (body, pointer, words) in refused {
        let (status, said) = house
            .send(Method::POST, "/api/v1/jobs/cancel", body.clone())
            .await;
        assert_eq!(
            (status, &said["code"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("invalid_fields")),
            "{body}: {said}"
        );
        let errors = said["errors"].as_array().unwrap();
        let found = errors.iter().any(|error| {
            error["pointer"] == pointer && error["message"].as_str().unwrap().contains(words)
        });
        assert!(found, "{body}: {said}");
    }
    assert_eq!(
        house.state(stays).await,
        State::Ready,
        "what was refused has changed nothing"
    );
}

#[tokio::test]
async fn a_throttle_is_deleted_over_http_with_its_record_and_its_jobs_wait_for_it() {
    let house = house().await;
    house.turn("t", "5").await;
    house.turn("api:enqueue", "5").await;
    let record = KnobRecord::new(house.queue.pool.clone());
    let name = Name::new("t").unwrap();
    record
        .save(&name, &BTreeMap::from([("rps".to_owned(), "5".to_owned())]))
        .await
        .unwrap();
    house.enqueue(3, "t", "a").await;
    house.enqueue(1, "other", "a").await;
    let mut later = NewJob::new("http", json!({"url": "http://127.0.0.1/"})).throttle("t");
    later.run_at = Some("2031-01-01T00:00:00Z".parse().unwrap());
    house.queue.enqueue(&[later]).await.unwrap();

    let deleted = house
        .ok(
            Method::DELETE,
            "/api/v1/throttles/t?by=ann&why=it+is+over",
            json!({}),
        )
        .await;

    assert_eq!(
        deleted,
        json!({"throttle": "t", "waiting": {"jobs": 4, "more": false}})
    );
    assert!(house.store.status(&name).await.unwrap().is_none());
    assert!(
        record
            .load()
            .await
            .unwrap()
            .iter()
            .all(|(kept, _)| *kept != name),
        "the keeper of knobs would restore it"
    );
    let entry = &house.get("/api/v1/audit").await["entries"][0];
    assert_eq!(
        (&entry["actor"], &entry["action"], &entry["subject"]),
        (&json!("ann"), &json!("throttle.delete"), &json!("t"))
    );
    assert_eq!(
        (&entry["why"], &entry["before"]["rps"], &entry["after"]),
        (&json!("it is over"), &json!("5"), &Value::Null)
    );
    let waiting = house.get("/api/v1/jobs?throttle=t").await;
    assert!(
        waiting["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .all(|job| ["ready", "scheduled"].contains(&job["state"].as_str().unwrap()))
    );
    assert_eq!(waiting["jobs"].as_array().unwrap().len(), 4);

    for (path, status, code) in [
        ("t", 404, "throttle_not_found"),
        ("api:enqueue", 409, "in_use"),
        ("t%20x", 400, "invalid_path"),
        ("other?force=true", 400, "invalid_query"),
    ] {
        let (answered, said) = house
            .send(
                Method::DELETE,
                &format!("/api/v1/throttles/{path}"),
                json!({}),
            )
            .await;
        assert_eq!(
            (answered.as_u16(), said["code"].as_str()),
            (status, Some(code)),
            "{path}: {said}"
        );
    }
}

#[tokio::test]
async fn a_throttle_from_which_others_draw_is_not_deleted() {
    let house = house().await;
    house.turn("above", "5").await;
    for child in ["one", "two"] {
        let knobs = [("rps", "1"), ("parent", "above")]
            .map(|(knob, value)| (knob.to_owned(), Some(value.to_owned())));
        let change = Change {
            fields: BTreeMap::from(knobs),
            by: "test".into(),
            create: true,
            ..Change::default()
        };
        house
            .store
            .set(&Name::new(child).unwrap(), &change)
            .await
            .unwrap();
    }

    let (status, said) = house
        .send(Method::DELETE, "/api/v1/throttles/above", json!({}))
        .await;
    assert_eq!(
        (status.as_u16(), said["code"].as_str()),
        (409, Some("in_use")),
        "{said}"
    );
    assert!(
        said["detail"]
            .as_str()
            .unwrap()
            .contains("above is the parent of one, two"),
        "{said}"
    );
    assert!(
        house
            .store
            .status(&Name::new("above").unwrap())
            .await
            .unwrap()
            .is_some()
    );

    for child in ["one", "two", "above"] {
        house
            .ok(
                Method::DELETE,
                &format!("/api/v1/throttles/{child}"),
                json!({}),
            )
            .await;
    }
}

#[tokio::test]
async fn dead_letters_are_requeued_and_discarded_over_http() {
    let house = house().await;
    let timeouts = house.enqueue(3, "t", "a").await;
    house.kill("timeout after 30 s").await;
    let others = house.enqueue(2, "t", "a").await;
    house.kill("500").await;

    let counted = house
        .post(
            "/api/v1/dead/requeue",
            json!({"error_like": "%", "dry_run": true}),
        )
        .await;
    assert_eq!(counted["jobs"], 5);
    let requeued = house
        .post(
            "/api/v1/dead/requeue",
            json!({"error_like": "timeout%", "throttle": "t"}),
        )
        .await;
    assert_eq!(
        (&requeued["jobs"], &requeued["next"]),
        (&json!(3), &Value::Null)
    );
    assert_eq!(house.state(timeouts[0]).await, State::Ready);
    let discarded = house
        .post(
            "/api/v1/dead/discard",
            json!({"throttle": "t", "why": "too old"}),
        )
        .await;
    assert_eq!(discarded["jobs"], 2);
    assert_eq!(house.state(others[0]).await, State::Cancelled);

    for (path, body, pointer) in [
        ("requeue", json!({}), ""),
        ("requeue", json!({"error_like": "a\\"}), "/error_like"),
        (
            "requeue",
            json!({"error_like": "%a%a%a%a%a%"}),
            "/error_like",
        ),
        ("requeue", json!({"error_like": ""}), "/error_like"),
        (
            "discard",
            json!({"error_like": "%", "keep_attempts": true}),
            "/keep_attempts",
        ),
        ("discard", json!({"died_before": "x"}), "/died_before"),
    ] {
        let (status, said) = house
            .send(Method::POST, &format!("/api/v1/dead/{path}"), body.clone())
            .await;
        assert_eq!(
            (status, &said["errors"][0]["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!(pointer)),
            "{body}: {said}"
        );
    }
}

#[tokio::test]
async fn a_throttle_and_everything_are_paused_and_resumed_over_http_and_jobs_say_so() {
    let house = house().await;
    house.turn("t", "-1").await;
    let id = house.enqueue(1, "t", "a").await[0];
    let reason = async || {
        house.get(&format!("/api/v1/jobs/{id}")).await["waiting"]["reason"]
            .as_str()
            .unwrap()
            .to_owned()
    };

    let paused = house
        .post("/api/v1/throttles/t/pause", json!({"why": "upgrade"}))
        .await;
    assert_eq!(
        (&paused["paused"], &paused["state"]),
        (&json!(true), &json!("paused"))
    );
    assert!(
        reason().await.starts_with("throttle t is stopped"),
        "{}",
        reason().await
    );
    assert_eq!(
        house.post("/api/v1/throttles/t/resume", Value::Null).await["paused"],
        false
    );
    let (status, said) = house
        .send(Method::POST, "/api/v1/throttles/none/pause", json!({}))
        .await;
    assert_eq!(
        (status, &said["code"]),
        (StatusCode::NOT_FOUND, &json!("throttle_not_found"))
    );

    assert_eq!(
        house.get("/api/v1/pause").await,
        json!({"paused": null, "changed": false})
    );
    let first = house
        .post(
            "/api/v1/pause",
            json!({"why": "the disk is full", "by": "alice"}),
        )
        .await;
    assert_eq!(
        (&first["changed"], &first["paused"]["why"]),
        (&json!(true), &json!("the disk is full"))
    );
    let second = house.post("/api/v1/pause", json!({"by": "bob"})).await;
    assert_eq!(
        (&second["changed"], &second["paused"]["by"]),
        (&json!(false), &json!("alice"))
    );
    assert!(
        reason().await.ends_with("by alice: the disk is full"),
        "{}",
        reason().await
    );
    assert_eq!(
        house.post("/api/v1/resume", json!({})).await,
        json!({"paused": null, "changed": true})
    );
    assert_eq!(
        house.post("/api/v1/resume", json!({})).await["changed"],
        false
    );

    let actions: Vec<String> = house
        .actions()
        .await
        .into_iter()
        .map(|(_, action)| action)
        .collect();
    assert_eq!(
        actions,
        [
            "throttle.pause",
            "throttle.resume",
            "all.pause",
            "all.resume"
        ]
    );
}

#[tokio::test]
async fn jobs_without_a_key_and_those_whose_key_is_a_minus_are_told_apart_over_http() {
    let house = house().await;
    let without = house.enqueue(1, "t", "").await;
    let minus = house.enqueue(2, "t", "-").await;
    house.queue.ready_lanes().await.unwrap();
    let found =
        async |path: &str, list: &str| house.get(path).await[list].as_array().unwrap().len();

    assert_eq!(found("/api/v1/jobs?key=", "jobs").await, 1);
    assert_eq!(found("/api/v1/jobs?key=-", "jobs").await, 2);
    assert_eq!(
        found("/api/v1/jobs?kind=", "jobs").await,
        3,
        "any other empty parameter counts as absent"
    );
    assert_eq!(
        house.get("/api/v1/throttles/t/lanes?key=--").await["lanes"][0]["key"],
        "-"
    );
    assert_eq!(
        house.get("/api/v1/throttles/t/lanes?key=").await["lanes"][0]["key"],
        ""
    );
    let purged = house
        .ok(
            Method::DELETE,
            "/api/v1/throttles/t/keys/--/jobs",
            Value::Null,
        )
        .await;

    assert_eq!(purged["jobs"], 2);
    assert_eq!(
        (house.state(without[0]).await, house.state(minus[0]).await),
        (State::Ready, State::Cancelled)
    );
}

#[tokio::test]
async fn lanes_are_looked_at_weighed_and_emptied_over_http() {
    let house = house().await;
    for key in ["", "a b", "b/c"] {
        house.enqueue(3, "t", key).await;
    }
    house.queue.ready_lanes().await.unwrap();

    let lane = house.get("/api/v1/throttles/t/keys/b%2Fc").await;
    assert_eq!(
        (&lane["weight"], &lane["waiting"]),
        (&json!(1.0), &json!({"jobs": 3, "more": false}))
    );
    let heavy = house
        .ok(
            Method::PATCH,
            "/api/v1/throttles/t/keys/b%2Fc",
            json!({"weight": 2.5, "by": "alice"}),
        )
        .await;
    assert_eq!(heavy["weight"], 2.5);
    for (body, words) in [
        (json!({}), "is missing: it must be"),
        (json!({"weight": 0}), "must be a number"),
        (json!({"weight": 0.0001}), "must be a number"),
        (json!({"weight": 1001}), "must be a number"),
        (json!({"weight": "2"}), "must be a number"),
    ] {
        let (status, said) = house
            .send(Method::PATCH, "/api/v1/throttles/t/keys/-", body)
            .await;
        assert_eq!(
            (status, &said["errors"][0]["pointer"]),
            (StatusCode::UNPROCESSABLE_ENTITY, &json!("/weight")),
            "{said}"
        );
        assert!(said["detail"].as_str().unwrap().contains(words), "{said}");
    }

    let purge = "/api/v1/throttles/t/keys/a%20b/jobs";
    assert_eq!(
        house
            .ok(
                Method::DELETE,
                &format!("{purge}?dry_run=true"),
                Value::Null
            )
            .await["jobs"],
        3
    );
    let some = house
        .ok(
            Method::DELETE,
            &format!("{purge}?limit=2&by=alice&why=gone"),
            Value::Null,
        )
        .await;
    assert_eq!((&some["jobs"], &some["more"]), (&json!(2), &json!(true)));
    assert_eq!(
        house.ok(Method::DELETE, purge, Value::Null).await["jobs"],
        1
    );
    assert_eq!(
        house
            .ok(
                Method::DELETE,
                "/api/v1/throttles/t/keys/-/jobs",
                Value::Null
            )
            .await["jobs"],
        3,
        "a minus is the empty key"
    );
    let left: i64 = sqlx::query_scalar("select count(*) from flyball.ready")
        .fetch_one(house.database.pool())
        .await
        .unwrap();
    assert_eq!(left, 3);
    let (status, said) = house
        .send(
            Method::DELETE,
            &format!("{purge}?limit=0&force=1"),
            Value::Null,
        )
        .await;
    assert_eq!(
        (status, said["errors"].as_array().unwrap().len()),
        (StatusCode::BAD_REQUEST, 2),
        "{said}"
    );
}

#[tokio::test]
async fn a_search_over_http_takes_times_and_the_word_ended() {
    let house = house().await;
    let dead = house.enqueue(1, "t", "a").await[0];
    house.kill("no").await;
    let ready = house.enqueue(1, "t", "a").await[0];
    let found = async |query: &str| {
        let page = house.get(&format!("/api/v1/jobs?{query}")).await;
        page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["id"].as_i64().unwrap())
            .collect::<Vec<_>>()
    };

    assert_eq!(found("state=ended").await, [dead]);
    assert_eq!(
        found("created_after=2020-01-01T00:00:00Z").await,
        [ready, dead]
    );
    assert_eq!(
        found("created_before=2020-01-01T00:00:00%2B01:00").await,
        Vec::<i64>::new()
    );
    assert_eq!(found("throttle=t&key=a&state=ready").await, [ready]);
    for query in [
        "state=end",
        "created_after=today",
        "created_after=2020-01-02T00:00:00Z&created_before=2020-01-01T00:00:00Z",
    ] {
        let (status, said) = house
            .send(Method::GET, &format!("/api/v1/jobs?{query}"), json!({}))
            .await;
        assert_eq!(
            (status, &said["code"]),
            (StatusCode::BAD_REQUEST, &json!("invalid_query")),
            "{query}: {said}"
        );
    }
}

// === the command line ===

#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_changed_on_the_command_line_only_when_it_says_yes() {
    let house = house().await;
    house.enqueue(5, "t", "a").await;

    house
        .refuses(
            &["job", "cancel", "--throttle", "t"],
            4,
            "5 jobs would be cancelled; add --yes to do it",
        )
        .await;
    assert_eq!(
        house
            .says(&["job", "cancel", "--throttle", "t", "--dry-run"])
            .await,
        "5 jobs would be cancelled\n"
    );
    house
        .refuses(
            &["job", "cancel"],
            4,
            "give the number of a job, or one or more of --kind",
        )
        .await;
    house
        .refuses(
            &["job", "cancel", "5", "--throttle", "t"],
            2,
            "cannot be used with",
        )
        .await;
    for only_for_many in [&["--dry-run"][..], &["--yes"], &["--limit", "1"]] {
        house
            .refuses(
                &[&["job", "cancel", "5"], only_for_many].concat(),
                2,
                "cannot be used with",
            )
            .await;
    }
    house
        .refuses(
            &[
                "job",
                "cancel",
                "--throttle",
                "t",
                "--state",
                "dead",
                "--yes",
            ],
            4,
            "state: \"dead\" is not a state that can be cancelled",
        )
        .await;
    house
        .refuses(
            &["job", "cancel", "--created-before", "soon", "--yes"],
            2,
            "allowed are a time such as",
        )
        .await;
    assert_eq!(
        house
            .says(&["job", "cancel", "--created-before", "1h", "--yes"])
            .await,
        "0 jobs cancelled\n"
    );
    assert_eq!(
        house
            .says(&[
                "job",
                "cancel",
                "--throttle",
                "t",
                "--yes",
                "--limit",
                "2",
                "--why",
                "moved"
            ])
            .await,
        "2 jobs cancelled\n"
    );
    let said: Value = serde_json::from_str(
        &house
            .says(&["lane", "purge", "t", "a", "--yes", "--json"])
            .await,
    )
    .unwrap();
    assert_eq!(said, json!({"jobs": 3, "requested": 0}));
    let actions = house.actions().await;
    assert_eq!(
        actions,
        [
            ("tester".to_owned(), "jobs.cancel".to_owned()),
            ("tester".to_owned(), "lane.purge".to_owned())
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_requeued_and_discarded_on_the_command_line() {
    let house = house().await;
    let ids = house.enqueue(4, "t", "a").await;
    house.kill("timeout after 30 s").await;

    house
        .refuses(
            &["dead", "requeue", "--yes"],
            4,
            "error_like: is missing, as is every other filter",
        )
        .await;
    house
        .refuses(
            &["dead", "requeue", "--error-like", "timeout%"],
            4,
            "4 jobs would be requeued; add --yes",
        )
        .await;
    assert_eq!(
        house
            .says(&[
                "dead",
                "requeue",
                "--error-like",
                "timeout%",
                "--limit",
                "3",
                "--yes"
            ])
            .await,
        "3 jobs requeued\n"
    );
    let said: Value = serde_json::from_str(
        &house
            .says(&[
                "dead",
                "discard",
                "--throttle",
                "t",
                "--died-after",
                "1h",
                "--yes",
                "--json",
            ])
            .await,
    )
    .unwrap();
    assert_eq!(said["jobs"], 1);
    assert_eq!(
        (house.state(ids[0]).await, house.state(ids[3]).await),
        (State::Ready, State::Cancelled)
    );

    let id = ids[0].to_string();
    assert!(
        house
            .says(&["job", "reschedule", &id, "--run-at", "2h"])
            .await
            .starts_with(&format!("job {id} is scheduled for 2"))
    );
    house
        .refuses(
            &["job", "discard", &id],
            4,
            "is scheduled; only dead jobs can be discarded",
        )
        .await;
    house
        .refuses(
            &["job", "reschedule", &id, "--run-at", "9000-01-01T00:00:00Z"],
            4,
            "ten years from now",
        )
        .await;
    house
        .refuses(
            &["job", "reschedule", "7", "--run-at", "2h"],
            3,
            "there is no job 7",
        )
        .await;
    house.says(&["job", "retry", &id, "--keep-attempts"]).await;
    assert!(
        house
            .says(&["job", "list", "--state", "ended", "--created-after", "1h"])
            .await
            .contains("cancelled")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_and_lanes_are_operated_on_the_command_line() {
    let house = house().await;
    house.turn("t", "5").await;
    house.enqueue(2, "t", "a").await;
    house.queue.ready_lanes().await.unwrap();

    assert!(
        house
            .says(&["status"])
            .await
            .starts_with("running: no pause of everything\n0 live workers\n")
    );
    assert!(
        house
            .says(&["pause", "--why", "upgrade"])
            .await
            .ends_with("by tester: upgrade\n")
    );
    assert!(
        house
            .says(&["pause"])
            .await
            .starts_with("everything is already paused since")
    );
    let status = house.says(&["status"]).await;
    let flows_at_five = status
        .lines()
        .any(|line| line.split_whitespace().take(2).eq(["t", "5"]));
    assert!(
        status.starts_with("everything is paused since") && flows_at_five,
        "{status}"
    );
    let said: Value = serde_json::from_str(&house.says(&["status", "--json"]).await).unwrap();
    assert_eq!(
        (
            &said["paused"]["why"],
            &said["throttles"][0]["effective_rps"]
        ),
        (&json!("upgrade"), &json!(5.0))
    );
    assert_eq!(house.says(&["resume"]).await, "everything is resumed\n");
    assert_eq!(
        house.says(&["resume"]).await,
        "everything was running already\n"
    );

    assert_eq!(
        house.says(&["lane", "weight", "t", "a", "2.5"]).await,
        "lane \"a\" of t has the weight 2.5; before it was 1\n"
    );
    house
        .refuses(
            &["lane", "weight", "t", "a", "0"],
            4,
            "weight: is 0; allowed are 0.001 to 1000",
        )
        .await;
    house
        .refuses(
            &["lane", "purge", "two words", "a", "--yes"],
            4,
            "two words",
        )
        .await;
    assert!(
        house
            .says(&["lane", "list", "t", "--by-key"])
            .await
            .contains("2.5")
    );
    assert!(
        house
            .says(&["lane", "show", "t", "a"])
            .await
            .contains("waiting    2")
    );
}
