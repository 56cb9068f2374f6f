//! The governor's last decisions as a table: one row each, one column for every term.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::cli::output;
use crate::governor::Decision;
use crate::throttle::RateLimit;

/// The columns before the terms.
const LEADING_COLUMNS: [&str; 6] = ["AT", "RPS", "BEFORE", "MODE", "BREAKER", "LIMITING"];
/// The column after the terms.
const TRAILING_COLUMN: &str = "REASON";

/// Prints one line per decision, however wide the terminal is, because rows broken into many lines
/// cannot be compared.
pub(super) fn show(decisions: &[Decision]) -> anyhow::Result<()> {
    let terms: BTreeSet<&str> = decisions
        .iter()
        .filter_map(|one| one.terms.as_object())
        .flatten()
        .map(|(name, _)| name.as_str())
        .collect();
    let header: Vec<String> = LEADING_COLUMNS
        .iter()
        .chain(&terms)
        .chain([&TRAILING_COLUMN])
        .map(|title| (*title).to_owned())
        .collect();
    let rows = decisions
        .iter()
        .map(|one| row(one, &terms))
        .collect::<Vec<_>>();
    let mut wide = vec![0; header.len()];
    for line in std::iter::once(&header).chain(&rows) {
        for (width, cell) in wide.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in std::iter::once(&header).chain(&rows) {
        let cells: Vec<String> = line
            .iter()
            .zip(&wide)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        output::line(cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn row(one: &Decision, terms: &BTreeSet<&str>) -> Vec<String> {
    let word = |value: Value| value.as_str().unwrap_or_default().to_owned();
    let first = [
        format!("{:.0}", one.at),
        output::rate(RateLimit::new(one.rps)),
        output::rate(one.previous_rps),
        one.mode.as_str().to_owned(),
        word(serde_json::to_value(one.breaker).unwrap_or_default()),
        one.limiting.clone(),
    ];
    let terms = terms
        .iter()
        .map(|name| one.terms.get(name).map_or_else(String::new, format_term));
    first
        .into_iter()
        .chain(terms)
        .chain([one.reason.clone()])
        .collect()
}

/// Returns a term as text for people.
fn format_term(value: &Value) -> String {
    match value {
        Value::Number(n) => crate::governor::explain::number(n.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => text.clone(),
        Value::Array(list) => list.iter().map(format_term).collect::<Vec<_>>().join(","),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governor::Plan;
    use crate::throttle::{Mode, RateLimit};

    #[test]
    fn every_term_has_its_column_and_a_term_that_is_missing_leaves_it_empty() {
        let terms = [
            ("e", serde_json::json!(0.5)),
            ("clamps", serde_json::json!(["slew", "max"])),
        ];
        let plan = Plan {
            rps: 3.0,
            limiting: "load".into(),
            reason: "because".into(),
            terms: terms.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Plan::default()
        };
        let one = Decision::new(
            "reindex",
            1_700_000_000.0,
            &plan,
            RateLimit::Stopped,
            Mode::Shadow,
        );
        let names = BTreeSet::from(["clamps", "e", "x"]);
        let expected = [
            "2023-11-14T22:13:20Z",
            "3",
            "stopped",
            "shadow",
            "closed",
            "load",
            "slew,max",
            "0.5",
            "",
            "because",
        ];
        assert_eq!(row(&one, &names), expected);
    }
}
