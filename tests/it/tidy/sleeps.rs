//! Sleeps in the integration tests: each says why real time must pass. To wait for a condition, a
//! test calls `support::eventually`; to see that nothing happens, it waits for something that would
//! happen later.

use super::sources::{files_under, is_at};

/// The beginning of the comment before a sleep, or behind it.
const MARK: &str = "// Real time:";

/// Helpers wait for others, and a slow fake is part of a scenario. This file has examples.
const EXEMPT: [&str; 4] = ["support/", "fakes/", "reindex/fakes.rs", "tidy/sleeps.rs"];

/// Returns the numbers of the lines with a sleep that does not say why.
fn unexplained(text: &str) -> Vec<usize> {
    let lines: Vec<&str> = text.lines().collect();
    let is_explained = |n: usize| {
        let comments = lines[..n].iter().rev().map(|line| line.trim_start());
        let mut before = comments.take_while(|line| line.starts_with("//"));
        lines[n].contains(MARK) || before.any(|line| line.starts_with(MARK))
    };
    (0..lines.len())
        .filter(|n| sleeps(lines[*n]) && !is_explained(*n))
        .map(|n| n + 1)
        .collect()
}

/// Returns true if a line calls a function that sleeps.
fn sleeps(line: &str) -> bool {
    ["sleep(", "sleep_until("].iter().any(|call| {
        line.match_indices(call).any(|(at, _)| {
            let before = &line[..at];
            let is_whole = before.is_empty() || before.ends_with([' ', ':']);
            is_whole && !before.ends_with("fn ")
        })
    })
}

#[test]
fn a_sleep_in_a_test_says_why_real_time_must_pass() {
    let (mut wrong, mut explained) = (Vec::new(), 0);
    for path in files_under(&["tests/it"]) {
        let name = path.to_string_lossy().replace('\\', "/");
        let (_, name) = name.rsplit_once("tests/it/").unwrap();
        if EXEMPT.iter().any(|pattern| is_at(name, pattern)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        explained += text.matches(MARK).count();
        wrong.extend(
            unexplained(&text)
                .iter()
                .map(|line| format!("{name}:{line}")),
        );
    }
    assert!(wrong.is_empty(), "sleeps without `{MARK}`: {wrong:#?}");
    assert!(explained > 20, "only {explained} sleeps were found");
}

#[test]
fn a_sleep_without_a_reason_is_found() {
    let explained =
        format!("{MARK} a reason\n// of two lines.\n    tokio::time::sleep(WINDOW).await;");
    assert_eq!(unexplained(&explained), [0; 0]);
    assert_eq!(
        unexplained(&format!("sleep(WINDOW).await; {MARK} so.")),
        [0; 0]
    );
    for code in [
        "// Because.\ntokio::time::sleep(WINDOW).await;",
        "{\n    sleep_until(end).await;",
        "x;\nstd::thread::sleep(WINDOW);",
    ] {
        assert_eq!(unexplained(code), [2], "{code}");
    }
    assert_eq!(
        unexplained("select pg_sleep(1)\nqueue.fall_asleep()\nasync fn sleep("),
        [0; 0]
    );
}
