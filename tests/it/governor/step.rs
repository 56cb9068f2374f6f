//! `flyball governor step` driven by another program: one line in, one line out, while the pipe
//! stays open.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{PROGRAM, ROOT};

/// The parameters used by the independent implementation of the vectors.
const POLICY: &str = "
[knobs]
rps = 10.0
min = 0.1
max = 1000.0
safe_rps = 0.01

[[signal]]
name = \"mongo\"
query = \"q\"
setpoint = 2.0
lag_s = 60

[governor]
confirm_s = 0
late_gaps = 1000000
gain = 1.2
restart = 0.6
duration_step = 1000000
durations_check = false
";

/// A running filter with its pipes.
struct Filter {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _folder: tempfile::TempDir,
}

impl Filter {
    fn start(policy: &str) -> Self {
        let (folder, path) = file(policy);
        let mut child = command(&path).spawn().unwrap();
        let (input, output) = (
            child.stdin.take().unwrap(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self {
            child,
            input,
            output,
            _folder: folder,
        }
    }

    /// Sends one line and reads one line before the next.
    fn step(&mut self, line: &str) -> Value {
        self.input
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        serde_json::from_str(&answer)
            .unwrap_or_else(|error| panic!("{error}: {line} gave {answer:?}"))
    }

    /// Ends the input; expects no further output and success.
    fn end(mut self) {
        drop(self.input);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut self.output, &mut rest).unwrap();
        assert_eq!(
            (rest.as_str(), self.child.wait().unwrap().code()),
            ("", Some(0))
        );
    }
}

fn file(policy: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, policy).unwrap();
    (folder, path)
}

/// Runs without a database, Redis or settings.
fn command(policy: &std::path::Path) -> Command {
    let mut command = Command::new(PROGRAM.as_path());
    command
        .args(["governor", "step", "--policy"])
        .arg(policy)
        .env_clear();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    // With an invalid policy it reads no input, so its end of the pipe may already be closed.
    let _ = pipe.write_all(input);
    drop(pipe);
    child.wait_with_output().unwrap()
}

fn vectors(series: &str) -> Vec<Value> {
    let path = Path::new(ROOT).join("src/governor/testdata/vectors.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    vectors[series].as_array().unwrap().clone()
}

/// Formats a row of the vectors as input.
fn line(row: &Value) -> String {
    let samples = row["new"]["mongo"].as_array().into_iter().flatten();
    let reading = |pair: &Value| json!({ "signal": "mongo", "value": pair[1], "at": pair[0] });
    json!({
        "now": row["now"],
        "readings": samples.map(reading).collect::<Vec<_>>(),
        "achieved_rps": row["ach"],
        "limiting_share": row["limiting"].as_f64().unwrap_or(1.0),
        "mean_duration_s": row["dur"],
        "completed": 0,
        "rejected": 0,
        "knob_rps": null,
    })
    .to_string()
}

#[track_caller]
fn follows(policy: &str, series: &str) {
    let mut filter = Filter::start(policy);
    for (n, row) in vectors(series).iter().enumerate() {
        let plan = filter.step(&line(row));
        let (rps, expected) = (plan["rps"].as_f64().unwrap(), row["knob"].as_f64().unwrap());
        assert!(
            (rps - expected).abs() <= 1e-6 * expected.abs().max(1e-3),
            "{series} row {n}: {rps}, expected {expected}: {plan}"
        );
        assert_eq!(
            plan["breaker"] == "open",
            row["state"] == "open",
            "{series} row {n}: {plan}"
        );
        let keys: Vec<&String> = plan.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["breaker", "limiting", "reason", "rps", "terms"]);
        assert!(
            plan["reason"].as_str().unwrap().len() > 10 && plan["terms"]["u"].is_f64(),
            "{plan}"
        );
    }
    filter.end();
}

#[test]
fn the_program_answers_the_vectors_line_by_line() {
    follows(POLICY, "first_ticks");
    follows(POLICY, "idle");
    follows(
        &POLICY.replace("late_gaps", "durations = true\nlate_gaps"),
        "durations",
    );
}

#[test]
fn a_line_that_cannot_be_read_is_answered_and_changes_nothing() {
    let rows = vectors("first_ticks");
    let bad: [&[u8]; 9] = [
        b"{",
        b"nonsense",
        b"\xff\xfe{}",
        b"{\"now\":NaN}",
        b"[]",
        b"{\"now\":\"soon\"}",
        b"{\"now\":1e99,\"readings\":[]}",
        b"{\"now\":0}",
        b"{\"now\":1e6,\"readings\":[{\"signal\":\"another\",\"value\":1,\"at\":1}]}",
    ];
    let mut input = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        input.extend_from_slice(line(row).as_bytes());
        input.extend_from_slice(b"\n \r\n");
        input.extend_from_slice(bad[n % bad.len()]);
        input.push(b'\n');
    }
    input.extend_from_slice("x".repeat(3 << 20).as_bytes());

    let (_folder, path) = file(POLICY);
    let printed = run(&mut command(&path), &input);

    assert_eq!(
        (printed.status.code(), printed.stderr.as_slice()),
        (Some(0), b"".as_slice())
    );
    let answers: Vec<Value> = String::from_utf8(printed.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        answers.len(),
        2 * rows.len() + 1,
        "blank lines are not answered, all others are"
    );
    for (n, (pair, row)) in answers.chunks(2).zip(&rows).enumerate() {
        let (rps, expected) = (
            pair[0]["rps"].as_f64().unwrap(),
            row["knob"].as_f64().unwrap(),
        );
        assert!(
            (rps / expected - 1.0).abs() < 1e-6,
            "row {n}: {rps}, expected {expected}"
        );
        assert_eq!(pair[1]["error"]["line"], json!(3 * n + 3), "{}", pair[1]);
        assert!(
            pair[1]["error"]["message"].as_str().unwrap().len() > 10
                && pair[1]["error"]["field"].is_string()
        );
    }
    let last = answers.last().unwrap();
    assert_eq!(
        last["error"]["message"],
        "the line is too long; at most 1048576 bytes are allowed"
    );
}

#[test]
fn a_refused_share_from_the_lines_themselves_governs() {
    let policy = "[knobs]\nrps = 80.0\nmin = 0.1\nmax = 1000.0\n[[signal]]\nname = \"refused\"\nsource = \"feedback\"\nkind = \"ratio\"\nsetpoint = 0.01\n";
    let mut filter = Filter::start(policy);
    let mut rate = 80.0;
    for n in 0..60u32 {
        // A server that handles 40 requests per second.
        let refused = f64::max(0.0, rate - 40.0);
        let line = json!({ "now": 5 * n, "achieved_rps": rate, "limiting_share": 1, "completed": 5.0 * (rate - refused), "rejected": 5.0 * refused });
        rate = filter.step(&line.to_string())["rps"].as_f64().unwrap();
    }
    assert!((30.0..=44.0).contains(&rate), "{rate}");
    filter.end();
}

#[test]
fn a_persons_rate_is_obeyed_and_not_raised() {
    let mut filter = Filter::start(POLICY);
    let line = |now: u32, knob: Value| json!({ "now": now, "readings": [{ "signal": "mongo", "value": 0.5, "at": now }], "achieved_rps": 5, "limiting_share": 1, "knob_rps": knob });
    filter.step(&line(5, Value::Null).to_string());
    let plan = filter.step(&line(10, json!(3)).to_string());
    assert_eq!(
        (&plan["rps"], &plan["limiting"]),
        (&json!(3.0), &json!("person")),
        "{plan}"
    );
    let plan = filter.step(&line(15, json!(0)).to_string());
    assert_eq!(
        (&plan["rps"], &plan["limiting"]),
        (&json!(0.0), &json!("person")),
        "{plan}"
    );
    filter.end();
}

#[test]
fn the_state_can_be_left_in_a_file_and_taken_up_again() {
    let rows = vectors("first_ticks");
    let (folder, path) = file(POLICY);
    let state = folder.path().join("state.json");
    for (n, row) in rows.iter().enumerate() {
        let printed = run(
            command(&path).arg("--state").arg(&state),
            line(row).as_bytes(),
        );
        let plan: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let (rps, expected) = (plan["rps"].as_f64().unwrap(), row["knob"].as_f64().unwrap());
        assert!(
            (rps / expected - 1.0).abs() < 1e-6,
            "row {n}: {rps}, expected {expected}"
        );
    }
    std::fs::write(&state, "{}").unwrap();
    let printed = run(command(&path).arg("--state").arg(&state), b"");
    let message = String::from_utf8(printed.stderr).unwrap();
    assert_eq!(printed.status.code(), Some(4), "{message}");
    assert!(message.contains("is not a governor state"), "{message}");
}

#[test]
fn a_policy_that_is_wrong_is_refused_with_everything_that_is_wrong() {
    let refused = |policy: &str, code: i32, words: &[&str]| {
        let (_folder, path) = file(policy);
        let printed = run(&mut command(&path), b"{\"now\":1}\n");
        let message = String::from_utf8(printed.stderr).unwrap();
        assert_eq!(
            (printed.status.code(), printed.stdout.len()),
            (Some(code), 0),
            "{message}"
        );
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    };
    refused(
        "[knobs]\nrps = \"ten\"\nmin = -1\n[[signal]]\nname = \"a b\"\nquery = \"q\"\nsetpoint = 0\n[governor]\ngian = 2\n",
        78,
        &[
            "mine.toml:2: knobs.rps: must be a number",
            "mine.toml:3: knobs.min: must be a number",
            "mine.toml:5: signal.name: must be letters, digits and . _ -",
            "mine.toml:7: signal.setpoint: must be a number above 0",
            "mine.toml:9: governor.gian: is not a known field; did you mean \"gain\"?",
        ],
    );
    refused("[knobs]\nrps = 1\n", 78, &["mine.toml: signal: is missing"]);
    refused("[knobs\n", 78, &["mine.toml:1: "]);

    let printed = run(
        &mut command(std::path::Path::new("/does/not/exist.toml")),
        b"",
    );
    assert_eq!(printed.status.code(), Some(3), "{printed:?}");
    let (_folder, path) = file(POLICY);
    for (rps, code) in [("fast", 4), ("-2", 4), ("-1", 0)] {
        let printed = run(command(&path).args(["--rps", rps]), b"");
        assert_eq!(printed.status.code(), Some(code), "{rps}: {printed:?}");
    }
}
