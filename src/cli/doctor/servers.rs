//! Checks of Redis, and of the signals of governed throttles.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::finding::{Finding, Findings};
use super::judge;
use super::postgres::seconds;
use crate::app;
use crate::config::Settings;
use crate::governor::policy::SignalSource;
use crate::signals;
use crate::throttle::redis::{is_of_login, reason_meaning};
use crate::throttle::{Error, KnobsFile, RedisStore, Store as _};

/// The longest that an answer of Redis may take here.
const SLOWEST: Duration = Duration::from_secs(3);

/// Questions by which the latency of Redis is measured.
const ROUND_TRIPS: usize = 4;

/// Checks Redis, or each server of a cluster; returns the store if it answers.
pub(super) async fn check_redis(settings: &Settings, report: &mut Findings) -> Option<RedisStore> {
    const CHECK: &str = "redis";
    let Ok(store) = RedisStore::connect(&settings.redis_url, &settings.redis_prefix) else {
        report.add(Finding::fail(
            CHECK,
            "REDIS_URL is not the URL of a Redis",
            "write it as redis://user:password@host:port, or redis+cluster:// for a cluster",
        ));
        return None;
    };
    let store = store.with_bound(SLOWEST);
    let (before, answers) = (seconds(), store.server_info().await);
    let middle = (before + seconds()) / 2.0;
    let (servers, is_cluster) = (answers.len(), store.is_cluster());
    let mut is_usable = !answers.is_empty();
    let mut worst: Option<f64> = None;
    let mut findings = Vec::new();
    for answer in answers {
        match answer {
            Ok((info, at_s)) => {
                findings.extend(judge::redis(&judge::info(&info), is_cluster));
                let offset = at_s - middle;
                worst = Some(worst.map_or(offset, |worst: f64| {
                    if offset.abs() > worst.abs() {
                        offset
                    } else {
                        worst
                    }
                }));
            }
            Err(error) => {
                is_usable = is_cluster;
                findings.push(lost(&error));
            }
        }
    }
    if servers == 0 {
        findings.push(Finding::fail(
            CHECK,
            "no server of the cluster answers",
            "start Redis, or correct REDIS_URL",
        ));
    }
    // Servers of a cluster that are alike are one line.
    findings.dedup();
    report.extend(findings);
    report.extend(worst.map(|offset_s| judge::clock("Redis", offset_s)));
    if is_usable {
        let timeout = Duration::from_millis(settings.redis_timeout_ms.into());
        let latency = latency(&store).await;
        report.extend(latency.map(|latency| judge::redis_latency(latency, timeout)));
    }
    is_usable.then_some(store)
}

/// Returns the shortest of some round trips to Redis; the first ones have a connection to open.
async fn latency(store: &RedisStore) -> Option<Duration> {
    let mut trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let begun = Instant::now();
        store.names().await.ok()?;
        trips.push(begun.elapsed());
    }
    trips.into_iter().min()
}

fn lost(error: &Error) -> Finding {
    let meaning = match error {
        Error::Lost(reason) => reason_meaning(reason),
        _ => None,
    };
    match meaning {
        Some(meaning) => {
            let todo = match is_of_login(meaning) {
                true => "correct the user and the password of REDIS_URL, or the rights of the user",
                false => "see its log",
            };
            Finding::fail("redis", format!("it refuses: {meaning}"), todo)
        }
        None if judge::is_of_name(&error.to_string()) => Finding::fail(
            "redis",
            "the name of the host in REDIS_URL cannot be resolved",
            "check the name, and the name server of this host",
        ),
        None => Finding::fail(
            "redis",
            "nothing answers where REDIS_URL leads",
            "start Redis, or correct REDIS_URL",
        ),
    }
}

/// Checks that the signals of governed throttles that come from Prometheus have readings.
pub(super) async fn check_signals(settings: &Settings, files: &[KnobsFile], report: &mut Findings) {
    const CHECK: &str = "prometheus";
    let policies = app::policies(files).unwrap_or_default();
    // Servers that cannot be used are faults of the settings.
    let Ok(sources) = app::prometheus_sources(settings) else {
        return;
    };
    let mut answered = 0;
    // One that does not answer is told once.
    let mut away: BTreeSet<Option<&str>> = BTreeSet::new();
    for (throttle, policy) in &policies {
        if sources.check(policy).is_err() {
            continue;
        }
        for signal in &policy.signals {
            let server = signal.server.as_deref();
            if signal.source != SignalSource::Prometheus || away.contains(&server) {
                continue;
            }
            match sources.history(signal, seconds()).await {
                Ok(_) => answered += 1,
                Err(error) => {
                    if matches!(
                        error,
                        signals::Error::Unreachable { .. } | signals::Error::TimedOut { .. }
                    ) {
                        away.insert(server);
                    }
                    let place = format!("signal {} of throttle {throttle}", signal.name);
                    report.add(unread(server, &place, &error));
                }
            }
        }
    }
    if answered > 0 {
        let queries = if answered == 1 {
            "query answers"
        } else {
            "queries answer"
        };
        report.add(Finding::ok(CHECK, format!("{answered} {queries}")));
    }
}

/// Returns the finding about a signal at `place` that the named Prometheus, or the usual one, did
/// not answer.
fn unread(server: Option<&str>, place: &str, error: &signals::Error) -> Finding {
    const CHECK: &str = "prometheus";
    let governor = "until then the governor holds the rate and lowers it to safe_rps";
    let (it, setting) = match server {
        Some(name) => (format!("server {name}"), format!("[prometheus.{name}]")),
        None => ("it".to_owned(), "PROMETHEUS_URL".to_owned()),
    };
    match error {
        signals::Error::Unreachable { .. } => Finding::fail(
            CHECK,
            format!("{it} cannot be reached, for {place}"),
            format!("start it, or correct {setting}; {governor}"),
        ),
        signals::Error::TimedOut { .. } => Finding::fail(
            CHECK,
            format!("{it} does not answer in time, for {place}"),
            format!("see its load; {governor}"),
        ),
        signals::Error::Refused { status, .. } => Finding::fail(
            CHECK,
            format!("{it} answered with status {status}, for {place}"),
            format!("check the URL and the credentials; {governor}"),
        ),
        signals::Error::Uncounted { .. } => Finding::fail(
            CHECK,
            format!("{it} does not count the usual series of {place} in time"),
            format!("see its load, or set series_min, which replaces the count; {governor}"),
        ),
        error => Finding::fail(
            CHECK,
            format!("{place}: {error}"),
            format!("correct the query, or start what it asks about; {governor}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prometheus_of_the_settings_is_named_with_its_table() {
        let away = signals::Error::TimedOut {
            url: "http://x".to_owned(),
            within_ms: 2000,
        };
        let told = |server| unread(server, "signal load of throttle search", &away).seen;
        assert_eq!(
            told(Some("east")),
            "server east does not answer in time, for signal load of throttle search"
        );
        assert_eq!(
            told(None),
            "it does not answer in time, for signal load of throttle search"
        );
    }
}
