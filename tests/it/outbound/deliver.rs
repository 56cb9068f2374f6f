//! The kind `http` against a real server that can be told to fail.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use flyball::jobs::{
    Checkpoint, CheckpointError, Checkpoints, Context, Handler, Job, JobInfo, OnAmbiguous, Outcome,
    Quota, Scope,
};
use flyball::outbound::{Guard, HttpConfig, HttpHandler, Lookup, Secrets};
use flyball::throttle::MemoryStore;
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
        let app = Router::new()
            .route("/{*what}", any(answer))
            .with_state(log.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, log }
    }

    fn received(&self) -> Vec<Received> {
        self.log.lock().expect("the log").clone()
    }
}

async fn answer(
    State(log): State<Log>,
    Path(what): Path<String>,
    method: Method,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let body = String::from_utf8_lossy(&body).into_owned();
    log.lock().expect("the log").push(Received {
        method,
        path: what.clone(),
        headers: headers.clone(),
        body,
    });
    match what.as_str() {
        "ok" => "fine".into_response(),
        "slow" => {
            tokio::time::sleep(Duration::from_secs(30)).await;
            "late".into_response()
        }
        "limit" => (
            StatusCode::TOO_MANY_REQUESTS,
            [(header::RETRY_AFTER, "17")],
            "slow down",
        )
            .into_response(),
        "limit-without-word" => (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response(),
        "busy" => (
            StatusCode::SERVICE_UNAVAILABLE,
            [(header::RETRY_AFTER, "3")],
            "",
        )
            .into_response(),
        "moved" => (StatusCode::FOUND, [(header::LOCATION, "/ok")], "").into_response(),
        "see-other" => (StatusCode::SEE_OTHER, [(header::LOCATION, "/ok")], "").into_response(),
        "temporary" => (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, "ok")],
            "",
        )
            .into_response(),
        "round" => (
            StatusCode::PERMANENT_REDIRECT,
            [(header::LOCATION, "/round")],
            "",
        )
            .into_response(),
        "to-file" => (
            StatusCode::FOUND,
            [(header::LOCATION, "file:///etc/passwd")],
            "",
        )
            .into_response(),
        "close" => ([(header::CONNECTION, "close")], "fine").into_response(),
        "limit-all" => (
            StatusCode::TOO_MANY_REQUESTS,
            [("x-ratelimit-scope", "global")],
            "",
        )
            .into_response(),
        "quota" => ([("ratelimit", "\"tenant\";r=43;t=18")], "fine").into_response(),
        "endless" => {
            let chunks = futures_util::stream::repeat_with(|| {
                Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 8192]))
            });
            (StatusCode::BAD_REQUEST, Body::from_stream(chunks)).into_response()
        }
        "trickle" => {
            let never = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
            (
                StatusCode::TOO_MANY_REQUESTS,
                [(header::RETRY_AFTER, "5")],
                Body::from_stream(never),
            )
                .into_response()
        }
        "echo" => (StatusCode::BAD_REQUEST, format!("you sent {headers:?}")).into_response(),
        other if other.starts_with("to/") => (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, format!("http://{}", &other[3..]))],
            "",
        )
            .into_response(),
        status => StatusCode::from_bytes(status.as_bytes())
            .map_or(StatusCode::IM_A_TEAPOT.into_response(), |status| {
                (status, "the body").into_response()
            }),
    }
}

struct NoCheckpoints;

impl Checkpoints for NoCheckpoints {
    fn load(&self, _: i64) -> BoxFuture<'_, Result<Option<Checkpoint>, CheckpointError>> {
        ready(Ok(None)).boxed()
    }

    fn store<'a>(
        &'a self,
        _: i64,
        _: i64,
        _: &'a Checkpoint,
    ) -> BoxFuture<'a, Result<(), CheckpointError>> {
        ready(Ok(())).boxed()
    }
}

fn handler(allow_private: bool) -> HttpHandler {
    let guard = if allow_private {
        Guard::open()
    } else {
        Guard::default()
    };
    HttpHandler::new(HttpConfig {
        guard,
        ..HttpConfig::default()
    })
    .expect("a client")
}

fn job(args: Value) -> Job {
    Job {
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
    }
}

async fn run_job(
    handler: &HttpHandler,
    job: Job,
    cancelled: CancellationToken,
) -> (Outcome, Arc<JobInfo>) {
    let throttles = Arc::new(MemoryStore::new(Arc::new(|| 0)));
    let about = Arc::new(JobInfo::from(&job));
    let context = Context::new(about.clone(), cancelled, throttles, Arc::new(NoCheckpoints));
    let outcome = match handler.prepare(&job.args) {
        Ok(prepared) => prepared.run(job, context).await,
        Err(issues) => Outcome::Dead {
            error: format!("{issues:?}"),
        },
    };
    (outcome, about)
}

async fn run_until(handler: &HttpHandler, args: Value, cancelled: CancellationToken) -> Outcome {
    run_job(handler, job(args), cancelled).await.0
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
    assert_eq!(
        (received[0].method.as_str(), received[0].path.as_str()),
        ("POST", "ok")
    );
    assert_eq!(received[0].body, r#"{"a":[1,"ü"]}"#);
    assert_eq!(received[0].headers["x-token"], "abc");
    assert_eq!(received[0].headers["content-type"], "application/json");
    assert!(
        received[0].headers["user-agent"]
            .to_str()
            .unwrap()
            .starts_with("flyball/")
    );
    assert_eq!(
        (received[1].method.as_str(), received[1].body.as_str()),
        ("PUT", "plain")
    );
    assert_eq!(received[1].headers.get("content-type"), None);
}

#[tokio::test]
async fn being_asked_to_slow_down_uses_no_attempt() {
    let server = Server::start().await;
    let seconds = |n| Some(Duration::from_secs(n));
    for (path, expected) in [
        ("limit", seconds(17)),
        ("limit-without-word", None),
        ("busy", seconds(3)),
        ("trickle", seconds(5)),
    ] {
        match run(json!({"url": format!("{}/{path}", server.url)})).await {
            Outcome::Throttled { delay, error, .. } | Outcome::Overloaded { delay, error, .. } => {
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
        assert_eq!(
            outcome,
            Outcome::Retry {
                after: None,
                error: format!("answered {status}: the body")
            }
        );
    }
}

#[tokio::test]
async fn what_would_be_answered_the_same_again_is_dead() {
    let server = Server::start().await;
    for status in ["400", "401", "404", "410", "422"] {
        let outcome = run(json!({"url": format!("{}/{status}", server.url)})).await;
        assert_eq!(
            outcome,
            Outcome::Dead {
                error: format!("answered {status}: the body")
            }
        );
    }
    let moved = run(json!({"url": format!("{}/moved", server.url)})).await;
    assert_eq!(
        moved,
        Outcome::Dead {
            error: "answered 302 (location: /ok); redirects are not followed".to_owned()
        }
    );
    assert_eq!(server.received().len(), 6, "nobody followed the redirect");

    let listed = run(json!({"url": format!("{}/moved", server.url), "success": [302]})).await;
    assert_eq!(listed, Outcome::Done);
}

#[tokio::test]
async fn a_request_that_is_not_answered_in_time_is_ambiguous() {
    let server = Server::start().await;
    let begin = Instant::now();
    let args = json!({"url": format!("{}/slow", server.url), "timeout_ms": 3000});
    let unanswered = |policy| Outcome::Ambiguous {
        policy,
        error: "no answer within 3000 ms".to_owned(),
    };

    assert_eq!(run(args.clone()).await, unanswered(OnAmbiguous::Retry));
    let mut dead = args;
    dead["on_ambiguous"] = json!("dead");
    assert_eq!(run(dead).await, unanswered(OnAmbiguous::Dead));

    assert_eq!(server.received().len(), 2, "one request for each attempt");
    assert!(
        begin.elapsed() < Duration::from_secs(25),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn the_jobs_own_time_ends_in_the_handler_that_knows_what_was_sent() {
    let server = Server::start().await;
    let job = Job {
        timeout: Some(Duration::from_secs(4)),
        ..job(json!({"url": format!("{}/slow", server.url)}))
    };

    let (outcome, _) = run_job(&handler(true), job, CancellationToken::new()).await;

    let error = "no answer within 3800 ms".to_owned();
    assert_eq!(
        outcome,
        Outcome::Ambiguous {
            policy: OnAmbiguous::Retry,
            error
        }
    );
}

#[tokio::test]
async fn a_connection_that_is_cut_is_ambiguous_and_one_that_was_refused_is_not() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "http://{}/?token=very-secret",
        listener.local_addr().unwrap()
    );
    let cutting = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 1024]).await;
    });

    let cut = run(json!({"url": url})).await;
    cutting.await.unwrap();
    let refused = run(json!({"url": url})).await;

    let Outcome::Ambiguous {
        policy: OnAmbiguous::Retry,
        error,
    } = cut
    else {
        panic!("{cut:?}")
    };
    assert!(
        error.starts_with("the connection broke: ") && !error.contains("very-secret"),
        "{error}"
    );
    let Outcome::Retry { after: None, error } = refused else {
        panic!("{refused:?}")
    };
    assert!(
        error.starts_with("could not connect: ") && !error.contains("very-secret"),
        "{error}"
    );
}

#[tokio::test]
async fn a_server_that_does_not_let_us_connect_in_time_makes_nothing_ambiguous() {
    // Whoever begins TLS with this one waits for ever: there is no connection yet on which a request could be sent.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());

    let connecting = run(json!({"url": url, "connect_timeout_ms": 200})).await;
    let whole = run(json!({"url": url, "timeout_ms": 300})).await;

    assert_eq!(
        connecting,
        Outcome::Retry {
            after: None,
            error: "no connection within 200 ms".to_owned()
        }
    );
    assert_eq!(
        whole,
        Outcome::Retry {
            after: None,
            error: "no connection within 300 ms".to_owned()
        }
    );
}

/// A server of HTTP/1.1 that answers so many requests on each connection, reads the next one and cuts it. Its URL, and the requests
/// that it has read.
async fn cutting_server(answers: usize) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let log = requests.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            let log = log.clone();
            tokio::spawn(async move {
                for turn in 0..=answers {
                    let mut request = Vec::new();
                    while !request.ends_with(b"\r\n\r\n") {
                        match socket.read_u8().await {
                            Ok(byte) => request.push(byte),
                            Err(_) => return,
                        }
                    }
                    log.lock()
                        .unwrap()
                        .push(String::from_utf8(request).unwrap());
                    if turn < answers {
                        socket
                            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                            .await
                            .unwrap();
                    }
                }
            });
        }
    });
    (url, requests)
}

#[tokio::test]
async fn a_server_that_cuts_connections_gets_exactly_one_request_for_each_attempt() {
    for answers in [0, 1] {
        let handler = handler(true);
        let (url, requests) = cutting_server(answers).await;
        let mut cut = 0;
        for attempt in 1..=500 {
            match run_until(&handler, json!({"url": url}), CancellationToken::new()).await {
                Outcome::Done => assert_eq!(answers, 1),
                // Where the first request of a connection is answered, this went over one that had been kept.
                Outcome::Ambiguous { .. } => cut += 1,
                other => panic!("{other:?}"),
            }
            assert_eq!(
                requests.lock().unwrap().len(),
                attempt,
                "{answers} answered, {cut} cut"
            );
            if cut == 3 {
                break;
            }
            // A connection is kept a moment after its answer was read.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(cut, 3);
    }
}

#[tokio::test]
async fn a_kept_connection_that_the_server_has_closed_costs_no_attempt_and_no_second_request() {
    const JOBS: usize = 20;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let (closed, mut was_closed) = tokio::sync::mpsc::channel(JOBS);
    let served = tokio::spawn(async move {
        let mut requests = 0;
        while requests < JOBS {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            requests += usize::from(socket.read(&mut bytes).await.unwrap_or(0) > 0);
            // It says nothing of closing, and closes.
            let _ = socket
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await;
            drop(socket);
            closed.send(()).await.unwrap();
        }
        requests
    });
    let handler = handler(true);

    for _ in 0..JOBS {
        let outcome = run_until(&handler, json!({"url": url}), CancellationToken::new()).await;
        assert_eq!(outcome, Outcome::Done);
        // The end of the connection reaches the client before the next request leaves it; a request that meets it on
        // the way is ambiguous.
        was_closed.recv().await.unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    assert_eq!(served.await.unwrap(), JOBS);
}

#[tokio::test]
async fn connections_are_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ok", listener.local_addr().unwrap());
    let accepted = Arc::new(Mutex::new(0));
    let counting = accepted.clone();
    tokio::spawn(async move {
        loop {
            let (mut socket, _) = listener.accept().await.unwrap();
            *counting.lock().unwrap() += 1;
            tokio::spawn(async move {
                let mut bytes = [0; 1024];
                while socket.read(&mut bytes).await.unwrap_or(0) > 0 {
                    socket
                        .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                        .await
                        .unwrap();
                }
            });
        }
    });
    let handler = handler(true);

    for sent in 1..=500 {
        assert_eq!(
            run_until(&handler, json!({"url": url}), CancellationToken::new()).await,
            Outcome::Done
        );
        if *accepted.lock().unwrap() < sent {
            return;
        }
        // A connection is kept a moment after its answer was read.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("each request had a connection of its own");
}

/// A server of HTTP/2 that answers as it is told and counts connections and requests.
async fn http2_server(refuse: bool) -> (String, Arc<Mutex<(usize, usize)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/ok", listener.local_addr().unwrap());
    let counts = Arc::new(Mutex::new((0, 0)));
    let counting = counts.clone();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            counting.lock().unwrap().0 += 1;
            let counting = counting.clone();
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(socket).await else {
                    return;
                };
                while let Some(Ok((_, mut answer))) = connection.accept().await {
                    counting.lock().unwrap().1 += 1;
                    if refuse {
                        answer.send_reset(h2::Reason::REFUSED_STREAM);
                    } else {
                        answer
                            .send_response(axum::http::Response::new(()), true)
                            .unwrap();
                    }
                }
            });
        }
    });
    (url, counts)
}

#[tokio::test]
async fn http2_is_spoken_where_it_is_asked_for_over_one_connection() {
    let (url, counts) = http2_server(false).await;
    let handler = handler(true);
    let args = json!({"url": url, "http2_prior_knowledge": true});
    assert_eq!(
        run_until(&handler, args.clone(), CancellationToken::new()).await,
        Outcome::Done
    );

    let many = futures_util::future::join_all(
        (0..10).map(|_| run_until(&handler, args.clone(), CancellationToken::new())),
    )
    .await;

    assert_eq!(many, vec![Outcome::Done; 10]);
    assert_eq!(*counts.lock().unwrap(), (1, 11));
    let unasked = run_until(&handler, json!({"url": url}), CancellationToken::new()).await;
    assert!(
        matches!(unasked, Outcome::Ambiguous { .. } | Outcome::Retry { .. }),
        "HTTP/1.1 is spoken where nobody asks: {unasked:?}"
    );
}

#[tokio::test]
async fn a_stream_that_a_server_refuses_is_not_sent_again() {
    let (url, counts) = http2_server(true).await;

    let outcome = run(json!({"url": url, "http2_prior_knowledge": true})).await;

    assert!(matches!(outcome, Outcome::Ambiguous { .. }), "{outcome:?}");
    assert_eq!(counts.lock().unwrap().1, 1);
}

#[tokio::test]
async fn over_tls_both_versions_are_offered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let hello = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut head = [0; 5];
        socket.read_exact(&mut head).await.unwrap();
        let mut hello = vec![0; usize::from(u16::from_be_bytes([head[3], head[4]]))];
        socket.read_exact(&mut hello).await.unwrap();
        hello
    });

    let outcome = run(json!({"url": url})).await;

    let hello = hello.await.unwrap();
    assert!(
        hello
            .windows(12)
            .any(|bytes| bytes == b"\x02h2\x08http/1.1"),
        "the list of protocols"
    );
    assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
}

#[tokio::test]
async fn redirects_are_followed_where_asked_for_and_no_further() {
    let server = Server::start().await;
    let url = |path: &str| format!("{}/{path}", server.url);
    let post = |path: &str, redirects: u32| json!({"url": url(path), "method": "POST", "body": {"a": 1}, "redirects": redirects, "headers": {"X-Api-Key": "very-secret"}});

    assert_eq!(run(post("see-other", 1)).await, Outcome::Done);
    assert_eq!(run(post("temporary", 1)).await, Outcome::Done);
    let too_far = run(post("round", 3)).await;

    let received = server.received();
    let paths: Vec<String> = received
        .iter()
        .map(|one| format!("{} {}", one.method, one.path))
        .collect();
    assert_eq!(
        paths[..4],
        ["POST see-other", "GET ok", "POST temporary", "POST ok"]
    );
    assert_eq!(
        (
            received[1].body.as_str(),
            received[1].headers.get("content-type")
        ),
        ("", None)
    );
    assert_eq!(
        (
            received[3].body.as_str(),
            received[3].headers["x-api-key"].to_str().unwrap()
        ),
        (r#"{"a":1}"#, "very-secret")
    );
    assert_eq!(
        paths[4..],
        ["POST round", "POST round", "POST round", "POST round"]
    );
    let Outcome::Dead { error } = too_far else {
        panic!("{too_far:?}")
    };
    assert!(
        error.contains("at most 3 redirects are followed"),
        "{error}"
    );
}

#[tokio::test]
async fn a_redirect_to_another_origin_takes_no_credentials_along() {
    let (home, away) = (Server::start().await, Server::start().await);
    let secrets = [("FLYBALL_WEBHOOK_SECRET_ACME".to_owned(), SECRET.to_owned())];
    let secrets = Secrets::from_variables(secrets, |_| unreachable!()).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard: Guard::open(),
        secrets,
        lookup: None,
    })
    .unwrap();
    let args = json!({
        "url": format!("{}/to/{}/ok", home.url.replace("http://", "http://ann:pass-word@"), away.url.replace("http://", "")),
        "method": "POST", "body": {"a": 1}, "redirects": 2, "secret": "acme",
        "headers": {"Authorization": "Bearer very-secret", "Cookie": "id=1", "X-Api-Key": "abc", "Accept": "text/html"},
    });

    assert_eq!(
        run_until(&handler, args, CancellationToken::new()).await,
        Outcome::Done
    );

    assert_eq!(
        home.received()[0].headers["authorization"],
        "Bearer very-secret"
    );
    let away = away.received();
    assert_eq!(
        (away[0].method.as_str(), away[0].body.as_str()),
        ("POST", r#"{"a":1}"#)
    );
    let names: std::collections::BTreeSet<&str> = away[0]
        .headers
        .keys()
        .map(axum::http::HeaderName::as_str)
        .collect();
    assert_eq!(
        names,
        [
            "accept",
            "content-length",
            "content-type",
            "host",
            "user-agent"
        ]
        .into()
    );
}

#[tokio::test]
async fn the_guard_judges_every_hop() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let guard = Guard::allowing(["127.0.0.1"]).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard,
        ..HttpConfig::default()
    })
    .unwrap();
    for target in [
        format!("[::1]:{port}"),
        format!("127.0.0.2:{port}"),
        format!("localhost:{port}"),
    ] {
        // The name may resolve to the address that is allowed, and may not.
        let args = json!({"url": format!("{}/to/{target}/ok", server.url), "redirects": 5});
        let outcome = run_until(&handler, args, CancellationToken::new()).await;
        let is_refused = matches!(&outcome, Outcome::Dead { error } if error.contains("is not an address of the public internet"));
        assert!(
            is_refused || (target.starts_with("localhost") && outcome == Outcome::Done),
            "{target}: {outcome:?}"
        );
    }
    let scheme = json!({"url": format!("{}/to-file", server.url), "redirects": 5});
    let Outcome::Dead { error } = run_until(&handler, scheme, CancellationToken::new()).await
    else {
        panic!("dead")
    };
    assert_eq!(
        error,
        "the request cannot be sent: a redirect leads to neither http nor https"
    );
}

#[tokio::test]
async fn a_name_that_answers_differently_the_second_time_gets_no_further() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    let asked = Arc::new(Mutex::new(0));
    let counting = asked.clone();
    // First the address that is allowed, then both, then only the one that is not.
    let lookup: Lookup = Arc::new(move |name| {
        assert_eq!(name, "rebinding.example");
        let mut asked = counting.lock().unwrap();
        *asked += 1;
        let addresses: &[&str] = match *asked {
            1 => &["127.0.0.1"],
            2 => &["127.0.0.2", "127.0.0.1"],
            _ => &["127.0.0.2"],
        };
        let addresses = addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect();
        ready(Ok(addresses)).boxed()
    });
    let guard = Guard::allowing(["127.0.0.1/32"]).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard,
        lookup: Some(lookup),
        ..HttpConfig::default()
    })
    .unwrap();
    // The server closes after each answer, so that each attempt asks for the address again.
    let args = json!({"url": format!("http://rebinding.example:{port}/close")});

    let mut outcomes = Vec::new();
    for _ in 0..3 {
        assert!(handler.prepare(&args).is_ok());
        outcomes.push(run_until(&handler, args.clone(), CancellationToken::new()).await);
    }

    assert_eq!(outcomes[..2], [Outcome::Done, Outcome::Done]);
    let Outcome::Dead { error } = &outcomes[2] else {
        panic!("{outcomes:?}")
    };
    assert!(
        error.starts_with("rebinding.example is not an address of the public internet"),
        "{error}"
    );
    assert_eq!((*asked.lock().unwrap(), server.received().len()), (3, 2));
}

#[tokio::test]
async fn a_name_may_be_allowed_whatever_it_resolves_to() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let lookup: Lookup = Arc::new(|_| ready(Ok(vec!["127.0.0.1".parse().unwrap()])).boxed());
    let guard = Guard::allowing(["intranet.example"]).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard,
        lookup: Some(lookup),
        ..HttpConfig::default()
    })
    .unwrap();
    let to = |host: &str| json!({"url": format!("http://{host}:{port}/ok")});

    assert_eq!(
        run_until(&handler, to("intranet.example"), CancellationToken::new()).await,
        Outcome::Done
    );
    for host in ["other.example", "sub.intranet.example", "127.0.0.1"] {
        assert!(
            matches!(
                run_until(&handler, to(host), CancellationToken::new()).await,
                Outcome::Dead { .. }
            ),
            "{host}"
        );
    }
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[tokio::test]
async fn a_body_from_a_template_is_signed_and_the_id_is_the_same_for_every_attempt() {
    let server = Server::start().await;
    let variables = [("FLYBALL_WEBHOOK_SECRET_ACME".to_owned(), SECRET.to_owned())];
    let secrets = Secrets::from_variables(variables, |_| unreachable!()).unwrap();
    let handler = HttpHandler::new(HttpConfig {
        guard: Guard::open(),
        secrets: secrets.clone(),
        lookup: None,
    })
    .unwrap();
    let args = json!({
        "url": format!("{}/ok", server.url), "method": "POST", "secret": "acme",
        "template": "{\"hello\": {{ name|tojson }}}", "data": {"name": "Ada \"A\""},
    });

    for attempt in 1..=2 {
        let job = Job {
            id: 4711,
            attempt,
            ..job(args.clone())
        };
        assert_eq!(
            run_job(&handler, job, CancellationToken::new()).await.0,
            Outcome::Done
        );
    }

    let received = server.received();
    assert_eq!(received.len(), 2);
    for one in received {
        let header = |name: &str| one.headers[name].to_str().unwrap().to_owned();
        assert_eq!(
            (one.body.as_str(), header("webhook-id").as_str()),
            (r#"{"hello": "Ada \"A\""}"#, "job_4711")
        );
        let at = header("webhook-timestamp").parse().unwrap();
        let expected = secrets
            .sign("acme", "job_4711", at, one.body.as_bytes())
            .unwrap();
        assert_eq!(header("webhook-signature"), expected[2].1);
    }
}

#[tokio::test]
async fn a_template_that_fails_and_a_secret_that_is_not_there_send_nothing() {
    let server = Server::start().await;
    let url = format!("{}/ok", server.url);
    let cases = [
        (
            json!({"url": url, "template": "{{ nam }}", "data": {"name": 1}}),
            "/template line 1: undefined value",
        ),
        (
            json!({"url": url, "secret": "acme"}),
            "/secret names \"acme\", but this worker has no FLYBALL_WEBHOOK_SECRET_ACME",
        ),
    ];
    for (args, expected) in cases {
        assert_eq!(
            run(args).await,
            Outcome::Dead {
                error: expected.to_owned()
            }
        );
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn answers_tell_whom_they_slow_down_and_what_is_left() {
    let server = Server::start().await;
    // Two of them: one remembers for a while that this host has refused a job without a key.
    let (refused, asked) = (handler(true), handler(true));
    let (limited, _) = run_job(
        &refused,
        job(json!({"url": format!("{}/limit-all", server.url)})),
        CancellationToken::new(),
    )
    .await;
    let (fine, about) = run_job(
        &asked,
        job(json!({"url": format!("{}/quota", server.url)})),
        CancellationToken::new(),
    )
    .await;

    assert!(
        matches!(
            limited,
            Outcome::Throttled {
                scope: Scope::Throttle,
                ..
            }
        ),
        "{limited:?}"
    );
    assert_eq!(fine, Outcome::Done);
    assert_eq!(
        about.attempt_report().quota,
        Some(Quota {
            remaining: 43.0,
            reset: Duration::from_secs(18)
        })
    );
}

#[tokio::test]
async fn a_job_that_must_not_run_twice_is_not_handed_back_once_it_was_sent() {
    let server = Server::start().await;
    let cancelled = CancellationToken::new();
    let handler = handler(true);
    let args = json!({"url": format!("{}/slow", server.url), "on_ambiguous": "dead"});
    let running = run_until(&handler, args, cancelled.clone());
    let cancelling = async {
        until(|| !server.received().is_empty()).await;
        cancelled.cancel();
    };

    let error = "stopped before a response arrived".to_owned();
    assert_eq!(
        tokio::join!(running, cancelling).0,
        Outcome::Ambiguous {
            policy: OnAmbiguous::Dead,
            error
        }
    );
}

async fn until(is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "it did not come to pass");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let server = Server::start().await;

    let Outcome::Dead { error } = run(json!({"url": format!("{}/endless", server.url)})).await
    else {
        panic!("dead")
    };

    assert_eq!(error.len(), "answered 400: ".len() + 1024);
}

#[tokio::test]
async fn errors_never_hold_our_headers() {
    let server = Server::start().await;
    let args = json!({
        "method": "POST", "url": format!("{}/echo", server.url),
        "headers": {"Authorization": "Bearer very-secret-token"}, "body": "hello",
    });

    let Outcome::Dead { error } = run(args).await else {
        panic!("dead")
    };

    assert!(error.contains("you sent"), "{error}");
    assert!(!error.contains("very-secret"), "{error}");
}

#[tokio::test]
async fn a_job_that_is_told_to_stop_stops() {
    let server = Server::start().await;
    let cancelled = CancellationToken::new();
    let (handler, log) = (handler(true), server.log.clone());
    let running = run_until(
        &handler,
        json!({"url": format!("{}/slow", server.url)}),
        cancelled.clone(),
    );
    let cancelling = async {
        until(|| !log.lock().unwrap().is_empty()).await;
        cancelled.cancel();
    };

    assert_eq!(tokio::join!(running, cancelling).0, Outcome::HandedBack);
}

#[tokio::test]
async fn the_guard_keeps_jobs_away_from_addresses_inside() {
    let server = Server::start().await;
    let port = server.url.rsplit(':').next().unwrap();
    let guarded = handler(false);
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "169.254.169.254",
        "0",
    ] {
        let args = json!({"url": format!("http://{host}:{port}/ok")});
        let outcome = run_until(&guarded, args.clone(), CancellationToken::new()).await;
        let Outcome::Dead { error } = outcome else {
            panic!("{host}: {outcome:?}")
        };
        assert!(
            error.contains(
                "is not an address of the public internet; set FLYBALL_ALLOW_PRIVATE_URLS=true"
            ),
            "{error}"
        );
        // Names are judged when they are connected to, addresses at the door.
        assert_eq!(
            guarded.prepare(&args).is_ok(),
            host == "localhost",
            "{host}"
        );
    }
    assert!(server.received().is_empty());

    let allowed = json!({"url": format!("http://localhost:{port}/ok")});
    assert_eq!(run(allowed).await, Outcome::Done);
}

#[test]
fn the_door_lists_every_issue() {
    let handler = handler(true);

    let issues = |args: Value| handler.prepare(&args).err().unwrap_or_default();
    let many = issues(json!({"url": "http://exa mple", "method": 1, "colour": "red"}));
    let pointers: Vec<&str> = many.iter().map(|issue| issue.pointer.as_str()).collect();

    assert_eq!(pointers, ["/colour", "/method", "/url"]);
    for url in ["http://[::1", "http://a:99999", "http://a..%00/"] {
        assert_eq!(issues(json!({"url": url})).len(), 1, "{url}");
    }
    assert_eq!(issues(json!({"url": "https://example.com/hook?x=1#y"})), []);
}
