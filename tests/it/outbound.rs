//! The kind `http` against a real server that can be told to fail.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use flyball::jobs::{Checkpoint, CheckpointError, Checkpoints, Context, Handler, Job, Outcome};
use flyball::outbound::{Config, HttpHandler};
use flyball::throttle::MemoryStore;
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the server was sent.
#[derive(Clone, Debug)]
struct Received {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: String,
}

type Log = Arc<Mutex<Vec<Received>>>;

/// A server on a loopback socket whose paths are what it shall do.
struct Server {
    url: String,
    log: Log,
}

impl Server {
    async fn start() -> Self {
        let log = Log::default();
        let app = Router::new().route("/{*what}", any(answer)).with_state(log.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, log }
    }

    fn received(&self) -> Vec<Received> {
        self.log.lock().expect("the log").clone()
    }
}

async fn answer(State(log): State<Log>, Path(what): Path<String>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let body = String::from_utf8_lossy(&body).into_owned();
    log.lock().expect("the log").push(Received { method, path: what.clone(), headers: headers.clone(), body });
    match what.as_str() {
        "ok" => "fine".into_response(),
        "slow" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            "late".into_response()
        }
        "limit" => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "17")], "slow down").into_response(),
        "limit-without-word" => (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response(),
        "busy" => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, "3")], "").into_response(),
        "moved" => (StatusCode::FOUND, [(header::LOCATION, "/ok")], "").into_response(),
        "endless" => {
            let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 8192])));
            (StatusCode::BAD_REQUEST, Body::from_stream(chunks)).into_response()
        }
        "trickle" => {
            let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
            (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "5")], Body::from_stream(never)).into_response()
        }
        "echo" => (StatusCode::BAD_REQUEST, format!("you sent {headers:?}")).into_response(),
        status => StatusCode::from_bytes(status.as_bytes())
            .map_or(StatusCode::IM_A_TEAPOT.into_response(), |status| (status, "the body").into_response()),
    }
}

struct NoCheckpoints;

impl Checkpoints for NoCheckpoints {
    fn load(&self, _: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>> {
        ready(Ok(None)).boxed()
    }

    fn store<'a>(&'a self, _: i64, _: i64, _: &'a Checkpoint) -> BoxFuture<'a, Result<(), CheckpointError>> {
        ready(Ok(())).boxed()
    }
}

fn handler(allow_private: bool) -> HttpHandler {
    HttpHandler::new(Config { allow_private }).expect("a client")
}

async fn run_until(handler: &HttpHandler, args: Value, cancelled: CancellationToken) -> Outcome {
    let job = Job {
        id: 1,
        kind: "http".to_owned(),
        args,
        throttle: "default".to_owned(),
        key: String::new(),
        priority: 1,
        attempt: 1,
        max_attempts: 10,
        cost: 1.0,
        fence: 1,
        created_at: jiff::Timestamp::UNIX_EPOCH,
        timeout: None,
        traceparent: None,
    };
    let throttles = Arc::new(MemoryStore::new(Arc::new(|| 0)));
    let context = Context::new(Arc::new((&job).into()), cancelled, throttles, Arc::new(NoCheckpoints));
    handler.run(job, context).await
}

async fn run(args: Value) -> Outcome {
    run_until(&handler(true), args, CancellationToken::new()).await
}

#[tokio::test]
async fn a_request_arrives_as_it_was_written() {
    let server = Server::start().await;

    let outcome = run(json!({
        "method": "post", "url": format!("{}/ok", server.url), "headers": {"X-Token": "abc"}, "body": {"a": [1, "ü"]},
    }))
    .await;
    run(json!({"method": "PUT", "url": format!("{}/ok", server.url), "body": "plain"})).await;

    assert_eq!(outcome, Outcome::Done);
    let received = server.received();
    assert_eq!((received[0].method.as_str(), received[0].path.as_str()), ("POST", "ok"));
    assert_eq!(received[0].body, r#"{"a":[1,"ü"]}"#);
    assert_eq!(received[0].headers["x-token"], "abc");
    assert_eq!(received[0].headers["content-type"], "application/json");
    assert!(received[0].headers["user-agent"].to_str().unwrap().starts_with("flyball/"));
    assert_eq!((received[1].method.as_str(), received[1].body.as_str()), ("PUT", "plain"));
    assert_eq!(received[1].headers.get("content-type"), None);
}

#[tokio::test]
async fn being_asked_to_slow_down_uses_no_attempt() {
    let server = Server::start().await;
    let seconds = |n| Some(Duration::from_secs(n));
    for (path, expected) in [("limit", seconds(17)), ("limit-without-word", None), ("busy", seconds(3)), ("trickle", seconds(5))]
    {
        match run(json!({"url": format!("{}/{path}", server.url)})).await {
            Outcome::Throttled { delay, error, .. } => {
                assert_eq!(delay, expected, "{path}");
                assert!(error.starts_with("answered "), "{error}");
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn trouble_on_the_other_side_is_tried_again() {
    let server = Server::start().await;
    for status in ["500", "502", "503", "504", "408"] {
        let outcome = run(json!({"url": format!("{}/{status}", server.url)})).await;
        assert_eq!(outcome, Outcome::Retry { after: None, error: format!("answered {status}: the body") });
    }
}

#[tokio::test]
async fn what_would_be_answered_the_same_again_is_dead() {
    let server = Server::start().await;
    for status in ["400", "401", "404", "410", "422"] {
        let outcome = run(json!({"url": format!("{}/{status}", server.url)})).await;
        assert_eq!(outcome, Outcome::Dead { error: format!("answered {status}: the body") });
    }
    let moved = run(json!({"url": format!("{}/moved", server.url)})).await;
    assert_eq!(moved, Outcome::Dead { error: "answered 302; redirects are not followed".to_owned() });
    assert_eq!(server.received().len(), 6, "nobody followed the redirect");

    let listed = run(json!({"url": format!("{}/moved", server.url), "success": [302]})).await;
    assert_eq!(listed, Outcome::Done);
}

#[tokio::test]
async fn an_answer_that_does_not_come_in_time_is_tried_again() {
    let server = Server::start().await;
    let begin = Instant::now();

    let outcome = run(json!({"url": format!("{}/slow", server.url), "timeout_ms": 100})).await;

    assert_eq!(outcome, Outcome::Retry { after: None, error: "no answer within 100 ms".to_owned() });
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_cut_or_refused_connection_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/?token=very-secret", listener.local_addr().unwrap());
    let cutting = tokio::spawn(async move {
        use tokio::io::AsyncReadExt;
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 1024]).await;
    });

    let cut = run(json!({"url": url})).await;
    cutting.await.unwrap();
    let refused = run(json!({"url": url})).await;

    for (outcome, expected) in [(cut, "the connection broke: "), (refused, "could not connect: ")] {
        let Outcome::Retry { after: None, error } = outcome else { panic!("{outcome:?}") };
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains("very-secret"), "{error}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let server = Server::start().await;

    let Outcome::Dead { error } = run(json!({"url": format!("{}/endless", server.url)})).await else { panic!("dead") };

    assert_eq!(error.len(), "answered 400: ".len() + 1024);
}

#[tokio::test]
async fn errors_never_hold_our_headers_or_body() {
    let server = Server::start().await;
    let args = json!({
        "method": "POST", "url": format!("{}/echo", server.url),
        "headers": {"Authorization": "Bearer very-secret-token"}, "body": "private",
    });

    let Outcome::Dead { error } = run(args).await else { panic!("dead") };

    assert!(error.contains("you sent"), "{error}");
    assert!(!error.contains("very-secret-token") && !error.contains("private"), "{error}");
}

#[tokio::test]
async fn a_job_that_is_told_to_stop_stops() {
    let server = Server::start().await;
    let cancelled = CancellationToken::new();
    let (handler, log) = (handler(true), server.log.clone());
    let running = run_until(&handler, json!({"url": format!("{}/slow", server.url)}), cancelled.clone());
    let cancelling = async {
        let deadline = Instant::now() + Duration::from_secs(10);
        while log.lock().unwrap().is_empty() {
            assert!(Instant::now() < deadline, "the request did not arrive");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancelled.cancel();
    };

    assert_eq!(tokio::join!(running, cancelling).0, Outcome::HandedBack);
}

#[tokio::test]
async fn the_guard_keeps_jobs_away_from_addresses_inside() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let guarded = handler(false);
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "0"] {
        let args = json!({"url": format!("http://{host}:{port}/ok")});
        let outcome = run_until(&guarded, args.clone(), CancellationToken::new()).await;
        let Outcome::Dead { error } = outcome else { panic!("{host}: {outcome:?}") };
        assert!(error.contains("is not an address of the public internet; set FLYBALL_ALLOW_PRIVATE_URLS=true"), "{error}");
        // Names are judged when they are connected to, addresses at the door.
        assert_eq!(guarded.check(&args).is_empty(), host == "localhost", "{host}");
    }
    assert!(server.received().is_empty());

    let allowed = json!({"url": format!("http://localhost:{port}/ok")});
    assert_eq!(run(allowed).await, Outcome::Done);
}

#[test]
fn the_door_lists_every_issue() {
    let handler = handler(true);

    let issues = handler.check(&json!({"url": "http://exa mple", "method": 1, "colour": "red"}));
    let pointers: Vec<&str> = issues.iter().map(|issue| issue.pointer.as_str()).collect();

    assert_eq!(pointers, ["/colour", "/method", "/url"]);
    for url in ["http://[::1", "http://a:99999", "http://a..%00/"] {
        assert_eq!(handler.check(&json!({"url": url})).len(), 1, "{url}");
    }
    assert_eq!(handler.check(&json!({"url": "https://example.com/hook?x=1#y"})), []);
}
