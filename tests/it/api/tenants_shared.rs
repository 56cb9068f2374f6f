//! Programs of a tenant at throttles that others share: what they report harms nobody else.

use flyball::api::{Permissions, TokenScope};
use flyball::throttle::{KeyState, Name};
use reqwest::Method;
use serde_json::{Value, json};

use super::tokens_fixture::{ADMIN, SOON, TokenServer, leave, secret, token_server};
use crate::support::eventually;

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
