//! Tables for people, JSON for programs.

use crate::throttle::RateLimit;
use std::fmt::Display;
use std::io::{ErrorKind, Write};

use anyhow::Context as _;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Prints one line for people.
macro_rules! say {
    ($($text:tt)*) => { $crate::cli::output::line(format_args!($($text)*))? };
}
pub(super) use say;

/// Tells people one line on standard error.
macro_rules! tell {
    ($($text:tt)*) => { $crate::cli::output::aside(format_args!($($text)*)) };
}
pub(super) use tell;

/// Prints `value` as indented JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    write(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints one line; characters that could control a terminal are written as escapes.
pub(super) fn line(text: impl Display) -> anyhow::Result<()> {
    write(&(clean(&text.to_string()) + "\n"))
}

/// Prints one of the program's own texts as it is.
pub(super) fn text(text: &str) -> anyhow::Result<()> {
    write(text)
}

/// Writes to standard output. The program ends quietly if the reader has closed it, as `head` does.
fn write(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        done => done.context("cannot write to standard output"),
    }
}

/// Prints one line on standard error, as [`note`] does.
pub(super) fn aside(line: impl Display) {
    note(&format!("{line}\n"));
}

/// Writes to standard error. What cannot be written, because nobody reads any more or the terminal
/// has closed, is lost: the command goes on, and its exit code tells how it ended.
pub(super) fn note(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Returns the text with control characters, and those that change the direction of writing, as
/// escapes, because keys and errors come from anywhere and must not control the reader's terminal.
pub(super) fn clean(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars()
        .flat_map(|c| {
            if steers(c) {
                c.escape_default().collect()
            } else {
                vec![c]
            }
        })
        .collect()
}

/// Returns a text of at most `most` characters, cut with an ellipsis.
pub(super) fn clipped(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let kept = text.chars().take(most.saturating_sub(1));
    kept.chain(['…']).collect()
}

/// Prints a table without lines, as wide as the terminal allows.
pub(super) fn table(
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> anyhow::Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| clean(cell)));
    }
    let lines: Vec<String> = table
        .to_string()
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect();
    write(&lines.concat())
}

/// Returns a number of jobs for people, such as `1 job`.
pub(super) fn jobs(count: usize) -> String {
    let noun = if count == 1 { "job" } else { "jobs" };
    format!("{count} {noun}")
}

/// Returns a rate for people: few digits, `unlimited` for -1, `stopped` for 0.
pub(super) fn rate(limit: RateLimit) -> String {
    match limit {
        RateLimit::Unlimited => "unlimited".to_owned(),
        RateLimit::Stopped => "stopped".to_owned(),
        RateLimit::PerSecond(rps) => number(rps),
    }
}

/// Returns a number without decimals from 100 on, and with at most three below; one that they would
/// make 0, or nearly so, has three digits.
pub(super) fn number(value: f64) -> String {
    if value >= 100.0 {
        return format!("{value:.0}");
    }
    let decimals = match value {
        small if small > 0.0 && small < 0.01 => (2.0 - small.log10().floor()) as usize,
        _ => 3,
    };
    let text = format!("{value:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::{RateLimit, clean, clipped, jobs, rate};

    #[test]
    fn a_long_text_is_cut_and_says_so() {
        assert_eq!(clipped("short", 5), "short");
        assert_eq!(clipped("äöüßé!", 5), "äöüß…");
    }

    #[test]
    fn one_job_is_no_plural() {
        assert_eq!([0, 1, 2].map(jobs), ["0 jobs", "1 job", "2 jobs"]);
    }

    #[test]
    fn what_could_steer_a_terminal_is_written_as_an_escape() {
        assert_eq!(
            clean("a\u{1b}[2Jb\n\u{202e}c\td"),
            r"a\u{1b}[2Jb\n\u{202e}c\td"
        );
        assert_eq!(clean("Jürgen 😀 \"x\" \\"), "Jürgen 😀 \"x\" \\");
    }

    #[test]
    fn rates_are_short_and_special_ones_are_words() {
        let texts: Vec<String> = [-1.0, 0.0, 0.0001, 1.0 / 3600.0, 0.05, 2.5, 40.0, 1234.5]
            .into_iter()
            .map(|rps| rate(RateLimit::new(rps)))
            .collect();
        assert_eq!(
            texts,
            [
                "unlimited",
                "stopped",
                "0.0001",
                "0.000278",
                "0.05",
                "2.5",
                "40",
                "1234"
            ]
        );
    }
}
