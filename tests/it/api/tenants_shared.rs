//! Programs of a tenant at throttles that others share: what they report harms nobody else.

use std::sync::Arc;

use flyball::api::{AuthToken, Permissions, TokenScope, TokenSecret};
use flyball::app::JournalReader;
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
