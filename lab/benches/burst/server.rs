//! A server that limits the requests of one key in the usual ways, and answers 429 beyond its
//! quota.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::routing::post;

/// The way in which the server counts.
#[derive(Clone, Copy, Debug)]
pub enum Counting {
    /// Fixed windows of a second.
    Fixed,
    /// Any span of a second.
    Sliding,
    /// A bucket that leaks evenly and holds this many requests.
    Leaky(f64),
}

/// The quota headers of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reports {
    Nothing,
    /// With a 429, the exact time until the window ends.
    Exactly,
    /// With a 429, `Retry-After` in whole seconds.
    RetryAfter,
    /// With every answer, the rest and the exact end of the window.
    Rest,
    /// With every answer, `ratelimit` headers with whole seconds rounded up, as express-rate-limit
    /// does.
    RestInSeconds,
    /// With every answer, the unix second after the end, as Flask-Limiter does.
    RestToEpoch,
}

/// The rules by which the server treats its clients.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The requests of one key that are answered in a second.
    pub quota: f64,
    /// The part of the burst key's quota that other clients use, evenly through the window.
    pub others: f64,
    pub counts: Counting,
    pub reports: Reports,
}

/// The requests received.
#[derive(Default)]
pub struct ReceivedRequests {
    /// The answered requests of the burst's key.
    served_at: VecDeque<Instant>,
    level: f64,
    level_at: Option<Instant>,
    /// Requests of the burst's key that were refused.
    pub refused: u64,
    /// Requests of the burst's key that were answered, and those of them after the first minute.
    pub served: u64,
    pub served_later: u64,
    /// The time of the last answered request of the burst's key.
    pub last: Option<Instant>,
    /// The time of the first request of each other key.
    pub trickled: HashMap<String, Instant>,
}

#[derive(Clone)]
struct Server {
    rules: Rules,
    begun: Instant,
    seen: Arc<Mutex<ReceivedRequests>>,
}

/// The key of the burst.
pub const BURST: &str = "burst";
/// The time after which a quota must be found.
pub const MINUTE: Duration = Duration::from_secs(60);

/// Starts the server on a free port.
pub async fn start(rules: Rules) -> anyhow::Result<(SocketAddr, Arc<Mutex<ReceivedRequests>>)> {
    let seen = Arc::new(Mutex::new(ReceivedRequests::default()));
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

impl Rules {
    /// Returns true if a request fits, the rest after it, and the seconds until more fits.
    fn admit(&self, seen: &mut ReceivedRequests, begun: Instant, now: Instant) -> (bool, f64, f64) {
        let second = Duration::from_secs(1);
        match self.counts {
            Counting::Fixed => {
                let into = now.duration_since(begun).as_secs_f64().fract();
                let begin = now - Duration::from_secs_f64(into);
                seen.served_at.retain(|at| *at >= begin);
                let used = seen.served_at.len() as f64 + (self.others * into).floor();
                (
                    used + 1.0 <= self.quota,
                    self.quota - used - 1.0,
                    1.0 - into,
                )
            }
            Counting::Sliding => {
                seen.served_at.retain(|at| now.duration_since(*at) < second);
                let used = seen.served_at.len() as f64 + self.others;
                let first = seen.served_at.front();
                let wait = first.map_or(0.0, |at| (second - now.duration_since(*at)).as_secs_f64());
                (used + 1.0 <= self.quota, self.quota - used - 1.0, wait)
            }
            Counting::Leaky(holds) => {
                let leaks = self.quota - self.others;
                let passed = seen
                    .level_at
                    .map_or(0.0, |at| now.duration_since(at).as_secs_f64());
                seen.level = (seen.level - leaks * passed).max(0.0);
                seen.level_at = Some(now);
                let is_served = seen.level + 1.0 <= holds + 1e-9;
                seen.level += f64::from(u8::from(is_served));
                (is_served, 0.0, (seen.level + 1.0 - holds).max(0.0) / leaks)
            }
        }
    }
}

async fn answer(State(server): State<Server>, Path(key): Path<String>) -> (StatusCode, HeaderMap) {
    let (now, rules) = (Instant::now(), server.rules);
    let mut seen = server.seen.lock().expect("nothing panics under this lock");
    if key != BURST {
        seen.trickled.entry(key).or_insert(now);
        return (StatusCode::OK, HeaderMap::new());
    }
    let (is_served, rest, reset) = rules.admit(&mut seen, server.begun, now);
    if is_served {
        seen.served_at.push_back(now);
        seen.served += 1;
        seen.served_later += u64::from(now.duration_since(server.begun) >= MINUTE);
        seen.last = Some(now);
    } else {
        seen.refused += 1;
    }
    let mut headers = HeaderMap::new();
    let mut add_header = |name: &'static str, text: String| {
        headers.insert(name, HeaderValue::from_str(&text).expect("digits"));
    };
    let whole = reset.ceil().max(1.0);
    let rest = format!("{:.0}", rest.max(0.0));
    match rules.reports {
        Reports::Nothing => {}
        Reports::Exactly if is_served => {}
        Reports::Exactly | Reports::Rest => {
            if rules.reports == Reports::Rest {
                add_header("x-ratelimit-remaining", rest);
            }
            add_header("x-ratelimit-reset-after", format!("{reset:.3}"));
            add_header("x-ratelimit-reset", format!("{reset:.3}"));
        }
        Reports::RetryAfter if is_served => {}
        Reports::RetryAfter => add_header("retry-after", format!("{whole:.0}")),
        Reports::RestInSeconds => {
            let text = format!(
                "limit={:.0}, remaining={rest}, reset={whole:.0}",
                rules.quota
            );
            add_header("ratelimit", text);
        }
        Reports::RestToEpoch => {
            #[expect(
                clippy::disallowed_methods,
                reason = "the fake stands for a server, and servers have clocks"
            )]
            let unix = jiff::Timestamp::now();
            let end = (unix.as_millisecond() as f64 / 1000.0 + reset).floor() + 1.0;
            add_header("x-ratelimit-limit", format!("{:.0}", rules.quota));
            add_header("x-ratelimit-remaining", rest);
            add_header("x-ratelimit-reset", format!("{end:.0}"));
        }
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
