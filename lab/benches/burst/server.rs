//! A server that counts the requests of each key in fixed windows of a second and answers 429
//! beyond its quota.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::routing::post;

const WINDOW: Duration = Duration::from_secs(1);

/// The rules by which the server treats its clients.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The requests of one key that are answered in a window.
    pub quota: f64,
    /// The part of the burst key's quota that other clients use, evenly through the window.
    pub others: f64,
    /// True if every answer reports the rest of the quota.
    pub tells: bool,
}

/// The requests that came in.
#[derive(Default)]
pub struct Seen {
    windows: HashMap<String, (u64, f64)>,
    /// Requests of the burst's key that were refused.
    pub refused: u64,
    /// Requests of the burst's key that were answered.
    pub served: u64,
    /// The time of the last answered request of the burst's key.
    pub last: Option<Instant>,
    /// The time of the first request of each other key.
    pub trickled: HashMap<String, Instant>,
}

#[derive(Clone)]
struct Server {
    rules: Rules,
    begun: Instant,
    seen: Arc<Mutex<Seen>>,
}

/// The key of the burst.
pub const BURST: &str = "burst";

/// Starts the server on a free port.
pub async fn start(rules: Rules) -> anyhow::Result<(SocketAddr, Arc<Mutex<Seen>>)> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let server = Server {
        rules,
        begun: Instant::now(),
        seen: seen.clone(),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/{key}", post(answer))
        .with_state(server);
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok((address, seen))
}

async fn answer(State(server): State<Server>, Path(key): Path<String>) -> (StatusCode, HeaderMap) {
    let (now, rules) = (Instant::now(), server.rules);
    let into = now.duration_since(server.begun);
    let (window, rest) = (
        into.as_secs(),
        Duration::from_nanos(into.subsec_nanos().into()),
    );
    let mut seen = server.seen.lock().expect("nothing panics under this lock");
    if key != BURST {
        seen.trickled.entry(key).or_insert(now);
        return (StatusCode::OK, HeaderMap::new());
    }
    let count = seen.windows.entry(key).or_default();
    if count.0 != window {
        *count = (window, 0.0);
    }
    let used = count.1 + (rules.others * rest.as_secs_f64()).floor();
    let is_served = used + 1.0 <= rules.quota;
    if is_served {
        count.1 += 1.0;
        seen.served += 1;
        seen.last = Some(now);
    } else {
        seen.refused += 1;
    }
    let mut headers = HeaderMap::new();
    let mut tell = |name: &'static str, text: String| {
        headers.insert(name, HeaderValue::from_str(&text).expect("digits"));
    };
    let reset = (WINDOW - rest).as_secs_f64();
    if rules.tells {
        tell(
            "x-ratelimit-remaining",
            format!("{:.0}", (rules.quota - used - 1.0).max(0.0)),
        );
    }
    if rules.tells || !is_served {
        tell("x-ratelimit-reset-after", format!("{reset:.3}"));
        tell("x-ratelimit-reset", format!("{reset:.3}"));
    }
    (
        if is_served {
            StatusCode::OK
        } else {
            StatusCode::TOO_MANY_REQUESTS
        },
        headers,
    )
}
