//! Publishing by every interface, subscribing, and the walls between tenants.

use flyball::Client;
use flyball::api::{ClaimRules, JwksSource, JwtAuth, JwtRules, SigningAlgorithm};
use flyball::gateway::limits::GatewayLimits;
use flyball::jobs::Error;
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{PATIENCE, WsClient, open};
use super::fixture::{GatewayServer, jwt, jwt_with, limits, token};
use crate::api::issuer::{Signer, claims, rules};
use crate::support::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn a_message_reaches_its_subscribers_by_every_interface_and_in_order() {
    let served = GatewayServer::start().await;
    let (mut reader, mut writer) = (
        served.client("acme-reader").await,
        served.client("acme").await,
    );
    let answer = reader.subscribe("orders").await;
    assert_eq!(
        (&answer["type"], &answer["offset"]),
        (&json!("subscribed"), &json!(0))
    );

    writer
        .send(&json!({"type": "publish", "channel": "orders", "data": {"n": 1}, "ref": "r1"}))
        .await;
    let published = writer.next().await;
    assert_eq!(
        (&published["type"], &published["ref"]),
        (&json!("published"), &json!("r1"))
    );
    let first = reader.next().await;
    assert_eq!(
        (&first["data"], &first["offset"], &first["id"]),
        (&json!({"n": 1}), &json!(1), &published["id"])
    );

    let (status, accepted) = served.publish("acme", "orders", &json!({"n": 2})).await;
    assert_eq!(status, 202, "{accepted}");
    let second = reader.next().await;
    assert_eq!(
        (&second["data"], &second["id"]),
        (&json!({"n": 2}), &accepted["id"])
    );

    let mut transaction = served.queue.pool.begin().await.unwrap();
    for statement in [
        "select flyball.as_tenant('acme')",
        "select flyball.publish('orders', '{\"n\": 3}')",
    ] {
        sqlx::query(statement)
            .execute(&mut *transaction)
            .await
            .unwrap();
    }
    transaction.rollback().await.unwrap();
    served.publish_numbers("acme", "orders", 4, 4).await;
    let third = reader.next().await;
    assert_eq!((&third["data"], &third["offset"]), (&json!(4), &json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_name_reaches_into_another_tenant() {
    let served = GatewayServer::start().await;
    let (mut acme, mut zeta) = (served.client("acme").await, served.client("zeta").await);
    acme.subscribe("orders").await;
    zeta.subscribe("orders").await;
    for (name, code) in [
        ("acme:orders", "FORBIDDEN_CHANNEL"),
        ("$inbox/u1", "FORBIDDEN_CHANNEL"),
        ("$inbox", "FORBIDDEN_CHANNEL"),
        ("a b", "BAD_CHANNEL"),
        ("", "BAD_FRAME"),
    ] {
        for kind in ["subscribe", "unsubscribe", "publish"] {
            let mut frame = json!({"type": kind, "channel": name, "ref": "x"});
            if kind == "publish" {
                frame["data"] = json!(1);
            }
            zeta.send(&frame).await;
            let answer = zeta.next().await;
            assert_eq!(
                (&answer["type"], &answer["code"]),
                (&json!("error"), &json!(code)),
                "{kind} {name}"
            );
        }
    }
    // Its own name in front is the same channel.
    zeta.send(&json!({"type": "publish", "channel": "zeta:orders", "data": "of zeta"}))
        .await;
    assert_eq!(zeta.next().await["type"], "published");
    assert_eq!(zeta.next().await["data"], "of zeta");
    served.publish("acme", "orders", &json!("of acme")).await;
    assert_eq!(acme.next().await["data"], "of acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_needs_a_credential_and_the_scope() {
    let served = GatewayServer::start().await;
    let bearer = |name: &str| format!("Bearer {}", token(name));
    let wrong = open(
        &served.base,
        "/api/v1/ws",
        &[("authorization", "Bearer wrong")],
    )
    .await;
    assert_eq!(wrong.err().unwrap().status, 401);
    let jobs = bearer("acme-jobs");
    let refused = open(&served.base, "/api/v1/ws", &[("authorization", &jobs)]).await;
    let refused = refused.err().unwrap();
    assert_eq!(
        (refused.status, refused.problem["code"].as_str()),
        (403, Some("scope_missing"))
    );
    let acme = bearer("acme");
    let page = [
        ("authorization", acme.as_str()),
        ("origin", "https://evil.example"),
    ];
    let refused = open(&served.base, "/api/v1/ws", &page).await.err().unwrap();
    assert_eq!(refused.problem["code"], "origin_not_allowed");
    let unnamed = [
        ("authorization", acme.as_str()),
        ("sec-websocket-protocol", "other"),
    ];
    let refused = open(&served.base, "/api/v1/ws", &unnamed)
        .await
        .err()
        .unwrap();
    assert_eq!(refused.status, 400);
    // A reader may not publish.
    let mut reader = served.client("acme-reader").await;
    reader
        .send(&json!({"type": "publish", "channel": "orders", "data": 1}))
        .await;
    assert_eq!(reader.next().await["code"], "SCOPE_MISSING");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_frame_may_be_the_credential() {
    let served = GatewayServer::start().await;
    let mut late = WsClient {
        socket: open(&served.base, "/api/v1/ws", &[]).await.unwrap(),
        hello: json!(null),
    };
    late.send(&json!({"type": "refresh", "token": token("acme")}))
        .await;
    assert_eq!(late.next().await["type"], "hello");
    assert_eq!(late.subscribe("orders").await["type"], "subscribed");

    for (first, code) in [
        (json!({"type": "refresh", "token": "wrong"}), 4001),
        (json!({"type": "subscribe", "channel": "orders"}), 4001),
        // It may not subscribe.
        (
            json!({"type": "refresh", "token": token("acme-jobs")}),
            4003,
        ),
    ] {
        let mut stranger = WsClient {
            socket: open(&served.base, "/api/v1/ws", &[]).await.unwrap(),
            hello: json!(null),
        };
        stranger.send(&first).await;
        assert_eq!(stranger.closed().await, code, "{first}");
    }

    let mut silent = WsClient {
        socket: open(&served.base, "/api/v1/ws", &[]).await.unwrap(),
        hello: json!(null),
    };
    served.gateway.drain.cancel();
    assert_eq!(silent.closed().await, 4201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_whose_keys_cannot_be_read_may_come_back() {
    let source = JwksSource::File("/nowhere/keys.json".into());
    let jwt = JwtAuth::new(rules(&[SigningAlgorithm::Es256]), source);
    let served = GatewayServer::checking(jwt, limits()).await;
    let claims = claims("acme", "channels:subscribe");
    let signed = Signer::new("k", jsonwebtoken::Algorithm::ES256).sign(&claims);
    let refresh = json!({"type": "refresh", "token": signed, "ref": "r"});

    let mut late = WsClient {
        socket: open(&served.base, "/api/v1/ws", &[]).await.unwrap(),
        hello: json!(null),
    };
    late.send(&refresh).await;
    assert_eq!(late.closed().await, 4101);
    let bearer = format!("Bearer {signed}");
    let headers = [("authorization", bearer.as_str())];
    let refused = open(&served.base, "/api/v1/ws", &headers).await;
    assert_eq!(refused.err().unwrap().status, 503);
    let mut client = served.client("acme").await;
    client.send(&refresh).await;
    let answer = client.next().await;
    assert_eq!(
        (&answer["code"], &answer["ref"]),
        (&json!("UNAVAILABLE"), &json!("r"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_opens_one_connection_with_its_rights() {
    let served = GatewayServer::start().await;
    let rights = json!({"channels": ["room.*"], "recipient": "u1"});
    let ticket = served.ticket("acme", &rights).await;
    let path = format!("/api/v1/ws?ticket={ticket}");
    let mut browser = WsClient::with(&served.base, &path, &[]).await;
    assert_eq!(browser.subscribe("room.7").await["type"], "subscribed");
    assert_eq!(browser.subscribe("$inbox").await["channel"], "$inbox/u1");
    let unnamed = browser.subscribe("orders").await;
    assert_eq!(
        (&unnamed["code"], &unnamed["message"]),
        (
            &json!("FORBIDDEN_CHANNEL"),
            &json!("channel: is not one of the channels that the ticket names")
        )
    );
    browser
        .send(&json!({"type": "publish", "channel": "room.7", "data": 1}))
        .await;
    assert_eq!(browser.next().await["code"], "SCOPE_MISSING");
    // It cannot be used again.
    let again = open(&served.base, &path, &[]).await.err().unwrap();
    assert_eq!(again.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_at_the_head_of_a_stream_uses_up_no_ticket() {
    let served = GatewayServer::start().await;
    let rights = json!({"channels": ["orders"]});
    let ticket = served.ticket("acme", &rights).await;
    let path = format!("/api/v1/channels/orders/events?ticket={ticket}");
    let looked = served.request(Method::HEAD, &path).send().await.unwrap();
    assert_eq!(looked.status(), 405);
    assert_eq!(looked.headers()["allow"], "GET");
    let opened = served.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(opened.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_is_refused_for_a_recipient_to_whom_no_message_can_be_sent() {
    let served = GatewayServer::start().await;
    for id in ["ada ", "check", "..", "a\nb"] {
        let asked = served
            .request(Method::POST, "/api/v1/ws/tickets")
            .bearer_auth(token("acme"))
            .json(&json!({"recipient": id}));
        let refused = asked.send().await.unwrap();
        assert_eq!(refused.status(), 422, "{id:?}");
        let problem: Value = refused.json().await.unwrap();
        assert_eq!(problem["errors"][0]["pointer"], "/recipient", "{id:?}");
    }
}

/// Behind a proxy a stranger who guesses has the address of everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_valid_ticket_is_accepted_whatever_others_of_its_address_send() {
    let served = GatewayServer::start().await;
    served
        .turn("api:denied", &[("key_rps", "0.0001"), ("rps", "-1")])
        .await;
    let mut statuses = Vec::new();
    // A full bucket holds two.
    for n in 0..4 {
        let path = format!("/api/v1/ws?ticket=guess-{n}");
        let refused = open(&served.base, &path, &[]).await.err().unwrap();
        statuses.push(refused.status);
    }
    assert_eq!(statuses, [401, 401, 429, 429]);
    // A page, from which browsers hide the status, comes back later.
    let path = "/api/v1/ws?refuse=close&ticket=guess";
    let mut page = WsClient {
        socket: open(&served.base, path, &[]).await.unwrap(),
        hello: json!(null),
    };
    assert_eq!(page.closed().await, 4101);
    let rights = json!({"channels": ["orders"]});
    let mut browser = served.browser("acme", &rights).await;
    assert_eq!(browser.subscribe("orders").await["type"], "subscribed");
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_whose_tickets_are_looked_up_hold_no_streams_of_events() {
    let few = GatewayLimits {
        node_streams: 2,
        ..limits()
    };
    let served = GatewayServer::with(few).await;
    let mut busy = served.database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.connection_ticket in access exclusive mode")
        .execute(&mut *busy)
        .await
        .unwrap();
    let path = "/api/v1/channels/orders/events";
    for n in 0..4 {
        let guess = served.request(Method::GET, &format!("{path}?ticket=guess-{n}"));
        tokio::spawn(guess.send());
    }
    let waiting = "select count(*) from pg_locks where not granted and database = (select oid from pg_database where datname = current_database()) and relation = 'flyball.connection_ticket'::regclass";
    eventually("a ticket is looked up", PATIENCE, || async {
        let lookups = sqlx::query_scalar::<_, i64>(waiting);
        let lookups = lookups.fetch_one(served.database.pool()).await.unwrap();
        (lookups > 0).then_some(())
    })
    .await;

    let known = served.request(Method::GET, path);
    let known = known.bearer_auth(token("acme-reader")).send().await;
    assert_eq!(known.unwrap().status(), 200);
    busy.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_that_many_send_at_once_opens_one_connection() {
    let served = GatewayServer::start().await;
    let rights = json!({"channels": ["orders"]});
    let path = format!("/api/v1/ws?ticket={}", served.ticket("acme", &rights).await);
    let opening = (0..20).map(|_| open(&served.base, &path, &[]));
    let opened = futures_util::future::join_all(opening).await;
    assert_eq!(opened.iter().filter(|one| one.is_ok()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_that_expires_is_announced_and_renewed_by_one_of_the_same_tenant() {
    let served = GatewayServer::start().await;
    let mut client = WsClient::connect(&served.base, &jwt("acme", 6)).await;
    let warning = client.next().await;
    assert_eq!(
        (&warning["type"], &warning["code"]),
        (&json!("warning"), &json!("TOKEN_EXPIRES"))
    );
    for (other, reference) in [
        (jwt("zeta", 500), "foreign"),
        ("nonsense".to_owned(), "wrong"),
    ] {
        client
            .send(&json!({"type": "refresh", "token": other, "ref": reference}))
            .await;
        let answer = client.next().await;
        assert_eq!(
            (&answer["code"], &answer["ref"]),
            (&json!("UNAUTHORIZED"), &json!(reference))
        );
    }
    client
        .send(&json!({"type": "refresh", "token": jwt("acme", 500), "ref": "new"}))
        .await;
    let answer = client.next().await;
    assert_eq!(
        (&answer["type"], &answer["ref"]),
        (&json!("refreshed"), &json!("new"))
    );
    assert!(answer["expires_at"].is_i64(), "{answer}");
    assert_eq!(client.subscribe("orders").await["type"], "subscribed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_credential_does_not_keep_a_channel_that_it_may_not_use() {
    let served = GatewayServer::start().await;
    let wide = jwt_with("acme", "channels:subscribe notify:read", 500);
    let mut client = WsClient::connect(&served.base, &wide).await;
    assert_eq!(client.subscribe("$inbox/u2").await["type"], "subscribed");
    let narrower = json!({"type": "refresh", "token": jwt("acme", 500)});
    client.send(&narrower).await;
    let refused = client.next().await;
    assert_eq!(refused["code"], "UNAUTHORIZED");
    let words = refused["message"].as_str().unwrap();
    assert!(words.contains("may not use $inbox/u2"), "{words}");
    client
        .send(&json!({"type": "unsubscribe", "channel": "$inbox/u2"}))
        .await;
    assert_eq!(client.next().await["type"], "unsubscribed");
    client.send(&narrower).await;
    assert_eq!(client.next().await["type"], "refreshed");
    assert_eq!(
        client.subscribe("$inbox/u2").await["code"],
        "FORBIDDEN_CHANNEL"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_who_have_named_a_tenant_renew_their_credential() {
    let all_tenants = JwtRules {
        claims: ClaimRules {
            all_tenants: true,
            ..rules(&[]).claims
        },
        ..rules(&[SigningAlgorithm::Hs256])
    };
    let jwt_auth = JwtAuth::new(all_tenants, JwksSource::None);
    let served = GatewayServer::checking(jwt_auth, limits()).await;
    let bearer = format!("Bearer {}", jwt("*", 500));
    let headers = [("authorization", bearer.as_str())];
    let path = "/api/v1/ws?tenant=acme";
    let mut operator = WsClient::with(&served.base, path, &headers).await;
    for (newer, kind) in [
        (jwt("zeta", 500), "error"),
        (jwt("*", 500), "refreshed"),
        (jwt("acme", 500), "refreshed"),
    ] {
        operator
            .send(&json!({"type": "refresh", "token": newer}))
            .await;
        assert_eq!(operator.next().await["type"], kind);
    }
    // It is still a connection of that tenant.
    operator.subscribe("orders").await;
    served.publish("acme", "orders", &json!("for acme")).await;
    assert_eq!(operator.next().await["data"], "for acme");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_that_signs_out_loses_its_connections_and_those_of_its_tickets() {
    let served = GatewayServer::start().await;
    let login = served
        .request(reqwest::Method::POST, "/login")
        .form(&[("token", token("acme"))])
        .send()
        .await
        .unwrap();
    let cookie = login.headers()["set-cookie"].to_str().unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let with_cookie = |method: reqwest::Method, path: &str| {
        served.request(method, path).header("cookie", &cookie)
    };
    let headers = [("cookie", cookie.as_str())];
    let mut page = WsClient::with(&served.base, "/api/v1/ws", &headers).await;
    let ticket = with_cookie(reqwest::Method::POST, "/api/v1/ws/tickets");
    let ticket = ticket.json(&json!({"channels": ["orders"]})).send();
    let ticket: serde_json::Value = ticket.await.unwrap().json().await.unwrap();
    let path = format!("/api/v1/ws?ticket={}", ticket["ticket"].as_str().unwrap());
    let mut other = WsClient::with(&served.base, &path, &[]).await;
    let stream = with_cookie(reqwest::Method::GET, "/api/v1/channels/orders/events");
    let stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut program = served.client("acme").await;

    let logout = with_cookie(reqwest::Method::POST, "/logout").send().await;
    assert_eq!(logout.unwrap().status(), 303);
    assert_eq!((page.closed().await, other.closed().await), (4001, 4001));
    let ended = tokio::time::timeout(super::client::PATIENCE, stream.bytes()).await;
    ended.expect("the stream ends").unwrap();
    assert_eq!(program.subscribe("orders").await["type"], "subscribed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_closed_after_a_few_wrong_tokens() {
    let served = GatewayServer::start().await;
    let mut client = served.client("acme").await;
    for n in 1..=4 {
        client
            .send(&json!({"type": "refresh", "token": format!("guess-{n}")}))
            .await;
        assert_eq!(client.next().await["code"], "UNAUTHORIZED");
    }
    client
        .send(&json!({"type": "refresh", "token": "guess-5"}))
        .await;
    assert_eq!(client.closed().await, 4001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_in_a_frame_counts_against_its_address_as_one_in_a_header() {
    let served = GatewayServer::start().await;
    served
        .turn("api:denied", &[("key_rps", "0.0001"), ("rps", "-1")])
        .await;
    // A full bucket holds two.
    for _ in 0..2 {
        let mut stranger = WsClient {
            socket: open(&served.base, "/api/v1/ws", &[]).await.unwrap(),
            hello: json!(null),
        };
        stranger
            .send(&json!({"type": "refresh", "token": "wrong"}))
            .await;
        assert_eq!(stranger.closed().await, 4001);
    }
    let refused = served
        .request(reqwest::Method::GET, "/api/v1/throttles")
        .bearer_auth("wrong")
        .send()
        .await
        .unwrap();
    assert_eq!(refused.status(), 429);
    // Valid tokens pass all the same; the first wrong one closes.
    let mut client = served.client("acme").await;
    client
        .send(&json!({"type": "refresh", "token": "wrong"}))
        .await;
    assert_eq!(client.closed().await, 4001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_is_answered_while_postgres_does_not_answer() {
    let served = GatewayServer::start().await;
    let mut client = served.client("acme").await;
    let mut lock = served.database.pool().begin().await.unwrap();
    sqlx::query("lock table flyball.channel, flyball.publication in access exclusive mode")
        .execute(&mut *lock)
        .await
        .unwrap();
    for frame in [
        json!({"type": "subscribe", "channel": "orders", "ref": "s"}),
        json!({"type": "publish", "channel": "orders", "data": 1, "ref": "p"}),
    ] {
        client.send(&frame).await;
        let answer = client.next_of("error").await;
        assert_eq!(
            (&answer["code"], &answer["ref"]),
            (&json!("UNAVAILABLE"), &frame["ref"])
        );
    }
    lock.rollback().await.unwrap();
    assert_eq!(client.subscribe("orders").await["type"], "subscribed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_postgres_cannot_read_fails_alone() {
    let served = GatewayServer::start().await;
    let asks = (0..64).map(|n| {
        let gateway = served.gateway.clone();
        let channel = match n % 8 {
            3 => "\0".to_owned(),
            _ => format!("c{n}"),
        };
        async move { (n, gateway.position("acme", &channel).await.is_ok()) }
    });
    for (n, is_answered) in futures_util::future::join_all(asks).await {
        assert_eq!(is_answered, n % 8 != 3, "{n}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn from_rust_a_publication_goes_out_if_its_transaction_commits_and_a_full_queue_refuses_it() {
    let served = GatewayServer::start().await;
    let mut reader = served.client("acme-reader").await;
    reader.subscribe("orders").await;
    let publish = async |n: i64, commits: bool| {
        let mut transaction = served.queue.pool.begin().await.unwrap();
        sqlx::query("select flyball.as_tenant('acme')")
            .execute(&mut *transaction)
            .await
            .unwrap();
        Client
            .publish(&mut *transaction, "orders", &json!(n))
            .await
            .unwrap();
        if commits {
            transaction.commit().await.unwrap();
        }
    };
    publish(1, false).await;
    publish(2, true).await;
    let id = served
        .queue
        .publish_as("acme", "orders", &json!(3))
        .await
        .unwrap();
    assert_eq!(reader.next().await["data"], 2);
    let message = reader.next().await;
    assert_eq!(
        (&message["data"], &message["id"]),
        (&json!(3), &json!(id.to_string()))
    );

    let refused = served.queue.publish_as("acme", "or ders", &json!(4)).await;
    assert!(
        matches!(&refused, Err(Error::Refused { field, .. }) if field == "channel"),
        "{refused:?}"
    );
    // Two seconds of the limit wait.
    served.publish_numbers("acme", "flood", 1, 600).await;
    served.queue.set_tenant_queue_max(1).await.unwrap();
    let full = served.queue.publish_as("acme", "flood", &json!(601)).await;
    let full = full.unwrap_err();
    assert!(
        matches!(&full, Error::QueueFull { tenant, max: 1, .. } if tenant == "acme"),
        "{full:?}"
    );
}
