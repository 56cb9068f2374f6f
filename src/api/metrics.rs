//! `/metrics`: the metrics of the process as text for Prometheus. `docs/reference/metrics.md`
//! explains every family.

mod families;

use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode_registry;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use self::families::sampled_families;
use crate::api::http::metrics::HttpMetrics;
use crate::api::stream::live::Live;
use crate::api::stream::live_sample::LiveSample;

/// Exposes the metrics of this process.
#[utoipa::path(get, path = "/metrics", operation_id = "show_metrics", tag = "metrics",
    responses((status = 200, body = String, content_type = "text/plain", description = "Prometheus' text format.")))]
pub async fn show(
    State(metrics): State<HttpMetrics>,
    State(live): State<Live>,
    State(registry): State<Arc<Registry>>,
) -> Response {
    let text = exposition(&metrics, live.sample(), &registry);
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        text,
    )
        .into_response()
}

/// Returns the text of the exposition.
pub fn exposition(
    http: &HttpMetrics,
    sample: Option<Arc<LiveSample>>,
    others: &Registry,
) -> String {
    let mut registry = Registry::default();
    registry.register(
        "flyball_http_requests",
        "Requests that were answered, by route, method and status",
        http.requests.clone(),
    );
    registry.register(
        "flyball_http_request_duration_seconds",
        "Time until the response headers",
        http.durations.clone(),
    );
    registry.register(
        "flyball_enqueue_over_backlog",
        "Jobs sent to a lane above its max_backlog, by answer",
        http.backlogs.clone(),
    );
    registry.register(
        "flyball_throttle_requests",
        "Requests for tokens over HTTP, checks and requests of the API itself, by answer",
        http.tokens.requests.clone(),
    );
    registry.register(
        "flyball_throttle_key_requests",
        "The same by key, for the throttles that the setting key_metrics names",
        http.tokens.key_requests.clone(),
    );
    if let Some(sample) = sample {
        registry.register_collector(Box::new(Sampled(sample)));
    }
    let mut text = String::new();
    // Writing to a `String` does not fail.
    let _ = encode_registry(&mut text, &registry);
    let _ = encode_registry(&mut text, others);
    classic(&text)
}

/// Converts OpenMetrics text to Prometheus' classic text, because tools such as `promtool check
/// metrics` and older agents read only that. The classic form names a counter's family with
/// `_total` and has no units and no `info`.
fn classic(open: &str) -> String {
    let typed = |kind: &str| -> Vec<String> {
        open.lines()
            .filter_map(|line| {
                line.strip_prefix("# TYPE ")?
                    .strip_suffix(kind)?
                    .strip_suffix(' ')
                    .map(str::to_owned)
            })
            .collect()
    };
    let (counters, infos) = (typed("counter"), typed("info"));
    let mut text = String::with_capacity(open.len());
    for line in open.lines() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        let comment = line
            .strip_prefix("# ")
            .and_then(|rest| rest.split_once(' '))
            .and_then(|(word, rest)| Some((word, rest.split_once(' ')?)));
        match comment {
            Some((word, (name, rest))) if counters.iter().any(|counter| counter == name) => {
                text.push_str(&format!("# {word} {name}_total {rest}\n"));
            }
            Some((word, (name, rest))) if infos.iter().any(|info| info == name) => {
                let rest = if word == "TYPE" { "gauge" } else { rest };
                text.push_str(&format!("# {word} {name}_info {rest}\n"));
            }
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

/// The latest sample, read at each scrape, so that a deleted throttle leaves no stale series
/// behind.
struct Sampled(Arc<LiveSample>);

impl fmt::Debug for Sampled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sampled")
    }
}

impl Collector for Sampled {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, rows) in sampled_families(&self.0) {
            if rows.is_empty() {
                continue;
            }
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            match rows.as_slice() {
                [(labels, value)] if labels.is_empty() => ConstGauge::new(*value).encode(family)?,
                rows => {
                    for (labels, value) in rows {
                        ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
