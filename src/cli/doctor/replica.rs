//! Checks of the replica from which lists are read: whether it is one, and of the same server, its
//! schema and its lag.

use std::time::Duration;

use super::finding::{Finding, Findings};
use super::postgres::{CopyFacts, copy_facts, reach};
use crate::app;
use crate::config::Settings;
use crate::jobs::Queue;
use crate::postgres::ReplicaState;

const CHECK: &str = "replica";

const VARIABLE: &str = "DATABASE_READ_URL";

/// Checks the replica, if the settings name one; `queue` is the primary's.
pub(super) async fn check(settings: &Settings, queue: Option<&Queue>, report: &mut Findings) {
    if settings.database_read_url.is_empty() {
        return;
    }
    if let Err(finding) = reach(CHECK, VARIABLE, &settings.database_read_url).await {
        report.add(finding);
        return;
    }
    let Ok(Some(replica)) = app::open_replica(settings, 2) else {
        return;
    };
    let state = replica.measure().await;
    let there = copy_facts(replica.db()).await;
    let primary = match queue {
        Some(queue) => copy_facts(&queue.pool).await,
        None => None,
    };
    report.extend(judge(&state, replica.lag_max(), there, primary));
}

/// Judges the replica by its state and by what both servers tell.
fn judge(
    state: &ReplicaState,
    lag_max: Duration,
    there: Option<CopyFacts>,
    primary: Option<CopyFacts>,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !state.facts.is_replica && state.lag.is_some() {
        findings.push(Finding::warn(
            CHECK,
            "it is no replica, so reading lists from it does not relieve the primary",
            "let DATABASE_READ_URL lead to a streaming replica, or leave it empty",
        ));
    }
    if let (Some(there), Some(primary)) = (there, primary) {
        if there.server != primary.server {
            findings.push(Finding::fail(
                CHECK,
                "it is no copy of the server of DATABASE_URL, so its lists would be those of another",
                "let DATABASE_READ_URL lead to a replica of that server",
            ));
        }
        if there.version < primary.version {
            findings.push(Finding::fail(
                CHECK,
                format!(
                    "its schema is older than that of the primary: it has migration {}, not {}",
                    there.version, primary.version
                ),
                "wait until it has caught up; until then lists are read from the primary",
            ));
        }
    }
    if state.facts.is_paused {
        findings.push(Finding::warn(
            CHECK,
            "its replay is paused",
            "resume it with select pg_wal_replay_resume()",
        ));
    } else if state.facts.is_replica && !state.facts.is_receiving {
        findings.push(Finding::warn(
            CHECK,
            "it receives nothing from its primary now",
            "see its log, primary_conninfo and the replication slot",
        ));
    }
    match (&state.unused, state.lag) {
        (None, Some(lag)) if findings.is_empty() => findings.push(Finding::ok(
            CHECK,
            format!("it lags by {:.1} s", lag.as_secs_f64()),
        )),
        (None, _) => {}
        (Some(reason), _) => findings.push(Finding::warn(
            CHECK,
            reason.clone(),
            format!(
                "lists are read from the primary until it lags by at most {} s",
                lag_max.as_secs_f64()
            ),
        )),
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::ReplicaFacts;

    const S: Duration = Duration::from_secs(1);

    fn found(state: &ReplicaState, there: (i64, i64), primary: (i64, i64)) -> Vec<String> {
        let facts = |(server, version)| Some(CopyFacts { server, version });
        let findings = judge(state, 30 * S, facts(there), facts(primary));
        let lines = findings.iter();
        lines
            .map(|one| format!("{} {}", one.health.as_str(), one.seen))
            .collect()
    }

    fn state(facts: ReplicaFacts, lag: Option<Duration>, unused: Option<&str>) -> ReplicaState {
        ReplicaState {
            lag,
            facts,
            unused: unused.map(str::to_owned),
        }
    }

    #[test]
    fn each_fault_is_named_and_a_sound_replica_tells_its_lag() {
        let sound = ReplicaFacts {
            is_replica: true,
            is_receiving: true,
            ..ReplicaFacts::default()
        };
        let calm = state(sound, Some(S / 2), None);
        assert_eq!(found(&calm, (1, 21), (1, 21)), ["ok it lags by 0.5 s"]);
        let other = found(&calm, (2, 20), (1, 21));
        assert!(other[0].starts_with("fail it is no copy"), "{other:?}");
        assert!(
            other[1].starts_with("fail its schema is older"),
            "{other:?}"
        );

        let primary = state(ReplicaFacts::default(), Some(Duration::ZERO), None);
        let one = found(&primary, (1, 21), (1, 21));
        assert!(one[0].starts_with("warn it is no replica"), "{one:?}");

        let paused = ReplicaFacts {
            is_paused: true,
            ..sound
        };
        let paused = state(
            paused,
            Some(40 * S),
            Some("it lags by 40.0 s, more than 30 s"),
        );
        assert_eq!(
            found(&paused, (1, 21), (1, 21)),
            [
                "warn its replay is paused",
                "warn it lags by 40.0 s, more than 30 s"
            ]
        );
        let cut_off = ReplicaFacts {
            is_receiving: false,
            ..sound
        };
        let cut_off = found(&state(cut_off, Some(S), None), (1, 21), (1, 21));
        assert_eq!(cut_off, ["warn it receives nothing from its primary now"]);
    }
}
