//! A real server that fails on request, and the handler that calls it.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use flyball::jobs::{
    Checkpoint, CheckpointError, Checkpoints, Context, Handler, Job, JobInfo, Outcome,
};
use flyball::outbound::{Guard, HttpConfig, HttpHandler};
use flyball::throttle::MemoryStore;
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// A request as the server received it.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

type Log = Arc<Mutex<Vec<Received>>>;

/// A server on a loopback socket whose paths select its behaviour.
pub struct Server {
    pub url: String,
    pub log: Log,
}

impl Server {
    pub async fn start() -> Self {
        let log = Log::default();
        let app = Router::new()
            .route("/{*what}", any(answer))
            .with_state(log.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, log }
    }

    pub fn received(&self) -> Vec<Received> {
        self.log.lock().expect("the log").clone()
    }
}

pub async fn answer(
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
            std::future::pending::<()>().await;
            "never".into_response()
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
        other if other.starts_with("see/") => (
            StatusCode::SEE_OTHER,
            [(header::LOCATION, format!("http://{}", &other[4..]))],
            "",
        )
            .into_response(),
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

pub struct NoCheckpoints;

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

pub fn handler(allow_private: bool) -> HttpHandler {
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

pub fn job(args: Value) -> Job {
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
        retry: None,
    }
}

pub async fn run_job(
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

pub async fn run_until(
    handler: &HttpHandler,
    args: Value,
    cancelled: CancellationToken,
) -> Outcome {
    run_job(handler, job(args), cancelled).await.0
}

pub async fn run(args: Value) -> Outcome {
    run_until(&handler(true), args, CancellationToken::new()).await
}
