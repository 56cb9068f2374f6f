//! Tokens for other programs: acquire, peek, return, and waiting.

use std::sync::Arc;
use std::time::Duration;

use flyball::throttle::{MemoryStore, Name, RedisStore};
use serde_json::{Value, json};

use super::server::{SOON, pointers, problem, spawn_api, spawn_api_on};
use crate::support::fixture::Fixture;
use crate::support::{connect_redis, eventually};

/// A rate so low that no token is refilled during a test; the bucket holds ten.
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
async fn the_real_cost_is_settled_and_a_refusal_pauses_the_key_until_an_end_opens_it() {
    let api = spawn_api(None).await;
    api.turn("mail", &SLOW).await;
    api.tokens("mail/return", json!({"tokens": 500, "key": "a"}))
        .await;
    let take = json!({"tokens": 4, "key": "a"});
    assert_eq!(api.tokens("mail/acquire", take).await["remaining"], 6);
    let dearer = json!({"key": "a", "charged": 4, "cost": 7});
    let settled = api.tokens("mail/settle", dearer).await;
    assert_eq!(
        (&settled["settled"], &settled["remaining"]),
        (&json!(3.0), &json!(3)),
        "{settled}"
    );
    let cheaper = json!({"key": "a", "charged": 7, "cost": 1});
    let settled = api.tokens("mail/settle", cheaper).await;
    assert_eq!(
        (&settled["settled"], &settled["remaining"]),
        (&json!(-6.0), &json!(9)),
        "{settled}"
    );

    let refusal = json!({"key": "a", "retry_after_s": 600, "error": "answered 429"});
    let paused = api.tokens("mail/refused", refusal).await;
    assert!(
        paused["paused_until"].is_string() && paused["wait_s"].as_f64().unwrap() > 590.0,
        "{paused}"
    );
    let none = api.tokens("mail/acquire", json!({"key": "a"})).await;
    assert_eq!(
        (&none["allowed"], &none["limit"]["level"]),
        (&json!(false), &json!("paused")),
        "{none}"
    );
    let other = api.tokens("mail/acquire", json!({"key": "b"})).await;
    assert_eq!(other["allowed"], true, "another key goes on: {other}");
    let noted = json!({"key": "a", "succeeded": 2, "failed": 1});
    let noted = api.tokens("mail/ended", noted).await;
    assert_eq!(
        noted,
        json!({"throttle": "mail", "key": "a", "succeeded": 2, "failed": 1})
    );

    for (route, body, at) in [
        ("settle", json!({"cost": 1}), "/charged"),
        ("settle", json!({"charged": 1, "cost": -1}), "/cost"),
        ("settle", json!({"charged": 1e8, "cost": 1}), "/charged"),
        ("refused", json!({"scope": "everything"}), "/scope"),
        ("refused", json!({"retry_after_s": 1e9}), "/retry_after_s"),
        ("ended", json!({"key": "a"}), ""),
        ("ended", json!({"succeeded": 1, "remaining": 5}), ""),
        ("ended", json!({"succeeded": -1}), "/succeeded"),
    ] {
        let path = format!("/api/v1/throttles/mail/{route}");
        let refused = problem(api.post(&path, body).await, 422, "invalid_fields").await;
        assert!(pointers(&refused).contains(&at), "{route}: {refused}");
    }
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

    // A key starts with a full bucket: four for the key, ten for the tier.
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

    // A person raises the knob while a request waits.
    let waiting = api.tokens("stopped/acquire", json!({"wait_ms": 30_000}));
    let (waited, ()) = tokio::join!(waiting, api.turn("stopped", &[("rps", "50")]));
    assert_eq!(waited["allowed"], true);
}

#[tokio::test]
async fn the_wait_after_a_refusal_is_told_by_the_clock_of_the_store() {
    // The store is some seventy years ahead of this machine.
    let store = MemoryStore::new(Arc::new(|| 4_000_000_000_000_000));
    store.write_raw(&Name::new("mail").unwrap(), "rps", "5");
    let api = spawn_api_on(None, Fixture::on(Arc::new(store)).await).await;

    let refusal = json!({"key": "a", "retry_after_s": 600});
    let paused = api.tokens("mail/refused", refusal).await;

    let wait_s = paused["wait_s"].as_f64().unwrap();
    assert!((600.0..=660.1).contains(&wait_s), "{paused}");
}

#[tokio::test]
async fn those_who_wait_for_one_lane_stand_in_line_and_only_the_first_asks_redis() {
    let server = crate::support::redis_server::Server::start();
    let store = RedisStore::connect(&server.url(), "")
        .unwrap()
        .with_bound(Duration::from_secs(10));
    let api = spawn_api_on(None, Fixture::on(Arc::new(store)).await).await;
    eventually("Redis", SOON, || async { api.store.names().await.ok() }).await;
    api.turn("mail", &[("rps", "100")]).await;

    let take = |_| api.tokens("mail/acquire", json!({"tokens": 1, "wait_ms": 30_000}));
    let answers = futures_util::future::join_all((0..60).map(take)).await;

    assert!(answers.iter().all(|answer| answer["allowed"] == true));
    let mut connection = connect_redis(&server.url()).await.unwrap();
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query_async(&mut connection)
        .await
        .unwrap();
    let requested = info.lines().find_map(|line| {
        line.strip_prefix("cmdstat_fcall:calls=")?
            .split(',')
            .next()?
            .parse::<u32>()
            .ok()
    });
    // One request to learn the wait, one to take, one to see the rest. If every waiter asked for
    // each token, there would be two thousand.
    assert!(requested.unwrap() < 60 * 6, "{requested:?}");
}
