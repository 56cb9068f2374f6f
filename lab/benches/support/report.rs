//! Tables that grow line by line, so that a long run can be watched; as text for people or as
//! markdown for the docs.

use std::io::Write;

/// The arguments that choose the output.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Report {
    /// Print markdown
    #[arg(long)]
    markdown: bool,
    /// Passed by cargo and ignored
    #[arg(long, hide = true)]
    bench: bool,
}

/// A table whose head has been printed.
pub struct Table {
    markdown: bool,
    widths: Vec<usize>,
}

impl Report {
    /// Prints a line of text as it is.
    pub fn say(self, text: &str) {
        println!("{text}");
        let _ = std::io::stdout().flush();
    }

    /// Prints one line of a list.
    pub fn bullet(self, text: &str) {
        self.say(&format!("{}{text}", if self.markdown { "- " } else { "" }));
    }

    /// Prints a title and the head of a table.
    pub fn table(self, title: &str, columns: &[&str]) -> Table {
        let first = |place: usize| if place == 0 { 44 } else { 0 };
        let widths = columns
            .iter()
            .enumerate()
            .map(|(place, name)| name.chars().count().max(8).max(first(place)))
            .collect();
        let table = Table {
            markdown: self.markdown,
            widths,
        };
        if self.markdown {
            self.say(&format!("\n### {title}\n"));
        } else {
            self.say(&format!("\n== {title} =="));
        }
        table.row(columns.iter().map(|name| (*name).to_owned()));
        if self.markdown {
            let line: Vec<&str> = columns
                .iter()
                .enumerate()
                .map(|(place, _)| if place == 0 { "---" } else { "---:" })
                .collect();
            self.say(&format!("| {} |", line.join(" | ")));
        }
        table
    }
}

impl Table {
    /// Prints one line; the first cell is aligned left, all others right.
    pub fn row(&self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().collect();
        if self.markdown {
            println!("| {} |", cells.join(" | "));
        } else {
            let aligned: Vec<String> = cells
                .iter()
                .zip(&self.widths)
                .enumerate()
                .map(|(place, (cell, width))| {
                    if place == 0 {
                        format!("{cell:<width$}")
                    } else {
                        format!("{cell:>width$}")
                    }
                })
                .collect();
            println!("{}", aligned.join("  ").trim_end());
        }
        let _ = std::io::stdout().flush();
    }

    /// Prints a line with the error in place of the figures.
    pub fn failed(&self, what: &str, error: &anyhow::Error) {
        self.row([format!("{what}: failed: {error:#}")]);
    }
}

/// Returns the median; NaN of no values.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns a quantile by the nearest rank; NaN of no values.
pub fn quantile(values: impl IntoIterator<Item = f64>, at: f64) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
    sorted.sort_by(f64::total_cmp);
    let place = ((sorted.len() as f64 * at).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(place).copied().unwrap_or(f64::NAN)
}

/// Formats a rate or a count: `61,300`, or `-` if there is none.
pub fn count(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// Formats a ratio with two decimals.
pub fn ratio(value: f64) -> String {
    if value.is_finite() {
        format!("{value:.2}")
    } else {
        "-".to_owned()
    }
}

/// Formats a ratio beside its goal.
pub fn against(value: f64, goal: f64, at_least: bool) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let met = if at_least {
        value >= goal
    } else {
        value <= goal
    };
    let sign = if at_least { "≥" } else { "≤" };
    format!(
        "{value:.2} ({sign} {goal}: {})",
        if met { "met" } else { "missed" }
    )
}
