//! The throttles of the API itself, and sessions that have ended.

use flyball::api::TokenScope;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::tokens::with;
use super::tokens_fixture::{ADMIN, SOON, leave, secret, token_server};

#[tokio::test]
async fn the_throttles_of_the_api_are_turned_by_administrators_alone_and_never_lock_them_out() {
    let ops = || {
        leave(&[
            TokenScope::OpsWrite,
            TokenScope::OpsRead,
            TokenScope::ThrottlesAcquire,
        ])
    };
    let server = token_server(vec![("ops", None, ops())], "").await;
    for (method, path, body) in [
        (
            Method::PATCH,
            "/api/v1/throttles/api:write:acme",
            json!({"rps": -1, "key_rps": -1}),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/%61pi%3Aread",
            json!({"rps": 0}),
        ),
        (Method::POST, "/api/v1/throttles/api:write/pause", json!({})),
        (
            Method::POST,
            "/api/v1/throttles/api:write/acquire",
            json!({"tokens": 1_000_000}),
        ),
        (
            Method::POST,
            "/api/v1/throttles/api:write/return",
            json!({"tokens": 1}),
        ),
        (
            Method::POST,
            "/api/v1/throttles/api:write/keys/x/pause",
            json!({"seconds": 5}),
        ),
        (
            Method::PATCH,
            "/api/v1/throttles/mail",
            json!({"parent": "api:write"}),
        ),
    ] {
        let answer = server
            .refused(method, path, &secret("ops"), body, "scope_missing")
            .await;
        assert!(
            answer.contains("limits the API itself") && answer.contains("admin"),
            "{answer}"
        );
    }
    assert_eq!(
        server
            .call(
                Method::GET,
                "/api/v1/throttles/api:write",
                &secret("ops"),
                json!({})
            )
            .await
            .0,
        200
    );

    assert_eq!(
        server
            .call(
                Method::POST,
                "/api/v1/throttles/api:write/pause",
                ADMIN,
                json!({})
            )
            .await
            .0,
        200
    );
    let response = server
        .ask(Method::POST, "/api/v1/pause", Some(ADMIN), &json!({}))
        .await;
    assert_eq!(
        (
            response.status().as_u16(),
            response.headers().get("retry-after")
        ),
        (429, None)
    );
    let problem: Value = response.json().await.unwrap();
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("flyball throttle resume api:write") && !detail.contains("try again in"),
        "{detail}"
    );
    assert_eq!(
        server
            .call(
                Method::POST,
                "/api/v1/throttles/api:write/resume",
                ADMIN,
                json!({})
            )
            .await
            .0,
        200
    );
    assert_eq!(
        server
            .call(Method::POST, "/api/v1/pause", ADMIN, json!({}))
            .await
            .0,
        200
    );
    // A rate of zero has no effect either.
    for turned in ["0", "10"] {
        let knobs = json!({"rps": turned.parse::<f64>().unwrap()});
        assert_eq!(
            server
                .call(Method::PATCH, "/api/v1/throttles/api:write", ADMIN, knobs)
                .await
                .0,
            200
        );
    }
}

#[tokio::test]
async fn a_session_that_was_ended_is_good_nowhere() {
    let server = token_server(Vec::new(), "https://jobs.example.com").await;
    let login = || async {
        let form = [("token", ADMIN)];
        let response = server
            .client
            .post(format!("{}/login", server.base))
            .form(&form)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        let cookie = response.headers()["set-cookie"]
            .to_str()
            .unwrap()
            .to_owned();
        assert!(
            cookie.ends_with("; Secure") && cookie.contains("HttpOnly"),
            "{cookie}"
        );
        cookie.split(';').next().unwrap().to_owned()
    };
    let (first, second) = (login().await, login().await);
    assert_eq!(
        with(&server, Method::GET, "/api/v1/pause", &first).await,
        200
    );

    let stream = server
        .client
        .get(format!("{}/api/v1/stream", server.base))
        .header("cookie", &first);
    let stream = stream.send().await.unwrap();
    assert_eq!(stream.status(), StatusCode::OK);

    assert_eq!(with(&server, Method::POST, "/logout", &first).await, 303);

    let ended = tokio::time::timeout(SOON, stream.bytes()).await;
    ended.expect("the stream ends").unwrap();

    assert_eq!(
        with(&server, Method::GET, "/api/v1/pause", &first).await,
        401
    );
    assert_eq!(
        with(&server, Method::GET, "/api/v1/pause", &second).await,
        200,
        "another session of the same token goes on"
    );
    // Other processes read the value from the place where this one wrote it.
    let ended: i64 = sqlx::query_scalar("select count(*) from flyball.revoked_session")
        .fetch_one(server.database.pool())
        .await
        .unwrap();
    assert_eq!(ended, 1);
    sqlx::query("insert into flyball.revoked_session select encode(sha256(convert_to($1, 'UTF8')), 'hex'), 9000000000")
        .bind(second.split_once('=').unwrap().1)
        .execute(server.database.pool())
        .await
        .unwrap();
    crate::support::eventually(
        "the end of a session that another process ended",
        SOON,
        || async {
            (with(&server, Method::GET, "/api/v1/pause", &second).await == 401).then_some(())
        },
    )
    .await;
}

/// Everybody may send a login, so that a large one must not be kept until it has come.
#[tokio::test]
async fn a_login_that_is_larger_than_any_token_is_answered_before_its_end() {
    let server = token_server(Vec::new(), "").await;
    let address = server.base.trim_start_matches("http://");
    let part = "a".repeat(64 * 1024 + 1);
    let sent = format!(
        "POST /login HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/x-www-form-urlencoded\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{part}",
        2 * part.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(sent.as_bytes()).await.unwrap();
    let mut answer = [0; 12];

    let answered = tokio::time::timeout(SOON, stream.read_exact(&mut answer)).await;

    answered.expect("an answer in time").unwrap();
    assert_eq!(&answer, b"HTTP/1.1 413");
}
