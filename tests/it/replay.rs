//! `flyball replay` as a process: recordings from a real Prometheus and from files, and errors for
//! invalid ones.

use std::fmt::Write as _;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use flyball::stack::{ServerKind, SpawnOptions, find, spawn};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::PROGRAM;

const POLICY: &str = "[knobs]\nrps = 20\nmin = 1\nmax = 500\nsafe_rps = 5\n\n[[signal]]\nname = \"load\"\n\
                      query = \"recorded_load{host=\\\"a\\\"}\"\nsetpoint = 2.0\n";
/// The plant: background load, and load per job per second, in setpoints.
const BACKGROUND: f64 = 0.2;
const COST: f64 = 0.01;
const SECONDS: u32 = 5 * 3600;

/// A folder with a policy.
struct ReplayFolder(TempDir);

impl ReplayFolder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("recorded.toml", POLICY);
        folder
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn replay(&self, prometheus_url: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(&*PROGRAM);
        command
            .env_clear()
            .env("PROMETHEUS_URL", prometheus_url)
            .current_dir(self.0.path());
        command
            .args(["replay", "--policy", "recorded.toml"])
            .args(arguments)
            .output()
            .unwrap()
    }

    /// Runs a replay that must succeed, and returns its JSON.
    fn report(&self, prometheus_url: &str, arguments: &[&str]) -> Value {
        let output = self.replay(prometheus_url, &[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", printed(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Runs a replay from a file that must fail with this exit code and text.
    fn refused(&self, arguments: &[&str], code: i32, text: &str) {
        let output = self.replay("http://127.0.0.1:1", arguments);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}: {}",
            printed(&output)
        );
        assert!(
            printed(&output).contains(text),
            "{arguments:?}: {}\nlacks {text}",
            printed(&output)
        );
    }
}

fn printed(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Returns a recording with one row per second: the rate, and every 15 s the load of a store in its
/// own unit.
fn recording() -> Vec<(u32, f64, Option<f64>)> {
    let mut average = BACKGROUND + 20.0 * COST;
    let second = |n: u32| {
        let rate = if (n / 900).is_multiple_of(2) {
            20.0
        } else {
            45.0
        };
        average += (BACKGROUND + COST * rate - average) / 60.0;
        (n, rate, n.is_multiple_of(15).then_some(2.0 * average))
    };
    (0..SECONDS).map(second).collect()
}

/// Asserts in the report that the governor brings the load to its setpoint.
fn check(report: &Value) {
    let recorded: f64 = recording().iter().map(|(_, rate, _)| rate).sum();
    let jobs = report["recorded"]["jobs"].as_f64().unwrap();
    assert!((jobs / recorded - 1.0).abs() < 0.01, "{jobs} of {recorded}");
    let would_be = report["would_be"].as_array().unwrap();
    assert_eq!(
        (would_be.len(), &would_be[0]["share"]),
        (1, &Value::Null),
        "{report:#}"
    );
    let possible = f64::from(SECONDS) * (1.0 - BACKGROUND) / COST;
    let jobs = would_be[0]["jobs"].as_f64().unwrap();
    assert!(
        (0.85..1.03).contains(&(jobs / possible)),
        "{jobs} of {possible}"
    );
    assert_eq!(report["recorded"]["overload_s"], 0.0);
}

#[tokio::test]
async fn hours_of_a_real_prometheus_are_read_in_pieces_and_replayed() {
    let dir = tempfile::Builder::new()
        .prefix("flyball-replay-")
        .tempdir()
        .unwrap();
    std::fs::set_permissions(
        dir.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    // Only Prometheus is started; the other addresses have no listener.
    let options = SpawnOptions {
        program: Some(PROGRAM.clone()),
        database_url: Some("postgres://nobody@127.0.0.1:1/none".to_owned()),
        redis_url: Some("redis://127.0.0.1:1".to_owned()),
        ephemeral: true,
        stderr: Some(dir.path().join("log")),
        ..SpawnOptions::default()
    };
    let mut running = spawn(&dir.path().join("stack"), &options).unwrap();
    let url = running.urls.prometheus_url.clone();
    let data = running
        .urls
        .targets_dir
        .as_ref()
        .unwrap()
        .with_file_name("data");
    running.stop(ServerKind::Prometheus).unwrap();
    let begin = now_s() - u64::from(SECONDS) - 1800;
    fill(&data, begin);
    running.start(ServerKind::Prometheus).unwrap();

    let folder = ReplayFolder::new();
    let at = |s: u64| jiff::Timestamp::from_second(s as i64).unwrap().to_string();
    let (from, to) = (at(begin - 60), at(begin + u64::from(SECONDS) + 60));
    let range = ["--from", from.as_str(), "--to", to.as_str()];

    // The rate is not a plain selector, and one value per second exceeds what Prometheus returns in
    // one answer.
    check(&folder.report(
        &url,
        &[&range[..], &["--step", "1", "--svg", "out.svg"]].concat(),
    ));
    let svg = std::fs::read_to_string(folder.0.path().join("out.svg")).unwrap();
    assert!(
        svg.starts_with("<svg") && svg.contains("jobs per second"),
        "{}",
        &svg[..200]
    );
    check(&folder.report(&url, &[&range[..], &["--rate", "recorded_rate"]].concat()));

    let refused = |arguments: &[&str], text: &str| {
        let output = folder.replay(&url, &[&range[..], arguments].concat());
        assert_eq!(output.status.code(), Some(4), "{}", printed(&output));
        assert!(
            printed(&output).contains(text),
            "{}\nlacks {text}",
            printed(&output)
        );
    };
    refused(
        &["--rate", "no_such_metric"],
        "rate: has no values in this range",
    );
    refused(&["--rate", "sum("], "rate: query \"sum(\" was refused");
    let before = at(begin - 86_400);
    let output = folder.replay(&url, &["--from", &before, "--to", &at(begin - 80_000)]);
    assert_eq!(output.status.code(), Some(4), "{}", printed(&output));
    assert!(
        printed(&output).contains("rate: has no values in this range"),
        "{}",
        printed(&output)
    );
}

#[expect(
    clippy::disallowed_methods,
    reason = "Prometheus dates by the wall clock"
)]
fn now_s() -> u64 {
    jiff::Timestamp::now().as_second() as u64
}

/// Imports the recording into a stopped Prometheus with promtool.
fn fill(data: &Path, begin: u64) {
    let (mut loads, mut rates, mut achieved) = (String::new(), String::new(), String::new());
    for (n, rate, load) in recording()
        .into_iter()
        .filter(|(n, ..)| n.is_multiple_of(5))
    {
        let t = begin + u64::from(n);
        writeln!(rates, "recorded_rate {rate} {t}").unwrap();
        writeln!(
            achieved,
            "flyball_throttle_achieved_rps{{throttle=\"recorded\"}} {rate} {t}"
        )
        .unwrap();
        if let Some(load) = load {
            writeln!(loads, "recorded_load{{host=\"a\"}} {load} {t}").unwrap();
        }
    }
    let text = format!(
        "# TYPE recorded_load gauge\n{loads}# TYPE recorded_rate gauge\n{rates}# TYPE flyball_throttle_achieved_rps gauge\n{achieved}# EOF\n"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let prometheus = find::prometheus(&find::places(&[])).expect("prometheus is installed");
    let mut promtool = prometheus.sibling("promtool").command();
    promtool
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .arg(file.path())
        .arg(data);
    let output = promtool.output().unwrap();
    assert!(output.status.success(), "{}", printed(&output));
    own(data, std::fs::metadata(data).unwrap());
}

/// Changes the owner of everything below a folder to the user that runs its server.
fn own(dir: &Path, as_it: std::fs::Metadata) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        chown(&path, Some(as_it.uid()), Some(as_it.gid())).unwrap();
        if path.is_dir() {
            own(&path, as_it.clone());
        }
    }
}

#[test]
fn a_file_is_replayed_as_csv_and_as_json_lines() {
    let folder = ReplayFolder::new();
    let mut csv = String::from("time,signal,value,rate\n");
    let mut json = String::new();
    for (n, rate, load) in recording()
        .into_iter()
        .filter(|(n, ..)| n.is_multiple_of(5))
    {
        let t = 1_700_000_000 + n;
        match load {
            Some(load) => {
                writeln!(csv, "{t},load,{load},{rate}").unwrap();
                writeln!(
                    json,
                    "{{\"time\": {t}, \"signal\": \"load\", \"value\": {load}, \"rate\": {rate}}}"
                )
                .unwrap();
            }
            None => {
                writeln!(csv, "{t},,,{rate}").unwrap();
                writeln!(json, "{{\"time\": {t}, \"rate\": {rate}}}").unwrap();
            }
        }
    }
    folder.write("record.csv", &csv);
    folder.write("record.jsonl", &json);

    check(&folder.report("http://127.0.0.1:1", &["--file", "record.csv"]));
    check(&folder.report("http://127.0.0.1:1", &["--file", "record.jsonl"]));

    let text = printed(&folder.replay("http://127.0.0.1:1", &["--file", "record.csv"]));
    assert_eq!(
        text,
        printed(&folder.replay("http://127.0.0.1:1", &["--file", "record.jsonl"]))
    );
    for part in [
        "RECORDED",
        "WOULD BE",
        "jobs",
        "overload, setpoint seconds",
        "Where the true result was known, replays deviated by",
    ] {
        assert!(text.contains(part), "{text}\nlacks {part}");
    }
}

#[test]
fn what_cannot_be_replayed_is_refused_with_the_reason() {
    let folder = ReplayFolder::new();
    folder.write("order.csv", "time,rate\n20,1\n10,1\n");
    folder.write("signal.csv", "time,signal,value\n20,laod,1\n");
    folder.write(
        "short.csv",
        "time,signal,value,rate\n20,load,1,1\n40,load,1,1\n",
    );
    folder.write("none.toml", "[knobs]\nrps = 1\n");

    folder.refused(
        &["--file", "order.csv"],
        4,
        "order.csv: line 3: time: 10 is before 20",
    );
    folder.refused(
        &["--file", "signal.csv"],
        4,
        "signal.csv: line 2: signal: \"laod\" is not a load of the policy; allowed are load",
    );
    folder.refused(
        &["--file", "short.csv"],
        4,
        "short.csv: load: has 2 samples",
    );
    folder.refused(&["--file", "absent.csv"], 3, "cannot read absent.csv");
    folder.refused(
        &[
            "--from",
            "2026-01-02T00:00:00Z",
            "--to",
            "2026-01-01T00:00:00Z",
        ],
        4,
        "the range is empty",
    );
    folder.refused(&["--step", "0"], 2, "1..=300");
    folder.refused(
        &["--file", "order.csv", "--from", "6h"],
        2,
        "cannot be used with",
    );
    folder.refused(&["--from", "1h"], 69, "cannot be reached");
    let policy = |name: &str| {
        let mut command = Command::new(&*PROGRAM);
        command
            .env_clear()
            .current_dir(folder.0.path())
            .args(["replay", "--file", "order.csv", "--policy", name])
            .output()
            .unwrap()
    };
    assert_eq!(policy("gone.toml").status.code(), Some(3));
    let none = policy("none.toml");
    assert_eq!(none.status.code(), Some(4));
    assert!(
        printed(&none).contains("none.toml has no [[signal]]"),
        "{}",
        printed(&none)
    );
}
