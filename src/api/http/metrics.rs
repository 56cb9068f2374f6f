//! Metrics of the requests.

use std::time::Instant;

use super::token_metrics::TokenMetrics;
use axum::extract::{MatchedPath, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::Response;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

/// The upper bounds of the request durations, in seconds.
const DURATIONS_S: [f64; 11] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0,
];

/// Counters of the requests.
#[derive(Clone, Debug)]
pub struct HttpMetrics {
    pub(in crate::api) requests: Family<RequestLabels, Counter>,
    pub(in crate::api) durations: Family<RouteLabels, Histogram, fn() -> Histogram>,
    pub(in crate::api) backlogs: Family<BacklogLabels, Counter>,
    pub(in crate::api) tokens: TokenMetrics,
}

impl HttpMetrics {
    /// Counts jobs that were sent to a lane with more ready jobs than its throttle's `max_backlog`.
    pub fn note_backlog(&self, answer: BacklogAnswer, jobs: u64) {
        self.backlogs
            .get_or_create(&BacklogLabels {
                answer: answer.as_str(),
            })
            .inc_by(jobs);
    }
}

/// The answer to a job that was sent to a full lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum BacklogAnswer {
    /// The job was accepted with a warning.
    Signalled,
    /// The job was refused.
    Rejected,
}

impl BacklogAnswer {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::api) struct BacklogLabels {
    pub(in crate::api) answer: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::api) struct RequestLabels {
    pub(in crate::api) route: String,
    pub(in crate::api) method: &'static str,
    pub(in crate::api) status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::api) struct RouteLabels {
    pub(in crate::api) route: String,
    pub(in crate::api) method: &'static str,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(DURATIONS_S);
        let metrics = Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(histogram),
            backlogs: Family::default(),
            tokens: TokenMetrics::default(),
        };
        // Both series exist from the start, because one that begins with its first event hides that
        // event from `rate`.
        for answer in [BacklogAnswer::Signalled, BacklogAnswer::Rejected] {
            metrics.note_backlog(answer, 0);
        }
        metrics
    }
}

/// Counts and times every request, by the route's template and never by the path itself.
pub async fn measure(State(metrics): State<HttpMetrics>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let route = request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| "unmatched".to_owned(), |path| path.as_str().to_owned());
    let method = method_word(request.method());
    let response = next.run(request).await;
    let status = response.status().as_u16();
    metrics
        .durations
        .get_or_create(&RouteLabels {
            route: route.clone(),
            method,
        })
        .observe(began.elapsed().as_secs_f64());
    metrics
        .requests
        .get_or_create(&RequestLabels {
            route,
            method,
            status,
        })
        .inc();
    response
}

/// Returns the label of a method; unusual ones share a label, because clients can invent methods.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PATCH => "PATCH",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}
