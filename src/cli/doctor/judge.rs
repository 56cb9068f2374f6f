//! Judgements on what was measured of the servers. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding::Finding;

/// The oldest version of Postgres, as a number: 15.
const POSTGRES_MIN: i32 = 150_000;

/// The oldest major version of Redis and Valkey.
const REDIS_MIN: u32 = 7;

/// Connections of a process besides those of the setting: two each for heartbeats, the governor's
/// lease and its journal, and four for LISTEN.
const MORE_CONNECTIONS: i64 = 10;

/// Differences between clocks, in seconds, that warn and that fail.
const SKEW_WARN_S: f64 = 2.0;
const SKEW_FAIL_S: f64 = 60.0;

/// The longest time for which a job may wait for Redis by the settings, in milliseconds.
const TIMEOUT_MAX_MS: f64 = 10_000.0;

/// The share of Redis' memory above which it is nearly full.
const NEARLY_FULL: f64 = 0.9;

/// Facts about the database server.
#[derive(Clone, Debug)]
pub(super) struct PostgresFacts {
    pub(super) version: i32,
    pub(super) version_text: String,
    pub(super) is_read_only: bool,
    pub(super) max_connections: i64,
    pub(super) reserved: i64,
    pub(super) used: i64,
    pub(super) autovacuum: bool,
    pub(super) synchronous_commit: String,
    pub(super) fsync: bool,
}

/// Judges the database server, for a process with so many connections.
pub(super) fn postgres(facts: &PostgresFacts, connections: u32) -> Vec<Finding> {
    const CHECK: &str = "postgres";
    let mut findings = Vec::new();
    if facts.version < POSTGRES_MIN {
        findings.push(Finding::fail(
            CHECK,
            format!("its version is {}", facts.version_text),
            "upgrade to PostgreSQL 15 or newer",
        ));
    }
    if facts.is_read_only {
        findings.push(Finding::fail(
            CHECK,
            "it accepts no writes: it is a standby, or set to read only",
            "let DATABASE_URL lead to the primary, or see default_transaction_read_only",
        ));
    }
    let needed = i64::from(connections) + MORE_CONNECTIONS;
    let most = facts.max_connections - facts.reserved;
    let free = (most - facts.used).max(0);
    if needed > most {
        findings.push(Finding::fail(
            CHECK,
            format!("max_connections leaves {most} connections to all, and one process takes up to {needed}"),
            "raise max_connections, or lower FLYBALL_DATABASE_CONNECTIONS",
        ));
    } else if needed > free {
        findings.push(Finding::warn(
            CHECK,
            format!("{free} of {most} connections are free now, and one more process takes up to {needed}"),
            "raise max_connections, or lower FLYBALL_DATABASE_CONNECTIONS",
        ));
    }
    if !facts.autovacuum {
        findings.push(Finding::fail(
            CHECK,
            "autovacuum is off, so the tables of the queue grow and claims get slow",
            "set autovacuum = on",
        ));
    }
    if !facts.fsync {
        findings.push(Finding::warn(
            CHECK,
            "fsync is off, so a crash of the machine can destroy the database",
            "set fsync = on",
        ));
    }
    if facts.synchronous_commit == "off" {
        findings.push(Finding::warn(
            CHECK,
            "synchronous_commit is off, so a crash can lose jobs that were accepted a moment before",
            "set synchronous_commit = on for the role of Flyball",
        ));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            CHECK,
            format!(
                "version {}, {free} of {most} connections are free",
                facts.version_text
            ),
        ));
    }
    findings
}

/// Returns true if the reason for which a server cannot be reached is the name of its host. The
/// system's resolver has no other mark.
pub(super) fn is_of_name(reason: &str) -> bool {
    reason.contains("failed to lookup address")
}

/// Reads the lines of `INFO`.
pub(super) fn info(text: &str) -> BTreeMap<String, String> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Judges a server of Redis by its `INFO`; `is_cluster` is true if the URL is that of a cluster.
pub(super) fn redis(info: &BTreeMap<String, String>, is_cluster: bool) -> Vec<Finding> {
    const CHECK: &str = "redis";
    let text = |name: &str| info.get(name).map(String::as_str).unwrap_or_default();
    let number = |name: &str| text(name).parse::<f64>().unwrap_or(0.0);
    let mut findings = Vec::new();
    let (product, version) = match text("valkey_version") {
        "" => ("Redis", text("redis_version")),
        version => ("Valkey", version),
    };
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .unwrap_or(0);
    if major < REDIS_MIN {
        findings.push(Finding::fail(
            CHECK,
            format!("its version is {product} {version}"),
            "upgrade to Redis 7, Valkey 7.2 or newer",
        ));
    }
    if text("role") == "slave" && !is_cluster {
        findings.push(Finding::fail(
            CHECK,
            "it is a replica, which accepts no writes",
            "let REDIS_URL lead to the primary",
        ));
    }
    if text("cluster_enabled") == "1" && !is_cluster {
        findings.push(Finding::fail(
            CHECK,
            "it is a server of a cluster, and the URL is that of a single server",
            "write redis+cluster:// in REDIS_URL, with some of its servers",
        ));
    }
    let (policy, most) = (text("maxmemory_policy"), number("maxmemory"));
    if policy != "noeviction" && !policy.is_empty() {
        let seen = format!("maxmemory-policy is {policy}");
        let todo = "set maxmemory-policy noeviction";
        findings.push(if most > 0.0 {
            let seen = format!(
                "{seen}, so that throttles and their knobs are deleted when memory is scarce"
            );
            Finding::fail(CHECK, seen, todo)
        } else {
            Finding::warn(
                CHECK,
                format!("{seen}, which matters once maxmemory is set"),
                todo,
            )
        });
    }
    if most > 0.0 && number("used_memory") > most * NEARLY_FULL {
        let used = (number("used_memory") / most * 100.0).round();
        let seen = format!("{used} % of its maxmemory are in use");
        let todo = "raise maxmemory, or find what else fills it";
        findings.push(if used > 100.0 {
            Finding::fail(CHECK, format!("{seen}, so no token is granted"), todo)
        } else {
            let seen = format!("{seen}; once it is full, no token is granted");
            Finding::warn(CHECK, seen, todo)
        });
    }
    if text("rdb_last_bgsave_status") == "err" {
        findings.push(Finding::fail(
            CHECK,
            "its last snapshot failed, after which it refuses writes unless it was told otherwise",
            "see its log; its disk may be full",
        ));
    }
    let is_kept = text("aof_enabled") == "1" || number("rdb_last_save_time") > number("started_at");
    if findings.is_empty() {
        let kept = match (is_kept, is_cluster) {
            (_, true) => "a server of a cluster".to_owned(),
            (true, false) => "its data is kept on disk".to_owned(),
            (false, false) => "its data is not kept on disk: after a restart the knobs come back from Postgres, and buckets start again".to_owned(),
        };
        findings.push(Finding::ok(
            CHECK,
            format!("{product} {version}, {policy}; {kept}"),
        ));
    }
    findings
}

/// Judges the clock of a server; `offset_s` is the server's time minus that of this host.
pub(super) fn clock(server: &str, offset_s: f64) -> Finding {
    const CHECK: &str = "clocks";
    let (distance, side) = (
        offset_s.abs(),
        if offset_s > 0.0 { "ahead of" } else { "behind" },
    );
    let seen = format!("the clock of {server} is {distance:.1} s {side} that of this host");
    let todo = "let all machines follow a time server; run_at, tokens and reports are in different times until then";
    if distance >= SKEW_FAIL_S {
        Finding::fail(CHECK, seen, todo)
    } else if distance >= SKEW_WARN_S {
        Finding::warn(CHECK, seen, todo)
    } else {
        Finding::ok(
            CHECK,
            format!("{server} and this host agree to {distance:.1} s"),
        )
    }
}

/// Judges the time that Redis takes to answer, beside the longest that a job waits for it.
pub(super) fn redis_latency(latency: Duration, timeout: Duration) -> Finding {
    const CHECK: &str = "redis";
    let (latency_ms, timeout_ms) = (latency.as_secs_f64() * 1e3, timeout.as_millis());
    if latency * 2 < timeout {
        return Finding::ok(
            CHECK,
            format!("it answers in {latency_ms:.1} ms, and a job waits for {timeout_ms} ms"),
        );
    }
    let enough = ((latency_ms * 4.0 / 50.0).ceil() * 50.0).min(TIMEOUT_MAX_MS);
    Finding::warn(
        CHECK,
        format!("it takes {latency_ms:.1} ms to answer, and a job waits for {timeout_ms} ms"),
        format!(
            "set redis_timeout_ms to {enough} or more, or bring Redis nearer; until then throttles follow on_store_loss again and again"
        ),
    )
}

/// Judges the limit on open files, for an API with so many connections.
pub(super) fn open_files(limit: u64, connections: usize) -> Finding {
    const CHECK: &str = "limits";
    let wanted = 2 * connections as u64;
    if limit < 1024 {
        return Finding::fail(
            CHECK,
            format!("a process may open {limit} files and sockets"),
            format!("raise the hard limit (ulimit -Hn, LimitNOFILE) to {wanted}"),
        );
    }
    if limit < wanted {
        let half = limit / 2;
        return Finding::warn(
            CHECK,
            format!(
                "a process may open {limit} files and sockets, so the API takes {half} connections instead of {connections}"
            ),
            format!(
                "raise the hard limit (ulimit -Hn, LimitNOFILE) to {wanted}, or lower FLYBALL_HTTP_CONNECTIONS"
            ),
        );
    }
    Finding::ok(
        CHECK,
        format!("a process may open {limit} files and sockets"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::Health;
    use super::*;

    fn healths(findings: &[Finding]) -> Vec<(Health, &str)> {
        findings
            .iter()
            .map(|one| (one.health, one.seen.as_str()))
            .collect()
    }

    #[test]
    fn clocks_that_differ_by_seconds_warn_and_by_a_minute_fail() {
        assert_eq!(clock("Postgres", 0.4).health, Health::Ok);
        assert_eq!(clock("Postgres", -3.0).health, Health::Warn);
        assert!(clock("Postgres", -3.0).seen.contains("3.0 s behind"));
        let late = clock("Redis", 90.0);
        assert!(late.health == Health::Fail && late.seen.contains("90.0 s ahead of"));
    }

    #[test]
    fn a_redis_that_takes_half_of_the_timeout_warns_and_says_what_would_do() {
        let ms = Duration::from_millis;
        assert_eq!(redis_latency(ms(24), ms(50)).health, Health::Ok);
        let slow = redis_latency(ms(26), ms(50));
        assert_eq!(slow.health, Health::Warn);
        assert!(
            slow.todo
                .unwrap()
                .contains("redis_timeout_ms to 150 or more")
        );
        let slowest = redis_latency(ms(2900), ms(50)).todo.unwrap();
        assert!(slowest.contains("to 10000 or more"), "{slowest}");
    }

    #[test]
    fn every_fault_of_a_redis_is_named() {
        let of = |text: &str, is_cluster| redis(&info(text), is_cluster);
        let well = "redis_version:7.2.4\r\nrole:master\r\nmaxmemory_policy:noeviction\r\nmaxmemory:0\r\naof_enabled:1\r\n";
        assert_eq!(healths(&of(well, false))[0].0, Health::Ok);
        for (line, words) in [
            ("redis_version:6.2.1", "Redis 6.2.1"),
            ("role:slave", "replica"),
            ("cluster_enabled:1", "cluster"),
            ("rdb_last_bgsave_status:err", "snapshot failed"),
        ] {
            let findings = of(&format!("{well}{line}\r\n"), false);
            assert_eq!(findings.len(), 1, "{findings:?}");
            assert!(findings[0].health == Health::Fail && findings[0].seen.contains(words));
        }
        let evicting = format!("{well}maxmemory_policy:allkeys-lru\r\n");
        assert_eq!(of(&evicting, false)[0].health, Health::Warn);
        let full = format!("{evicting}maxmemory:100\r\nused_memory:95\r\n");
        let found = of(&full, false);
        assert_eq!(
            [found[0].health, found[1].health],
            [Health::Fail, Health::Warn]
        );
        let out = format!("{well}maxmemory:100\r\nused_memory:156\r\n");
        let found = of(&out, false);
        assert_eq!(found[0].health, Health::Fail);
        assert!(found[0].seen.contains("156 %"), "{}", found[0].seen);
        let old = format!("{well}redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n");
        assert!(of(&old, false)[0].seen.contains("Valkey 8.0.1"));
    }

    #[test]
    fn every_fault_of_a_postgres_is_named() {
        let well = PostgresFacts {
            version: 170_004,
            version_text: "17.4".into(),
            is_read_only: false,
            max_connections: 100,
            reserved: 3,
            used: 10,
            autovacuum: true,
            synchronous_commit: "on".into(),
            fsync: true,
        };
        assert_eq!(postgres(&well, 16).len(), 1);
        assert_eq!(postgres(&well, 16)[0].health, Health::Ok);
        let broken = PostgresFacts {
            version: 140_009,
            is_read_only: true,
            used: 95,
            autovacuum: false,
            synchronous_commit: "off".into(),
            fsync: false,
            ..well.clone()
        };
        let found: Vec<Health> = postgres(&broken, 16).iter().map(|one| one.health).collect();
        use Health::{Fail, Warn};
        assert_eq!(found, [Fail, Fail, Warn, Fail, Warn, Warn]);
        let small = PostgresFacts {
            max_connections: 10,
            ..well
        };
        let found = &postgres(&small, 16)[0];
        assert!(
            found.health == Health::Fail && found.seen.ends_with("one process takes up to 26"),
            "{found:?}"
        );
    }

    #[test]
    fn a_low_limit_of_open_files_is_named_with_what_it_costs() {
        assert_eq!(open_files(1_000_000, 4096).health, Health::Ok);
        let low = open_files(4096, 4096);
        assert!(low.health == Health::Warn && low.seen.contains("2048 connections"));
        assert_eq!(open_files(256, 4096).health, Health::Fail);
    }
}
