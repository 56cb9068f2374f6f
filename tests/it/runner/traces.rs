//! The trace of a job, handed on to its receiver by each attempt.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::any;
use flyball::jobs::{Context, Job, NewJob, Outcome, State};
use flyball::outbound::{Guard, HttpConfig, HttpHandler};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;

use super::fixture::{WorkerFixture, quick};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A receiver that fails at first; returns its URL and the trace parents that it got.
async fn receiver() -> (String, Arc<Mutex<Vec<Option<String>>>>) {
    let got: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let log = got.clone();
    let answer = move |headers: HeaderMap| {
        let mut log = log.lock();
        let header = headers.get("traceparent");
        log.push(header.map(|value| value.to_str().unwrap().to_owned()));
        let is_first = log.len() == 1;
        std::future::ready(match is_first {
            true => StatusCode::BAD_GATEWAY,
            false => StatusCode::OK,
        })
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", any(answer));
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, got)
}

async fn fixture() -> WorkerFixture {
    let mut fixture = WorkerFixture::new().await;
    let config = HttpConfig {
        guard: Guard::open(),
        ..HttpConfig::default()
    };
    fixture
        .kinds
        .register("http", HttpHandler::new(config).unwrap());
    fixture.register("http").await;
    let tuning = flyball::jobs::Tuning {
        retry_base: Some(Duration::from_millis(1)),
        ..flyball::jobs::Tuning::default()
    };
    fixture.kinds.tune("http", &tuning);
    fixture
}

#[tokio::test]
async fn each_attempt_hands_the_trace_on_with_a_span_of_its_own() {
    let fixture = fixture().await;
    let (url, got) = receiver().await;
    let job = NewJob::new("http", json!({"url": url}))
        .throttle("fast")
        .traceparent(PARENT);
    let id = fixture.enqueue_many(job, 1).await[0];
    let worker = fixture.worker(quick()).await;

    fixture.until(id, State::Completed).await;

    let got = got.lock().clone();
    let [Some(first), Some(second)] = got.as_slice() else {
        panic!("two attempts: {got:?}");
    };
    for sent in [first, second] {
        assert!(NewJob::is_traceparent(sent), "{sent}");
        assert_eq!((&sent[..36], &sent[52..]), (&PARENT[..36], &PARENT[52..]));
        assert_ne!(sent, PARENT);
    }
    assert_ne!(first, second);
    worker.stop().await;
}

#[tokio::test]
async fn a_job_without_a_trace_sends_none_and_its_own_header_wins() {
    let fixture = fixture().await;
    let (url, got) = receiver().await;
    let own = "00-11111111111111111111111111111111-2222222222222222-00";
    for args in [
        json!({"url": url}),
        json!({"url": url, "headers": {"TraceParent": own}}),
    ] {
        let job = NewJob::new("http", args.clone()).throttle("fast");
        let job = match args.get("headers") {
            Some(_) => job.traceparent(PARENT),
            None => job,
        };
        let id = fixture.enqueue_many(job, 1).await[0];
        let worker = fixture.worker(quick()).await;
        fixture.until(id, State::Completed).await;
        worker.stop().await;
    }
    // The first job had two attempts.
    assert_eq!(*got.lock(), [None, None, Some(own.to_owned())]);
}

#[tokio::test]
async fn a_handler_gets_the_trace_of_its_attempt() {
    let mut fixture = WorkerFixture::new().await;
    let got: Arc<Mutex<Vec<Option<String>>>> = Arc::default();
    let log = got.clone();
    fixture.kind("noop", move |_: Job, context: Context| {
        log.lock().push(context.traceparent());
        async { Outcome::Done }
    });
    fixture.register("noop").await;
    let job = NewJob::new("noop", json!({})).throttle("fast");
    let ids = fixture
        .queue
        .enqueue(&[job.clone().traceparent(PARENT)])
        .await
        .unwrap();
    let worker = fixture.worker(quick()).await;
    fixture.until(ids[0].id, State::Completed).await;
    let ids = fixture.queue.enqueue(&[job]).await.unwrap();
    fixture.until(ids[0].id, State::Completed).await;

    let got = got.lock().clone();
    let [Some(traced), None] = got.as_slice() else {
        panic!("{got:?}");
    };
    assert!(
        traced.starts_with(&PARENT[..36]) && traced != PARENT,
        "{traced}"
    );
    worker.stop().await;
}
