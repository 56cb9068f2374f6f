//! The history of a throttle from Prometheus: requests and attempts a minute, and the rate.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Query as Pairs, State};
use axum::{Extension, Json};
use futures_util::future::join_all;
use serde::Serialize;

use super::knobs::name_of;
use super::state::ThrottlesState;
use crate::api::http::caller::Caller;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::jobs::input::KEY_BYTES_MAX;
use crate::signals::{Error, Missing, Prometheus, Reading};

/// The ranges that can be asked for: word, seconds, and seconds between points.
pub const RANGES: [(&str, u32, u32); 3] =
    [("1h", 3600, 15), ("6h", 21_600, 60), ("24h", 86_400, 300)];

/// The longest wait for Prometheus.
const PROMETHEUS_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest span of a rate, in seconds: several scrapes.
const SPAN_MIN_S: u32 = 60;

/// The series of a throttle: name, unit, and the query for a throttle.
const SERIES: [(&str, &str, &str); 6] = [
    (
        "allowed",
        "1/min",
        "60 * sum(rate(flyball_throttle_requests_total{SELECTED,answer=\"allowed\"}[SPAN]))",
    ),
    (
        "refused",
        "1/min",
        "60 * sum(rate(flyball_throttle_requests_total{SELECTED,answer=\"refused\"}[SPAN]))",
    ),
    (
        "completed",
        "1/min",
        "60 * sum(rate(flyball_job_attempts_total{SELECTED,outcome=\"completed\"}[SPAN]))",
    ),
    (
        "throttled",
        "1/min",
        "60 * sum(rate(flyball_job_attempts_total{SELECTED,outcome=\"throttled\"}[SPAN]))",
    ),
    (
        "failed",
        "1/min",
        "60 * sum(rate(flyball_job_attempts_total{SELECTED,outcome!~\"completed|throttled\"}[SPAN]))",
    ),
    (
        "achieved_rps",
        "tokens/s",
        "avg(avg_over_time(flyball_throttle_achieved_rps{SELECTED}[SPAN]))",
    ),
];

/// The series of one key of a throttle whose keys are counted.
const KEY_SERIES: [(&str, &str, &str); 2] = [
    (
        "allowed",
        "1/min",
        "60 * sum(rate(flyball_throttle_key_requests_total{SELECTED,answer=\"allowed\"}[SPAN]))",
    ),
    (
        "refused",
        "1/min",
        "60 * sum(rate(flyball_throttle_key_requests_total{SELECTED,answer=\"refused\"}[SPAN]))",
    ),
];

/// The history of a throttle or of one of its keys.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ThrottleHistory {
    /// The throttle.
    throttle: String,
    /// The key; `null` for the whole throttle.
    key: Option<String>,
    /// The length of the history, in seconds.
    range_s: u32,
    /// The time between points, in seconds.
    step_s: u32,
    /// The series; without points where Prometheus has none.
    series: Vec<HistorySeries>,
    /// The reason why Prometheus has not answered; `null` if it has.
    problem: Option<String>,
}

/// One series of a history.
#[derive(Serialize, utoipa::ToSchema)]
pub struct HistorySeries {
    /// `allowed` and `refused` are requests for tokens over HTTP, checks, and requests of this API;
    /// `completed`, `throttled` (429 and the like) and `failed` are attempts of jobs;
    /// `achieved_rps` are tokens taken.
    name: &'static str,
    /// The unit: `1/min` or `tokens/s`.
    unit: &'static str,
    /// The points, oldest first.
    points: Vec<HistoryPoint>,
}

/// One point of a series.
#[derive(Serialize, utoipa::ToSchema)]
pub struct HistoryPoint {
    /// Unix seconds.
    at: f64,
    /// The value, in the unit of the series.
    value: f64,
}

/// Shows the last hour, six hours or day of a throttle, read from Prometheus.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/history", operation_id = "show_throttle_history", tag = "throttles",
    params(
        ("name" = String, Path, description = "The throttle."),
        ("range" = Option<String>, Query, description = "`1h`, `6h` or `24h`; `1h` if absent."),
        ("key" = Option<String>, Query, description = "Only this key, of a throttle that `key_metrics` names.")),
    responses((status = 200, body = ThrottleHistory)))]
pub async fn show_throttle_history(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<ThrottleHistory>, Problem> {
    let name = name_of(name)?;
    let mut query = Query::open(pairs, &["range", "key"]);
    let ranges = RANGES.map(|(word, range_s, step_s)| (word, (range_s, step_s)));
    let (range_s, step_s) = query.choice("range", &ranges).unwrap_or(ranges[0].1);
    let key = query.text("key", KEY_BYTES_MAX);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let selected = match &key {
        Some(key) => format!("throttle={:?},key={}", name.as_str(), quoted(key)),
        None => format!("throttle={:?}", name.as_str()),
    };
    let wanted = if key.is_some() {
        &KEY_SERIES[..]
    } else {
        &SERIES[..]
    };
    let read = read(&state.prometheus, wanted, &selected, range_s, step_s);
    let (points, problem) = match tokio::time::timeout(PROMETHEUS_TIMEOUT, read).await {
        Ok(Ok(points)) => (points, None),
        // The address of the server and its words are for operators.
        Ok(Err(_)) if caller.tenant.is_some() => {
            (Vec::new(), Some("Prometheus cannot be read".to_owned()))
        }
        Ok(Err(error)) => (Vec::new(), Some(error.to_string())),
        Err(_) => (
            Vec::new(),
            Some("Prometheus did not answer in time".to_owned()),
        ),
    };
    // One that was deleted may have a history; without Prometheus nobody knows.
    let is_empty = points.iter().all(Vec::is_empty);
    if is_empty && matches!(state.throttles.status(&name).await, Ok(None)) {
        return Err(Problem::throttle_not_found(&name));
    }
    let mut points = points.into_iter();
    let series = wanted.iter().map(|(name, unit, _)| HistorySeries {
        name,
        unit,
        points: points.next().unwrap_or_default(),
    });
    Ok(Json(ThrottleHistory {
        throttle: name.to_string(),
        key,
        range_s,
        step_s,
        series: series.collect(),
        problem,
    }))
}

async fn read(
    prometheus: &Prometheus,
    wanted: &[(&str, &str, &str)],
    selected: &str,
    range_s: u32,
    step_s: u32,
) -> Result<Vec<Vec<HistoryPoint>>, Error> {
    let now = prometheus.clock().await?;
    let from = now - f64::from(range_s);
    let span = format!("{}s", SPAN_MIN_S.max(2 * step_s));
    let asked = wanted.iter().map(|(_, _, query)| {
        let query = filled(query, selected, &span);
        async move {
            let found = prometheus.range(&query, from, now, f64::from(step_s)).await;
            match found {
                Ok(found) => Ok(found.into_iter().map(HistoryPoint::from).collect()),
                Err(Error::Missing(Missing::Absent)) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        }
    });
    join_all(asked).await.into_iter().collect()
}

/// Returns a query with its placeholders filled in. The selection is the last, because a key or a
/// throttle may have the name of a placeholder.
fn filled(query: &str, selected: &str, span: &str) -> String {
    query.replace("SPAN", span).replace("SELECTED", selected)
}

impl From<Reading> for HistoryPoint {
    fn from(reading: Reading) -> Self {
        Self {
            at: reading.at,
            value: reading.value,
        }
    }
}

/// Returns a text as a string of PromQL.
fn quoted(text: &str) -> String {
    let escaped = text
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_with_the_name_of_a_placeholder_stays_as_it_is() {
        let selected = "throttle=\"SPAN\",key=\"SELECTED SPAN\"";
        for (_, _, query) in KEY_SERIES {
            let filled = filled(query, selected, "60s");
            assert!(filled.contains(selected), "{filled}");
            assert!(filled.contains("[60s]"), "{filled}");
        }
    }
}
