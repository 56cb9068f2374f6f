//! Workers in other programs: what they claim, how they are fenced, and what their reports do.

use std::time::{Duration, Instant};

use flyball::api::{AuthToken, Permissions, TokenScope, TokenSecret};
use flyball::jobs::{JobRetry, Kinds, NewJob, SecretKeys, State};
use flyball::runner::{Config, Worker};
use prometheus_client::registry::Registry;
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::api_server::ApiServer;
use crate::support::eventually;
use crate::support::fixture::Fixture;

const SOON: Duration = Duration::from_secs(60);

/// A server of the API, and a runner that knows no kind and gives back what expires.
pub struct WorkFixture {
    pub server: ApiServer,
    worker: Worker,
}

impl WorkFixture {
    pub async fn new() -> Self {
        Self::with(Vec::new()).await
    }

    pub async fn with(tokens: Vec<AuthToken>) -> Self {
        Self::on(Fixture::new().await, tokens).await
    }

    async fn on(fixture: Fixture, tokens: Vec<AuthToken>) -> Self {
        fixture.turn("pages", &[("rps", "-1")]).await;
        fixture.register("render").await;
        let config = Config {
            ttl: Duration::from_secs(5),
            ..Config::default()
        };
        let worker = fixture
            .start(config, Kinds::default(), &mut Registry::default())
            .await;
        let server = ApiServer::start(fixture, |deps| deps.tokens = tokens.into()).await;
        Self { server, worker }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_as("", path, body).await
    }

    pub async fn post_as(&self, token: &str, path: &str, body: &Value) -> (u16, Value) {
        let mut request = self.server.request(Method::POST, path).json(body);
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.expect("an answer");
        let status = answer.status().as_u16();
        (status, answer.json().await.expect("JSON"))
    }

    /// Claims as a worker of this name until it has so many jobs.
    pub async fn claim(&self, worker: &str, jobs: usize, more: Value) -> Vec<Value> {
        let (mut claimed, until) = (Vec::new(), Instant::now() + SOON);
        while claimed.len() < jobs {
            assert!(Instant::now() < until, "only {claimed:?} within {SOON:?}");
            let wanted = jobs - claimed.len();
            let mut body =
                json!({"worker": worker, "kinds": ["render"], "limit": wanted, "wait_s": 1});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let (status, answer) = self.post("/api/v1/claim", &body).await;
            assert_eq!(status, 200, "{answer}");
            claimed.extend(answer["jobs"].as_array().unwrap().iter().cloned());
        }
        claimed
    }

    /// Makes a call for a claimed job.
    pub async fn call(&self, job: &Value, verb: &str, more: Value) -> (u16, Value) {
        let mut body = json!({"lease": job["lease"]});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        self.post(&format!("/api/v1/jobs/{}/{verb}", job["id"]), &body)
            .await
    }

    pub async fn enqueue(&self, count: usize, change: impl Fn(NewJob) -> NewJob) -> Vec<i64> {
        let job = change(NewJob::new("render", json!({"pages": 3})).throttle("pages"));
        self.server.enqueue_many(job, count).await
    }

    pub async fn show(&self, id: i64) -> Value {
        let path = format!("/api/v1/jobs/{id}");
        let shown = self.server.request(Method::GET, &path).send().await;
        shown.unwrap().json().await.unwrap()
    }

    pub async fn stop(self) {
        self.worker.stop().await;
    }
}

pub fn id_of(job: &Value) -> i64 {
    job["id"].as_i64().unwrap()
}

#[tokio::test]
async fn a_claimed_job_is_extended_completed_once_and_its_result_is_kept() {
    let world = WorkFixture::new().await;
    let id = world.enqueue(1, |job| job.key("acme").cost(2.0)).await[0];

    let job = world.claim("w1", 1, json!({"lease_s": 30})).await.remove(0);

    assert_eq!(
        (id_of(&job), &job["args"], &job["key"], &job["attempt"]),
        (id, &json!({"pages": 3}), &json!("acme"), &json!(1))
    );
    assert_eq!(
        (&job["cost"], &job["checkpoint"]),
        (&json!(2.0), &Value::Null)
    );
    let more =
        json!({"checkpoint": {"page": 1}, "progress": {"done": 1, "total": 3, "note": "page 1"}});
    let (status, beat) = world.call(&job, "heartbeat", more).await;
    assert_eq!((status, &beat["cancelled"]), (200, &json!(false)));
    let shown = world.show(id).await;
    assert_eq!(
        (
            &shown["state"],
            &shown["worker"],
            &shown["progress"]["done"]
        ),
        (&json!("running"), &json!("w1"), &json!(1))
    );

    let result = json!({"result": {"url": "s3://x"}});
    let (status, ended) = world.call(&job, "complete", result.clone()).await;

    assert_eq!((status, &ended["state"]), (200, &json!("completed")));
    let (status, again) = world.call(&job, "complete", result).await;
    assert_eq!((status, &again["code"]), (409, &json!("lease_lost")));
    let shown = world.show(id).await;
    assert_eq!(
        (&shown["state"], &shown["result"]),
        (&json!("completed"), &json!({"url": "s3://x"}))
    );
    assert_eq!(shown["attempts"].as_array().unwrap().len(), 1);
    assert_eq!(shown["attempts"][0]["worker"], "w1");
    world.stop().await;
}

#[tokio::test]
async fn a_claimed_job_has_its_trace_and_its_secrets_in_plain_which_nobody_else_sees() {
    let mut fixture = Fixture::new().await;
    let keys = SecretKeys::parse(&SecretKeys::text_of(&[1; 32])).unwrap();
    fixture.queue = fixture.queue.clone().with_secret_keys(keys);
    let world = WorkFixture::on(fixture, Vec::new()).await;
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let args = json!({"pages": 3, "token": {"$secret": "5up3r-53cret"}});
    let job = json!({"kind": "render", "args": args, "throttle": "pages", "traceparent": trace});
    let (status, made) = world.post("/api/v1/jobs", &job).await;
    assert_eq!(
        (status, &made["args"]["token"]),
        (201, &json!("[secret]")),
        "{made}"
    );

    let claimed = world.claim("w1", 1, json!({})).await.remove(0);

    assert_eq!(
        claimed["args"],
        json!({"pages": 3, "token": "5up3r-53cret"})
    );
    assert_eq!(claimed["traceparent"], trace);
    let shown = world.show(id_of(&claimed)).await;
    assert_eq!(shown["state"], "running");
    assert_eq!(shown["args"], json!({"pages": 3, "token": "[secret]"}));
    world.stop().await;
}

#[tokio::test]
async fn a_job_whose_lease_expired_goes_to_another_worker_with_its_checkpoint_and_every_late_call_is_refused()
 {
    let world = WorkFixture::new().await;
    let id = world.enqueue(1, |job| job).await[0];
    let late = world.claim("w1", 1, json!({"lease_s": 2})).await.remove(0);
    let more = json!({"checkpoint": {"page": 2}, "progress": {"done": 2}});
    assert_eq!(world.call(&late, "heartbeat", more).await.0, 200);

    let other = world.claim("w2", 1, json!({"lease_s": 60})).await.remove(0);

    assert_eq!(id_of(&other), id);
    assert_eq!(other["checkpoint"]["cursor"], json!({"page": 2}));
    assert_ne!(late["lease"], other["lease"]);
    for (verb, more) in [
        ("heartbeat", json!({"checkpoint": {"page": 9}})),
        ("complete", json!({"result": "late"})),
        ("fail", json!({"error": "late"})),
        ("snooze", json!({"for_s": 9})),
        ("throttled", json!({"retry_after_s": 9})),
        ("release", json!({})),
    ] {
        let (status, answer) = world.call(&late, verb, more).await;
        assert_eq!(
            (status, &answer["code"]),
            (409, &json!("lease_lost")),
            "{verb}"
        );
    }
    let (status, _) = world
        .call(&other, "complete", json!({"result": "once"}))
        .await;
    assert_eq!(status, 200);
    let shown = world.show(id).await;
    assert_eq!(shown["result"], "once");
    let outcomes: Vec<&str> = shown["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|attempt| attempt["outcome"].as_str())
        .collect();
    assert_eq!(outcomes, ["lost", "completed"]);
    world.stop().await;
}

#[tokio::test]
async fn a_result_is_awaited_and_a_wait_ends_without_it() {
    let world = WorkFixture::new().await;
    let id = world.enqueue(1, |job| job).await[0];
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let path = format!("/api/v1/jobs/{id}?wait_s=1");
    let early = world.server.request(Method::GET, &path).send().await;
    let early: Value = early.unwrap().json().await.unwrap();
    assert_eq!(
        (&early["state"], &early["result"]),
        (&json!("running"), &Value::Null)
    );

    let path = format!("/api/v1/jobs/{id}?wait_s=60");
    let awaited = world.server.request(Method::GET, &path).send();
    let (awaited, ended) = tokio::join!(
        awaited,
        world.call(&job, "complete", json!({"result": [1, 2]}))
    );

    assert_eq!(ended.0, 200);
    let awaited: Value = awaited.unwrap().json().await.unwrap();
    assert_eq!(
        (&awaited["state"], &awaited["result"]),
        (&json!("completed"), &json!([1, 2]))
    );
    let wrong = format!("/api/v1/jobs/{id}?wait_s=61");
    let refused = world
        .server
        .request(Method::GET, &wrong)
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 400);
    world.stop().await;
}

#[tokio::test]
async fn a_failure_follows_the_jobs_policy_and_a_snooze_or_a_job_given_back_uses_no_attempt() {
    let world = WorkFixture::new().await;
    let id = world
        .enqueue(1, |job| NewJob {
            max_attempts: 2,
            ..job
        })
        .await[0];

    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let (_, released) = world.call(&job, "release", json!({})).await;
    assert_eq!(released["state"], "ready");
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    assert_eq!(job["attempt"], 1);
    let (_, snoozed) = world.call(&job, "snooze", json!({"for_s": 0.1})).await;
    assert_eq!(snoozed["state"], "scheduled");
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    assert_eq!(job["attempt"], 1);
    let failure = json!({"error": "no paper", "retry_after_s": 0});
    let (_, failed) = world.call(&job, "fail", failure.clone()).await;
    assert_eq!(failed["state"], "retryable");
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    assert_eq!(job["attempt"], 2);
    let (_, failed) = world.call(&job, "fail", failure).await;

    assert_eq!(failed["state"], "dead");
    assert_eq!(world.show(id).await["last_error"], "no paper");
    let hopeless = world.enqueue(1, |job| job).await[0];
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let (_, dead) = world
        .call(
            &job,
            "fail",
            json!({"error": "no such page", "retry": false}),
        )
        .await;
    assert_eq!((id_of(&job), &dead["state"]), (hopeless, &json!("dead")));
    world.stop().await;
}

#[tokio::test]
async fn a_failure_follows_the_policy_of_its_kind_though_its_worker_has_asked_for_another_since() {
    let world = WorkFixture::new().await;
    world.server.register("single").await;
    let single = NewJob::new("single", json!({})).throttle("pages");
    let id = world.server.enqueue_many(single, 1).await[0];
    let job = world
        .claim("w1", 1, json!({"kinds": ["single"]}))
        .await
        .remove(0);
    let other = json!({"worker": "w1", "kinds": ["render"], "wait_s": 0});
    assert_eq!(world.post("/api/v1/claim", &other).await.0, 200);

    let (status, failed) = world.call(&job, "fail", json!({"error": "no"})).await;

    assert_eq!((status, &failed["state"]), (200, &json!("dead")));
    assert_eq!(world.show(id).await["state"], "dead");
    world.stop().await;
}

#[tokio::test]
async fn a_failure_waits_as_the_job_says_unless_the_worker_names_a_time() {
    let world = WorkFixture::new().await;
    let waits = JobRetry::every(Duration::from_secs(1000));
    let id = world.enqueue(1, |job| job.retry(waits)).await[0];
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let (_, failed) = world.call(&job, "fail", json!({"error": "no paper"})).await;
    assert_eq!(failed["state"], "retryable");
    let shown = world.show(id).await;
    assert_eq!(
        shown["retry"],
        json!({"delay_s": 1000.0, "factor": 1.0, "max_delay_s": 1000.0})
    );
    let wait = |shown: &Value, attempt: usize| {
        let at = |value: &Value| value.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        let ended = at(&shown["attempts"][attempt]["finished_at"]);
        at(&shown["due_at"]).duration_since(ended).as_secs()
    };
    let waited = wait(&shown, 0);
    assert!((495..=1001).contains(&waited), "{waited} s");

    world
        .post(&format!("/api/v1/jobs/{id}/retry"), &json!({}))
        .await;
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let named = json!({"error": "no paper", "retry_after_s": 3000});
    world.call(&job, "fail", named).await;
    let waited = wait(&world.show(id).await, 1);
    assert!((2990..=3001).contains(&waited), "{waited} s");
    world.stop().await;
}

#[tokio::test]
async fn a_refusal_pauses_the_key_for_all_and_uses_no_attempt() {
    let world = WorkFixture::new().await;
    world.enqueue(2, |job| job.key("acme")).await;
    let job = world.claim("w1", 1, json!({})).await.remove(0);

    let (status, ended) = world
        .call(&job, "throttled", json!({"retry_after_s": 3600}))
        .await;

    assert_eq!((status, &ended["state"]), (200, &json!("ready")));
    let other = world.enqueue(1, |job| job.key("zeta")).await[0];
    let next = world.claim("w1", 1, json!({})).await.remove(0);
    assert_eq!(
        id_of(&next),
        other,
        "the refused key waits, another does not"
    );
    let path = "/api/v1/throttles/pages/keys/acme";
    let lane = world
        .server
        .request(Method::GET, path)
        .send()
        .await
        .unwrap();
    let lane: Value = lane.json().await.unwrap();
    assert!(lane["paused"].is_object(), "{lane}");
    world.stop().await;
}

#[tokio::test]
async fn tokens_and_slots_are_those_of_the_throttle_and_come_back_at_the_end() {
    let world = WorkFixture::new().await;
    world
        .server
        .turn("pages", &[("rps", "-1"), ("concurrency", "1")])
        .await;
    world.enqueue(2, |job| job).await;
    let first = world.claim("w1", 1, json!({"limit": 5})).await.remove(0);
    // The throttle refuses the second job while the first one holds the only slot.
    let (_, none) = world
        .post(
            "/api/v1/claim",
            &json!({"worker": "w2", "kinds": ["render"], "wait_s": 2}),
        )
        .await;
    assert_eq!(none["jobs"], json!([]));

    assert_eq!(world.call(&first, "complete", json!({})).await.0, 200);

    let second = world.claim("w2", 1, json!({})).await.remove(0);
    assert_ne!(first["id"], second["id"]);
    // A reported cost is settled with the throttle: the bucket owes 600 tokens now.
    world
        .server
        .turn("pages", &[("rps", "10"), ("concurrency", "-1")])
        .await;
    assert_eq!(
        world
            .call(&second, "complete", json!({"cost": 600}))
            .await
            .0,
        200
    );
    eventually("the cost is settled", SOON, || async {
        let path = "/api/v1/throttles/pages/peek";
        let (_, peeked) = world.post(path, &json!({"tokens": 1})).await;
        (peeked["retry_after_ms"].as_i64().unwrap() > 20_000).then_some(())
    })
    .await;
    world.stop().await;
}

#[tokio::test]
async fn a_cancelled_job_is_told_at_the_next_heartbeat_and_ends_as_cancelled() {
    let world = WorkFixture::new().await;
    let id = world.enqueue(1, |job| job).await[0];
    let job = world.claim("w1", 1, json!({})).await.remove(0);
    let path = format!("/api/v1/jobs/{id}");
    world
        .server
        .request(Method::DELETE, &path)
        .send()
        .await
        .unwrap();

    let (_, beat) = world.call(&job, "heartbeat", json!({})).await;

    assert_eq!(beat["cancelled"], true);
    let (_, ended) = world.call(&job, "release", json!({})).await;
    assert_eq!(ended["state"], "cancelled");
    assert_eq!(world.server.state(id).await, State::Cancelled);
    world.stop().await;
}

#[tokio::test]
async fn kinds_of_others_stay_in_their_lane_and_remote_workers_are_listed() {
    let world = WorkFixture::new().await;
    world.server.register("other").await;
    let other = NewJob::new("other", json!({})).throttle("pages");
    let foreign = world.server.enqueue_many(other, 20).await;
    let id = world.enqueue(1, |job| job).await[0];

    let job = world
        .claim("w1", 1, json!({"host": "box", "throttles": ["pag*"]}))
        .await
        .remove(0);

    assert_eq!(id_of(&job), id);
    // The worker that serves all may have met one, which it puts back at once.
    for id in foreign {
        eventually("ready in its lane", SOON, || async {
            (world.server.state(id).await == State::Ready).then_some(())
        })
        .await;
    }
    let listed = world
        .server
        .request(Method::GET, "/api/v1/workers")
        .send()
        .await;
    let listed: Value = listed.unwrap().json().await.unwrap();
    let remote: Vec<&Value> = listed["workers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|worker| worker["remote"] == true)
        .collect();
    assert_eq!(remote.len(), 1, "{listed}");
    assert_eq!(
        (&remote[0]["name"], &remote[0]["host"], &remote[0]["kinds"]),
        (&json!("w1"), &json!("box"), &json!(["render"]))
    );
    assert_eq!(
        (&remote[0]["running"], &remote[0]["throttles"]),
        (&json!(1), &json!(["pag*"]))
    );
    world.stop().await;
}

pub fn token(name: &str, tenant: Option<&str>, kinds: &[&str], throttles: &[&str]) -> AuthToken {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let leave = Permissions {
        scopes: [TokenScope::JobsWork, TokenScope::JobsEnqueue].into(),
        kinds: Some(kinds.iter().map(|kind| (*kind).to_owned()).collect()),
        throttles: Some(owned(throttles)),
    };
    AuthToken::of(name, tenant, leave, TokenSecret::new(secret(name)))
}

pub fn secret(name: &str) -> String {
    format!("{name}-0123456789abcdef0123456789abcdef")
}

#[tokio::test]
async fn a_token_works_on_its_kinds_throttles_and_tenant_alone() {
    let world = WorkFixture::with(vec![
        token("acme", Some("acme"), &["render"], &["pages"]),
        token("zeta", Some("zeta"), &["render"], &["pages"]),
        AuthToken::new(TokenSecret::new(secret("root"))),
    ])
    .await;
    let (acme, zeta, root) = (secret("acme"), secret("zeta"), secret("root"));
    let mut ids = Vec::new();
    for token in [&zeta, &acme, &root] {
        let job = json!({"kind": "render", "throttle": "pages"});
        let (_, made) = world.post_as(token, "/api/v1/jobs", &job).await;
        ids.push(id_of(&made));
    }
    let claim = |more: Value| {
        let mut body = json!({"worker": "w", "kinds": ["render"], "wait_s": 0});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    for (body, status, pointer) in [
        (claim(json!({"kinds": ["render", "other"]})), 403, "/kinds"),
        (claim(json!({"throttles": ["other"]})), 403, "/throttles"),
        (claim(json!({"throttles": ["*"]})), 403, "/throttles"),
        (claim(json!({"throttles": ["a b"]})), 422, "/throttles/0"),
        (claim(json!({"kinds": ["http"]})), 422, "/kinds/0"),
    ] {
        let (answered, answer) = world.post_as(&acme, "/api/v1/claim", &body).await;
        assert_eq!(answered, status, "{answer}");
        assert_eq!(answer["errors"][0]["pointer"], pointer, "{answer}");
    }

    let wanted = claim(json!({"limit": 10, "wait_s": 5}));
    let (_, own) = world.post_as(&acme, "/api/v1/claim", &wanted).await;

    let own = own["jobs"].as_array().unwrap();
    assert_eq!(own.len(), 1, "{own:?}");
    assert_eq!(
        (id_of(&own[0]), &own[0]["tenant"]),
        (ids[1], &json!("acme"))
    );
    let path = format!("/api/v1/jobs/{}/complete", ids[1]);
    let lease = json!({"lease": own[0]["lease"]});
    let (status, answer) = world.post_as(&zeta, &path, &lease).await;
    assert_eq!((status, &answer["code"]), (409, &json!("lease_lost")));
    assert_eq!(world.post_as(&acme, &path, &lease).await.0, 200);
    let (_, all) = world.post_as(&root, "/api/v1/claim", &wanted).await;
    let mut all: Vec<i64> = all["jobs"].as_array().unwrap().iter().map(id_of).collect();
    all.sort_unstable();
    if all.len() < 2 {
        let (_, more) = world.post_as(&root, "/api/v1/claim", &wanted).await;
        all.extend(more["jobs"].as_array().unwrap().iter().map(id_of));
    }
    assert_eq!(all, [ids[0], ids[2]], "operators work for everyone");
    world.stop().await;
}
