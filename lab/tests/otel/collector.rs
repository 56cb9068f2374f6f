//! A collector of traces on a loopback socket, and a receiver of jobs beside it.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{any, post};
use flyball_fakes::collector::{CollectedSpan, decode};
use parking_lot::Mutex;
use tokio::net::TcpListener;

/// Received spans, the headers of their exports, and the headers of the requests of jobs.
#[derive(Default)]
pub struct ReceivedTraces {
    pub spans: Vec<CollectedSpan>,
    pub exports: Vec<HeaderMap>,
    pub requests: Vec<HeaderMap>,
}

type Log = Arc<Mutex<ReceivedTraces>>;

#[derive(Clone)]
pub struct TraceCollector {
    pub url: String,
    pub seen: Log,
}

impl TraceCollector {
    pub async fn start() -> Self {
        let seen = Log::default();
        let router = Router::new()
            .route("/v1/traces", post(collect))
            // An answer that never comes.
            .route(
                "/hung/v1/traces",
                post(|| std::future::pending::<StatusCode>()),
            )
            .route("/job", any(receive))
            .with_state(seen.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self { url, seen }
    }
}

async fn receive(State(seen): State<Log>, headers: HeaderMap) -> StatusCode {
    seen.lock().requests.push(headers);
    StatusCode::NO_CONTENT
}

async fn collect(State(seen): State<Log>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(spans) = decode(&body) else {
        return StatusCode::BAD_REQUEST;
    };
    let mut seen = seen.lock();
    seen.exports.push(headers);
    seen.spans.extend(spans);
    StatusCode::OK
}
