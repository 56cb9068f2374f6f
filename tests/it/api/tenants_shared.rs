//! Programs of a tenant at throttles that others share: what they report harms nobody else.

use std::sync::Arc;

use flyball::api::{AuthToken, Permissions, TokenScope, TokenSecret};
use flyball::app::JournalReader;
use flyball::governor::{Bounds, ControlState, Journal, Observation, Policy, RateLimit};
use flyball::throttle::{KeyState, Name};
use reqwest::Method;
use serde_json::{Value, json};

use super::tokens_fixture::{ADMIN, SOON, TokenServer, leave, secret, token_server};
use crate::support::api_server::ApiServer;
use crate::support::eventually;
use crate::support::fixture::Fixture;

/// A server with a token of the tenant acme that names the shared throttle `mail` and two of its
/// own.
async fn server() -> TokenServer {
    let named = ["mail", "tenant:acme/below", "tenant:acme/own"];
    let programs = Permissions {
        throttles: Some(named.map(str::to_owned).to_vec()),
        ..leave(&[TokenScope::ThrottlesAcquire])
    };
    token_server(vec![("programs", Some("acme"), programs)], "").await
}

async fn send(server: &TokenServer, path: &str, body: Value) -> Value {
    let path = format!("/api/v1/throttles/{path}");
    let (status, answer) = server
        .call(Method::POST, &path, &secret("programs"), body)
        .await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

#[tokio::test]
async fn a_tenant_gives_tokens_back_to_throttles_of_its_own_alone() {
    let server = server().await;
    server
        .turn("tenant:acme/below", &[("rps", "5"), ("parent", "mail")])
        .await;
    send(&server, "mail/acquire", json!({})).await;
    for (path, body) in [
        ("mail/return", json!({"tokens": 1})),
        ("mail/settle", json!({"charged": 2, "cost": 1})),
        ("tenant:acme%2Fbelow/return", json!({"tokens": 1})),
    ] {
        let path = format!("/api/v1/throttles/{path}");
        let detail = server
            .refused(
                Method::POST,
                &path,
                &secret("programs"),
                body,
                "not_allowed",
            )
            .await;
        assert!(
            detail.contains("to throttle mail") && detail.contains("tenant:acme/<name>"),
            "{detail}"
        );
    }

    // What costs more is charged, and what is its own or an operator's is given back.
    send(&server, "mail/settle", json!({"charged": 1, "cost": 2})).await;
    send(&server, "tenant:acme%2Fown/acquire", json!({"rps": 5})).await;
    send(&server, "tenant:acme%2Fown/return", json!({"tokens": 1})).await;
    let (status, answer) = server
        .call(
            Method::POST,
            "/api/v1/throttles/mail/return",
            ADMIN,
            json!({"tokens": 1}),
        )
        .await;
    assert_eq!(status, 200, "{answer}");
}

#[tokio::test]
async fn a_tenant_makes_the_key_of_a_shared_throttle_slow_for_no_longer_than_its_pause() {
    let server = server().await;
    let state = async || -> KeyState {
        let keys = ["acme".to_owned()];
        let states = server.store.look(&Name::new("mail").unwrap(), &keys).await;
        states.unwrap().swap_remove(0)
    };
    let refusal = json!({"key": "acme", "retry_after_s": 0.05});
    for _ in 0..2 {
        send(&server, "mail/refused", refusal.clone()).await;
        eventually("the pause is over", SOON, || async {
            state().await.paused_until_ms.is_none().then_some(())
        })
        .await;
        let end = json!({"key": "acme", "succeeded": 1, "tokens": 1e-9});
        send(&server, "mail/ended", end).await;
    }
    send(&server, "mail/refused", refusal).await;

    let after = state().await;
    assert_eq!(
        (after.learned_rps, after.settled_rps),
        (None, None),
        "{after:?}"
    );
}

#[tokio::test]
async fn a_tenant_is_not_told_what_people_said_of_a_throttle_above_its_own() {
    let fixture = Fixture::new().await;
    fixture.turn("mail", &[("rps", "0")]).await;
    let below = [("rps", "5"), ("parent", "mail")];
    fixture.turn("tenant:acme/below", &below).await;
    sqlx::query("select flyball.pause_all('bank lost its key', 'ann')")
        .execute(fixture.database.pool())
        .await
        .unwrap();
    let reads = leave(&[TokenScope::OpsRead]);
    let token = |name: &str, tenant| {
        AuthToken::of(name, tenant, reads.clone(), TokenSecret::new(secret(name)))
    };
    let tokens = [token("acme", Some("acme")), token("operator", None)];
    let server = ApiServer::start(fixture, |deps| {
        deps.decisions = Arc::new(JournalReader::new(&deps.queue, &deps.throttles, &[]));
        deps.tokens = tokens.into();
    })
    .await;
    let told = async |name: &str| {
        let path = "/api/v1/throttles/tenant:acme%2Fbelow/why";
        let request = server.request(Method::GET, path).bearer_auth(secret(name));
        let answer: Value = request.send().await.unwrap().json().await.unwrap();
        answer["sentence"].as_str().unwrap().to_owned()
    };

    let operator = told("operator").await;
    for text in ["bank lost its key", "Its rate is 0, set by test"] {
        assert!(operator.contains(text), "{operator}");
    }
    let tenant = told("acme").await;
    for text in ["since ", "mail above it grants nothing. Its rate is 0;"] {
        assert!(tenant.contains(text), "{tenant}");
    }
    for text in ["by ann", "bank", "by test; set one"] {
        assert!(!tenant.contains(text), "{tenant}");
    }
}

#[tokio::test]
async fn a_tenant_is_not_told_why_a_signal_of_its_throttle_has_no_reading() {
    let fixture = Fixture::new().await;
    let name = Name::new("notify:acme").unwrap();
    let knobs = [("rps", "5"), ("mode", "auto")];
    fixture.turn(name.as_str(), &knobs).await;
    let text = "[[signal]]\nname = \"load\"\nquery = \"q\"\nsetpoint = 1.0\n";
    let policy = Policy::parse(text, "f").unwrap().unwrap();
    let bounds = Bounds {
        min: 1.0,
        max: 10.0,
        safe_rps: 5.0,
    };
    let status = fixture.store.status(&name).await.unwrap().unwrap();
    let seen = Observation {
        now: status.at_us as f64 / 1e6,
        ..Observation::default()
    };
    let mut state = ControlState::new(&policy, bounds, RateLimit::PerSecond(5.0), seen.now - 5.0);
    state.signals[0].problem = Some("http://prometheus.example cannot be reached".to_owned());
    state.tick(&policy, bounds, &seen);
    let stored = serde_json::to_value(&state).unwrap();
    let journal = Journal::new(fixture.database.pool().clone());
    journal.save(name.as_str(), 1, &stored).await.unwrap();
    let reads = leave(&[TokenScope::OpsRead]);
    let token = |name: &str, tenant| {
        AuthToken::of(name, tenant, reads.clone(), TokenSecret::new(secret(name)))
    };
    let tokens = [token("acme", Some("acme")), token("operator", None)];
    let server = ApiServer::start(fixture, |deps| {
        let policies = [(name.clone(), policy)];
        deps.decisions = Arc::new(JournalReader::new(&deps.queue, &deps.throttles, &policies));
        deps.tokens = tokens.into();
    })
    .await;
    let told = async |path: &str, token: &str| {
        let path = format!("/api/v1/throttles{path}");
        let request = server
            .request(Method::GET, &path)
            .bearer_auth(secret(token));
        request.send().await.unwrap().text().await.unwrap()
    };

    for path in ["/notify:acme/why", "/notify:acme", ""] {
        eventually("an operator is told", SOON, || async {
            let operator = told(path, "operator").await;
            operator.contains("prometheus.example").then_some(())
        })
        .await;
        let tenant = told(path, "acme").await;
        assert!(
            tenant.contains("notify:acme") && !tenant.contains("prometheus.example"),
            "{path}: {tenant}"
        );
    }
}
