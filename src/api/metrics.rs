//! `/metrics`: the metrics of the process as text for Prometheus. `docs/reference/metrics.md`
//! explains every family.

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

use crate::api::http::metrics::HttpMetrics;
use crate::api::stream::live::Live;
use crate::api::stream::live_sample::LiveSample;
use crate::api::throttles::measured::Measured;
use crate::api::throttles::view::{self, since_s};
use crate::governor::Finding;
use crate::governor::Phase;
use crate::governor::explain::view::{GovernorView, ShadowView, SignalView};
use crate::governor::law::Verdict;
use crate::throttle::status::EXPIRES;

/// The most throttles that get a label of their own; the jobs of the others are summed under
/// `other`.
const THROTTLE_LABELS_MAX: usize = 200;
/// The label of the other throttles and methods.
const OTHER_LABEL: &str = "other";
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

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, f64)>;

impl Collector for Sampled {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, rows) in self.families() {
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

impl Sampled {
    fn families(&self) -> Vec<(&'static str, &'static str, Rows)> {
        let sample = &*self.0;
        let named: Vec<(&str, &Measured)> = sample.chosen(THROTTLE_LABELS_MAX).collect();
        let each = |value: &dyn Fn(&Measured) -> Option<f64>| -> Rows {
            named
                .iter()
                .filter_map(|(name, measured)| {
                    Some((vec![("throttle", (*name).to_owned())], value(measured)?))
                })
                .collect()
        };
        let status = |value: &dyn Fn(&crate::throttle::Status) -> f64| {
            each(&|measured| measured.status.as_ref().map(value))
        };
        let jobs = |value: &dyn Fn(&Measured) -> i64| -> Rows {
            if sample.counted_at.is_none() {
                return Rows::new();
            }
            let mut rows = each(&|measured| Some(value(measured) as f64));
            if sample.throttles.len() > named.len() {
                let all: i64 = sample.throttles.values().map(value).sum();
                let shown: i64 = named.iter().map(|(_, measured)| value(measured)).sum();
                rows.push((
                    vec![("throttle", OTHER_LABEL.to_owned())],
                    (all - shown) as f64,
                ));
            }
            rows
        };
        let signals = |value: &dyn Fn(&SignalView) -> Option<f64>| -> Rows {
            let of = |(name, measured): &(&str, &Measured)| -> Rows {
                let signals = measured
                    .governor
                    .iter()
                    .flat_map(|governor| &governor.signals);
                let labels = |signal: &str| {
                    vec![
                        ("throttle", (*name).to_owned()),
                        ("signal", signal.to_owned()),
                    ]
                };
                signals
                    .filter_map(|signal| Some((labels(&signal.name), value(signal)?)))
                    .collect()
            };
            named.iter().flat_map(of).collect()
        };
        let shadow = |value: &dyn Fn(&GovernorView, &ShadowView) -> Option<f64>| {
            each(&|measured| {
                let governor = measured.governor.as_ref()?;
                value(governor, governor.shadow.as_ref()?)
            })
        };
        let both = |value: &dyn Fn(&ShadowView) -> [f64; 2]| -> Rows {
            let of = |(name, measured): &(&str, &Measured)| -> Rows {
                let found = measured
                    .governor
                    .as_ref()
                    .and_then(|governor| governor.shadow.as_ref())
                    .map(value);
                let row = |rate: &str, value: f64| {
                    (
                        vec![("throttle", (*name).to_owned()), ("rate", rate.to_owned())],
                        value,
                    )
                };
                found.map_or_else(Rows::new, |[real, own]| {
                    vec![row("real", real), row("own", own)]
                })
            };
            named.iter().flat_map(of).collect()
        };
        let governors = || {
            named
                .iter()
                .filter_map(|(name, measured)| Some((*name, measured.governor.as_ref()?)))
        };
        let word = |throttle: &str, label: &'static str, word: &str| {
            vec![("throttle", throttle.to_owned()), (label, word.to_owned())]
        };
        let limiting = governors()
            .map(|(name, g)| (word(name, "limiting", &g.limiting), 1.0))
            .collect();
        let governed_knobs = governors()
            .map(|(name, g)| (word(name, "knob", g.actuator.field()), 1.0))
            .collect();
        let states = named.iter().filter_map(|(name, measured)| {
            let state = view::state_word(measured.status.as_ref()?, Some(measured));
            Some((word(name, "state", state), 1.0))
        });
        let states = states.collect();
        let held_keys = named
            .iter()
            .filter_map(|(name, measured)| Some((*name, measured.held.as_ref()?)));
        let held_keys = held_keys.flat_map(|(name, held)| {
            let holds = [
                ("paused", held.paused),
                ("resting", held.resting),
                ("learned", held.learned),
                ("probing", held.probing),
            ];
            holds.map(|(hold, keys)| (word(name, "hold", hold), keys as f64))
        });
        let held_keys = held_keys.collect();
        let watchdogs = governors()
            .flat_map(|(name, governor)| {
                Finding::ALL.map(|finding| {
                    let found = governor
                        .findings
                        .iter()
                        .any(|found| found.finding == finding);
                    (
                        word(name, "finding", finding.as_str()),
                        f64::from(u8::from(found)),
                    )
                })
            })
            .collect();
        vec![
            (
                "flyball_throttle_rps",
                "Tokens per second in force; 0 stopped, -1 unlimited",
                status(&|status| status.effective_rps.number()),
            ),
            (
                "flyball_throttle_knob_rps",
                "The knob rps as read, in tokens per second; -1 unlimited",
                status(&|status| status.knobs.rps.number()),
            ),
            (
                "flyball_throttle_concurrency",
                "The knob concurrency: jobs that may run at once over all processes; -1 no limit",
                status(&|status| {
                    crate::throttle::concurrency_number(status.knobs.concurrency) as f64
                }),
            ),
            (
                "flyball_throttle_min_rps",
                "The knob min: the lowest rate that a governor may set",
                status(&|status| status.knobs.min),
            ),
            (
                "flyball_throttle_max_rps",
                "The knob max: the highest rate that a governor may set",
                status(&|status| status.knobs.max),
            ),
            (
                "flyball_throttle_achieved_rps",
                "Tokens per second taken over the last seconds",
                each(&|measured| measured.slope.map(|slope| slope.achieved_rps)),
            ),
            (
                "flyball_throttle_limiting_share",
                "Share of the last seconds in which a caller waited for tokens, 0 to 1",
                each(&|measured| measured.slope.map(|slope| slope.limiting_share)),
            ),
            (
                "flyball_throttle_limiting_share_above",
                "The same of the throttles above, the highest of theirs",
                each(&|measured| sample.limiting_share_above(measured)),
            ),
            (
                "flyball_throttle_key_wait_seconds",
                "Seconds for which a key may wait for a token by its knobs; 0 without a limit, -1 stopped",
                status(&|status| status.key_wait_s()),
            ),
            (
                "flyball_throttle_invalid_knobs",
                "Knobs with unusable values",
                status(&|status| {
                    let unusable = status.problems.iter().filter(|one| one.field != EXPIRES);
                    unusable.count() as f64
                }),
            ),
            (
                "flyball_throttle_expires_seconds",
                "Seconds until the knobs expire, where another program gave them a time to live",
                each(&|measured| measured.status.as_ref()?.expires_in_s),
            ),
            (
                "flyball_throttle_lease_expired",
                "1 while the governor's lease on the knob has lapsed and safe_rps is in force",
                status(&|status| f64::from(u8::from(status.lease_expired))),
            ),
            (
                "flyball_throttle_state",
                "1 for the current state of the throttle",
                states,
            ),
            (
                "flyball_throttle_held_keys",
                "Keys that hold their jobs back, among the deepest lanes, by cause",
                held_keys,
            ),
            (
                "flyball_throttle_held_jobs",
                "Ready jobs of keys that hold their jobs back, among the deepest lanes",
                each(&|measured| measured.held.as_ref().map(|held| held.held_ready as f64)),
            ),
            (
                "flyball_throttle_over_quota_keys",
                "Keys that have asked for more than their quota for minutes, among the deepest lanes",
                each(&|measured| measured.held.as_ref().map(|held| held.over_quota as f64)),
            ),
            (
                "flyball_throttle_over_quota_ratio",
                "Tokens that the worst of these keys asks for, in multiples of its quota; 0 without one",
                each(&|measured| {
                    let most = measured.held.as_ref()?.most_over_quota.as_ref();
                    Some(most.map_or(0.0, crate::throttle::OverQuotaKey::ratio))
                }),
            ),
            (
                "flyball_throttle_ready_jobs",
                "Jobs that wait for tokens or a worker, at the last count",
                jobs(&|measured| measured.depth.ready),
            ),
            (
                "flyball_throttle_scheduled_jobs",
                "Jobs that wait for a time, at the last count",
                jobs(&|measured| measured.depth.scheduled),
            ),
            (
                "flyball_throttle_running_jobs",
                "Jobs that hold a lease, at the last count",
                jobs(&|measured| measured.depth.running),
            ),
            (
                "flyball_throttle_dead_jobs",
                "Dead letters, at the last count",
                jobs(&|measured| measured.depth.dead),
            ),
            (
                "flyball_throttle_oldest_ready_seconds",
                "Seconds since the oldest ready job was enqueued; 0 while none is ready",
                each(&|measured| {
                    sample.counted_at?;
                    Some(
                        measured
                            .depth
                            .oldest_ready_at
                            .map_or(0.0, |oldest| since_s(oldest, sample.at)),
                    )
                }),
            ),
            (
                "flyball_depth_age_seconds",
                "Age of the counted figures; it grows while no process counts",
                sample
                    .counted_at
                    .map(|at| (Vec::new(), since_s(at, sample.at)))
                    .into_iter()
                    .collect(),
            ),
            (
                "flyball_governor_breaker_state",
                "0 closed, 1 half open, 2 open",
                each(&|measured| {
                    measured
                        .governor
                        .as_ref()
                        .map(|governor| breaker_number(governor.breaker))
                }),
            ),
            (
                "flyball_governor_age_seconds",
                "Seconds since a governor last looked at the throttle; it grows while none does",
                each(&|measured| {
                    let status = measured.status.as_ref()?;
                    let governor = measured.governor.as_ref();
                    let governor = governor.filter(|_| status.needs_governor())?;
                    Some(since_s(governor.at, sample.at))
                }),
            ),
            (
                "flyball_governor_knob",
                "1 for the knob that the governor sets: rps or concurrency",
                governed_knobs,
            ),
            (
                "flyball_governor_limiting",
                "1 for the signal or fixed value that decides the rate now",
                limiting,
            ),
            (
                "flyball_governor_watchdog",
                "1 while a watchdog of the governor finds this",
                watchdogs,
            ),
            (
                "flyball_governor_gain_factor",
                "Factor on the gain, set by the watchdogs: 1, 0.5 or 0.25",
                each(&|measured| {
                    measured
                        .governor
                        .as_ref()
                        .map(|governor| governor.gain_factor)
                }),
            ),
            (
                "flyball_governor_durations",
                "1 while the durations of jobs count, 0 while they are independent of the load",
                each(&|measured| {
                    let durations = measured.governor.as_ref()?.durations.as_ref()?;
                    Some(f64::from(u8::from(
                        durations.verdict != Verdict::Uninformative,
                    )))
                }),
            ),
            (
                "flyball_governor_signal_ratio",
                "The last reading of a signal over its setpoint; the governor holds the largest near 1",
                signals(&|signal| {
                    signal
                        .value
                        .filter(|_| signal.setpoint != 0.0)
                        .map(|value| value / signal.setpoint)
                }),
            ),
            (
                "flyball_governor_signal_age_seconds",
                "Age of a signal's last reading",
                signals(&|signal| signal.age_s),
            ),
            (
                "flyball_governor_signal_stale",
                "1 while a signal's reading is too old or unusable",
                signals(&|signal| Some(f64::from(u8::from(signal.stale)))),
            ),
            (
                "flyball_governor_learned_quota_rps",
                "Unpublished quota as learned by a ratio signal, in tokens per second or slots",
                signals(&|signal| signal.learned_quota.as_ref().map(|quota| quota.rps)),
            ),
            (
                "flyball_governor_learned_quota_refused_share",
                "The share that was refused when the quota was learned, 0 to 1",
                signals(&|signal| {
                    signal
                        .learned_quota
                        .as_ref()
                        .map(|quota| quota.refused_share)
                }),
            ),
            (
                "flyball_governor_shadow_rps",
                "The rate that the governor would set, in shadow mode; 0 stopped",
                shadow(&|governor, _| Some(governor.rps)),
            ),
            (
                "flyball_governor_shadow_signal_ratio",
                "The highest signal over its setpoint at the governor's own rate, by its model, in \
                 shadow mode",
                shadow(&|_, shadow| shadow.own_load),
            ),
            (
                "flyball_governor_shadow_jobs",
                "Jobs since shadow mode began: let through (real), and at the governor's own rate \
                 (own)",
                both(&|shadow| [shadow.jobs, shadow.own_jobs]),
            ),
            (
                "flyball_governor_shadow_overload_seconds",
                "The load above its setpoint over time since shadow mode began, in setpoint \
                 seconds: measured (real), and at the governor's own rate (own)",
                both(&|shadow| [shadow.overload_s, shadow.own_overload_s]),
            ),
            (
                "flyball_throttle_store_unavailable",
                "1 while the throttle store does not answer this process, or accepts no writes",
                vec![(Vec::new(), f64::from(u8::from(sample.is_store_lost)))],
            ),
            (
                "flyball_postgres_unavailable",
                "1 while Postgres does not answer this process, or accepts no writes",
                vec![(Vec::new(), f64::from(u8::from(sample.is_queue_lost)))],
            ),
            (
                "flyball_paused",
                "1 while everything is paused",
                vec![(Vec::new(), f64::from(u8::from(sample.is_paused)))],
            ),
            (
                "flyball_workers",
                "Live worker processes at the last count",
                vec![(Vec::new(), sample.workers as f64)],
            ),
        ]
    }
}

fn breaker_number(breaker: Phase) -> f64 {
    match breaker {
        Phase::Closed => 0.0,
        Phase::HalfOpen => 1.0,
        Phase::Open => 2.0,
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
