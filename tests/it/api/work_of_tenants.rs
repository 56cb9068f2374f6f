//! Workers of a tenant: which jobs they get, and that their reports harm nobody else.

use flyball::api::{AuthToken, TokenSecret};
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::tokens_fixture::SOON;
use super::work::{WorkFixture, id_of, secret, token};
use crate::support::eventually;

const OWN: &str = "tenant:acme/own";

/// A world with a worker of the tenant acme, and operators.
async fn world() -> WorkFixture {
    let world = WorkFixture::with(vec![
        token("acme", Some("acme"), &["render"], &["pages", OWN]),
        AuthToken::new(TokenSecret::new(secret("root"))),
    ])
    .await;
    world.server.turn(OWN, &[("rps", "-1")]).await;
    world
}

/// Enqueues a job of the tenant and claims it.
async fn claimed(world: &WorkFixture, throttle: &str) -> Value {
    let acme = secret("acme");
    let job = json!({"kind": "render", "throttle": throttle, "key": "shared"});
    let (status, made) = world.post_as(&acme, "/api/v1/jobs", &job).await;
    assert_eq!(status, 201, "{made}");
    let wanted = json!({"worker": "w", "kinds": ["render"], "wait_s": 30});
    let (status, answer) = world.post_as(&acme, "/api/v1/claim", &wanted).await;
    assert_eq!(status, 200, "{answer}");
    let job = answer["jobs"][0].clone();
    assert_eq!(id_of(&job), id_of(&made));
    job
}

async fn end(world: &WorkFixture, job: &Value, verb: &str, mut body: Value) {
    body["lease"] = job["lease"].clone();
    let path = format!("/api/v1/jobs/{}/{verb}", job["id"]);
    let (status, answer) = world.post_as(&secret("acme"), &path, &body).await;
    assert_eq!(status, 200, "{answer}");
}

/// Returns the wait for a token of a throttle, in milliseconds.
async fn wait_ms(world: &WorkFixture, throttle: &str) -> i64 {
    let path = format!("/api/v1/throttles/{}/peek", throttle.replace('/', "%2F"));
    let (_, peeked) = world
        .post_as(&secret("root"), &path, &json!({"tokens": 1}))
        .await;
    peeked["retry_after_ms"].as_i64().unwrap_or(0)
}

#[tokio::test]
async fn a_worker_of_a_tenant_charges_a_shared_throttle_no_more_than_one_job_may_cost() {
    let world = world().await;
    let shared = claimed(&world, "pages").await;
    let own = [claimed(&world, OWN).await, claimed(&world, OWN).await];
    for (throttle, max_cost) in [("pages", "10"), (OWN, "600")] {
        let knobs = [("rps", "10"), ("max_cost", max_cost)];
        world.server.turn(throttle, &knobs).await;
    }

    end(&world, &shared, "heartbeat", json!({"cost": 1e9})).await;
    end(&world, &shared, "complete", json!({})).await;

    // Costs are settled in batches, one after the other: the one of the shared throttle went with
    // the first of the others at the latest.
    for (job, least_ms) in own.iter().zip([20_000, 90_000]) {
        end(&world, job, "complete", json!({"cost": 600})).await;
        eventually("the cost is settled", SOON, || async {
            (wait_ms(&world, OWN).await > least_ms).then_some(())
        })
        .await;
    }
    let wait = wait_ms(&world, "pages").await;
    assert!(wait < 20_000, "{wait} ms");
    world.stop().await;
}

#[tokio::test]
async fn a_refusal_by_a_worker_of_a_tenant_pauses_no_more_than_the_key_of_a_shared_throttle() {
    let world = world().await;
    world
        .server
        .turn("pages", &[("trust_scope", "throttle")])
        .await;
    let job = claimed(&world, "pages").await;

    let refusal = json!({"scope": "throttle", "retry_after_s": 86_400});
    end(&world, &job, "throttled", refusal).await;

    assert_eq!(wait_ms(&world, "pages").await, 0, "others go on");
    let path = "/api/v1/throttles/pages/keys/shared";
    let asked = world.server.request(Method::GET, path);
    let answer = asked.bearer_auth(secret("root")).send().await.unwrap();
    let lane: Value = answer.json().await.unwrap();
    let until = lane["paused"]["until"].as_str();
    let until: Timestamp = until.expect("the key waits").parse().unwrap();
    let left = until.as_second() - flyball::api::clock::now().as_second();
    assert!((1..=600).contains(&left), "{left} s: {lane}");
    world.stop().await;
}

#[tokio::test]
async fn a_token_whose_list_of_throttles_is_empty_claims_nothing() {
    let world = WorkFixture::with(vec![
        token("none", Some("acme"), &["render"], &[]),
        AuthToken::new(TokenSecret::new(secret("root"))),
    ])
    .await;

    let wanted = json!({"worker": "w", "kinds": ["render"], "wait_s": 0});
    let (status, answer) = world
        .post_as(&secret("none"), "/api/v1/claim", &wanted)
        .await;

    assert_eq!((status, &answer["code"]), (403, &json!("not_allowed")));
    assert_eq!(answer["errors"][0]["pointer"], "/throttles", "{answer}");
    world.stop().await;
}
