//! The server of a process that starts: health checks alone, until the API takes over its listener.
//!
//! Reaching Postgres and migrating the schema may take a while. A supervisor that restarts
//! processes without an answer to `/healthz` must not do so meanwhile.

use std::io;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::api::health::alive;
use crate::api::http::connections::Connections;
use crate::api::http::problem::{Code, Problem};
use crate::api::serve::attend_each;

/// The number of connections of a process that starts.
const CONNECTIONS: usize = 64;

/// A listener of a process that starts.
pub struct StartingServer {
    started: CancellationToken,
    task: AbortOnDropHandle<TcpListener>,
}

impl StartingServer {
    /// Answers that the process is alive and not ready yet.
    pub fn on(listener: TcpListener) -> Self {
        let started = CancellationToken::new();
        let until = started.clone();
        let task = tokio::spawn(async move {
            let connections = Connections::new(CONNECTIONS);
            // Open connections end by themselves.
            let _open = attend_each(&router(), &listener, &connections, &until).await;
            listener
        });
        Self {
            started,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Ends, and returns the listener. A request that is being answered still gets its answer.
    pub async fn end(self) -> io::Result<TcpListener> {
        self.started.cancel();
        self.task.await.map_err(io::Error::other)
    }
}

fn router() -> Router {
    Router::new()
        .route("/healthz", get(alive))
        .fallback(starting)
}

async fn starting() -> Problem {
    Problem::new(Code::NotReady, "the process is starting").retry_after(1)
}
