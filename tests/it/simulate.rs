//! `flyball simulate`: the same table on every run, goals for the control law, and errors for
//! invalid input.

use std::process::{Command, Output};

use flyball::simulate::compare::{compare, sums};
use flyball::simulate::{Contender, Scenario, library};
use serde_json::Value;

use crate::support::PROGRAM;

fn simulate(args: &[&str]) -> Output {
    Command::new(PROGRAM.as_path())
        .arg("simulate")
        .args(args)
        .output()
        .expect("the program runs")
}

fn printed(output: &Output) -> (i32, String) {
    (
        output.status.code().unwrap(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// The columns of a table's row.
fn cells(line: &str) -> Vec<String> {
    line.trim_matches('|')
        .split('|')
        .map(|cell| cell.trim().to_owned())
        .collect()
}

#[test]
fn the_law_keeps_its_goals_on_fewer_days_than_the_page_reports() {
    let scenarios = library::scenarios().unwrap();
    let rows = compare(&scenarios, &[Contender::Flyball, Contender::Pid], 0, 3);
    let sums = sums(&rows);
    let ours = &sums[0];

    // Three days are noisier than twenty: the goals are 0.30, 0.90, 0.80 and 1.35 there.
    assert!(ours.overload_of_pid.unwrap() < 0.34, "{ours:?}");
    assert!(ours.throughput > 0.89 && ours.worst.0 > 0.77, "{ours:?}");
    assert!(ours.gain_spread.unwrap() < 1.5, "{ours:?}");
    let step = rows
        .iter()
        .find(|row| row.scenario == "S1" && row.controller == "flyball")
        .unwrap();
    assert!(
        step.mean.peak < 1.8 && step.mean.recovered_s.unwrap() < 150.0,
        "{step:?}"
    );
}

#[test]
#[ignore = "takes some minutes; make soak runs it"]
fn soak_the_page_has_the_tables_of_twenty_days_and_they_are_within_the_goals() {
    let output = simulate(&["--all", "--seeds", "20", "--markdown"]);
    let page = include_str!("../../docs/governor.md");
    let table = String::from_utf8_lossy(&output.stdout);
    let rows: Vec<&str> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .collect();
    assert!(rows.len() > 20, "{output:?}");
    for row in rows {
        assert!(page.contains(row), "docs/governor.md lacks\n{row}");
    }
    let rows = compare(
        &library::scenarios().unwrap(),
        &[Contender::Flyball, Contender::Pid],
        0,
        20,
    );
    let ours = &sums(&rows)[0];
    assert!(
        ours.overload_of_pid.unwrap() <= 0.30 && ours.throughput >= 0.9 && ours.worst.0 >= 0.8,
        "{ours:?}"
    );
    // The plant of the greatest gain has less overload since durations must prove themselves, and
    // the plant of the least gain as much as before, so the ratio is greater.
    assert!(ours.gain_spread.unwrap() <= 1.35, "{ours:?}");
}

#[test]
fn a_row_of_the_page_is_what_the_program_prints() {
    let page = include_str!("../../docs/governor.md");
    let output = simulate(&[
        "S5",
        "S6",
        "--seeds",
        "20",
        "--controllers",
        "flyball",
        "--markdown",
    ]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in ["| S5 | flyball |", "| S6 | flyball |"] {
        let row = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("no {name} in {text}"));
        assert!(
            page.contains(row),
            "docs/governor.md has other figures than\n{row}"
        );
    }
}

#[test]
fn the_same_days_are_the_same_on_every_run_and_other_days_are_not() {
    let run = |seed: &str| {
        let output = simulate(&["s10", "--seeds", "2", "--seed", seed, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output).1);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first = run("0");
    assert_eq!(first, run("0"));
    assert_ne!(first["rows"], run("7")["rows"]);
    let names: Vec<&str> = first["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["controller"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["flyball", "pid", "aimd", "fixed"]);
}

#[test]
fn a_key_of_the_law_changes_the_table_and_a_policy_brings_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("mine.toml");
    std::fs::write(&policy, "[knobs]\nrps = 1\n[governor]\ngain = 0.2\n").unwrap();
    let over = |args: &[&str]| {
        let all = [
            "S5",
            "--seeds",
            "1",
            "--controllers",
            "flyball",
            "--markdown",
        ];
        let output = simulate(&[&all, args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", printed(&output).1);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        cells(text.lines().find(|line| line.starts_with("| S5")).unwrap())
    };
    let usual = over(&[]);
    assert_ne!(over(&["--set", "gain=0.2"]), usual);
    assert_eq!(
        over(&["--set", "gain=0.2"]),
        over(&["--policy", policy.to_str().unwrap()])
    );
}

#[test]
fn a_plant_of_ones_own_is_run_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let (file, pictures) = (
        folder.path().join("mine.toml"),
        folder.path().join("pictures"),
    );
    let text = library::FILES[0]
        .1
        .replace("name = \"S1\"", "name = \"Mine\"")
        .replace("minutes = 80", "minutes = 30");
    std::fs::write(&file, text).unwrap();
    let output = simulate(&[
        file.to_str().unwrap(),
        "--seeds",
        "1",
        "--svg",
        pictures.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output).1);
    let svg = std::fs::read_to_string(pictures.join("mine.svg")).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("Mine: load in setpoints"));
}

#[test]
fn what_is_wrong_is_said_with_its_place_and_what_is_allowed() {
    let (code, words) = printed(&simulate(&["S99"]));
    assert!(
        code == 3
            && words.contains("no scenario and no file \"S99\"")
            && words.contains("S1, S1x30"),
        "{code}: {words}"
    );
    let (code, words) = printed(&simulate(&["S1", "--policy", "none.toml"]));
    assert!(
        code == 3 && words.contains("cannot read none.toml: No such file"),
        "{code}: {words}"
    );
    let (code, words) = printed(&simulate(&["S1", "--set", "gain=lots"]));
    assert!(
        code == 4 && words.contains("--set \"gain=lots\" is not KEY=VALUE"),
        "{code}: {words}"
    );
    let (code, words) = printed(&simulate(&["S1", "--set", "gain=99"]));
    assert!(
        code == 4 && words.contains("governor.gain: must be a number from 0.05 to 10, not 99"),
        "{code}: {words}"
    );
    let (code, words) = printed(&simulate(&["S1", "--set", "speed=1"]));
    assert!(
        code == 4 && words.contains("governor.speed: is not a known field; allowed: actuator"),
        "{code}: {words}"
    );
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("mine.toml");
    let path = policy.to_str().unwrap();
    for (text, expected) in [
        (
            "[governor]\ngain = 99\n",
            ":2: governor.gain: must be a number",
        ),
        ("governor = 5\n", ":1: governor: must be a table"),
        ("[governor\ngain = 1\n", ":1: "),
    ] {
        std::fs::write(&policy, text).unwrap();
        let (code, words) = printed(&simulate(&["S1", "--policy", path, "--set", "gain=1"]));
        assert!(
            code == 78 && words.contains(&format!("{path}{expected}")),
            "{code}: {words}"
        );
    }
    let (code, words) = printed(&simulate(&["S1", "--controllers", "flyball,me"]));
    assert!(
        code == 2 && words.contains("allowed are flyball,pid,aimd,fixed"),
        "{code}: {words}"
    );
    assert_eq!(printed(&simulate(&[])).0, 2);

    let bad = |from: &str, to: &str| {
        Scenario::parse(&library::FILES[0].1.replace(from, to), "mine.toml")
            .unwrap_err()
            .to_string()
    };
    for (from, to, expected) in [
        (
            "minutes = 80",
            "minutes = 0",
            "scenario.minutes: 0 is not allowed; use 1 to",
        ),
        (
            "minutes = 80",
            "minutes = 80\nfoo = 1",
            "unknown field `foo`",
        ),
        (
            "step_minute = 17",
            "step_minute = 99",
            "scenario.step_minute: is not within the scenario",
        ),
        (
            "rps = 100",
            "rps = 0",
            "knobs.rps: 0 is not allowed; use a number above 0",
        ),
        (
            "max = 100",
            "max = 10",
            "knobs.max: 10 is not allowed; use at least knobs.rps",
        ),
        (
            "setpoint = 2.0",
            "setpoint = -2.0",
            "signal.setpoint: must be a number above 0",
        ),
        (
            "db:load",
            "other:load",
            "signal.query: \"other:load\" of db-load is not a series of this plant",
        ),
        (
            "cost = 0.01",
            "cost = 0",
            "resource.cost: 0 of db is not allowed; use 1e-9 to",
        ),
        (
            "[17, 1], [17, 10]",
            "[17, 1], [3, 10]",
            "resource.cost_factor: of db has minutes that are negative or not in order",
        ),
    ] {
        let answer = bad(from, to);
        assert!(
            answer.starts_with("mine.toml: ") && answer.contains(expected),
            "{to}: {answer}"
        );
    }
}
