//! Tables for people, JSON for programs.

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Prints `value` as indented JSON.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// Prints a table without lines, as wide as the terminal lets it be.
pub(super) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for line in table.to_string().lines() {
        println!("{}", line.trim_end());
    }
}

/// A rate for people: few digits, `unlimited` for -1, `stopped` for 0.
pub(super) fn rate(rps: f64) -> String {
    if rps < 0.0 {
        "unlimited".to_owned()
    } else if rps == 0.0 {
        "stopped".to_owned()
    } else if rps >= 100.0 {
        format!("{rps:.0}")
    } else {
        let text = format!("{rps:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn rates_are_short_and_special_ones_are_words() {
        let said: Vec<String> = [-1.0, 0.0, 0.05, 2.5, 40.0, 1234.5].into_iter().map(rate).collect();
        assert_eq!(said, ["unlimited", "stopped", "0.05", "2.5", "40", "1234"]);
    }
}
