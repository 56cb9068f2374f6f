//! The needs of loads as a table in Markdown. Pure, but for the printing.

use super::model::{Load, Need};

/// Compute what a load needs, by the model of docs/scale.md
///
/// Without options it prints the table of that page.
#[derive(clap::Args)]
pub struct CapacityOptions {
    /// Jobs a day; 10 million, 100 million and a billion if it is left out
    #[arg(long)]
    jobs_per_day: Option<f64>,
    /// Rate of the busiest second over the mean
    #[arg(long, default_value_t = 3.0)]
    peak: f64,
    /// Jobs of one claim at the peak
    #[arg(long, default_value_t = 100.0, requires = "jobs_per_day")]
    batch: f64,
    /// Jobs that a lane has whenever it is found
    #[arg(long, default_value_t = 20.0)]
    jobs_per_lane: f64,
    /// Seconds that a handler takes
    #[arg(long, default_value_t = 0.1)]
    job_s: f64,
    /// Microseconds of processor time that a handler takes
    #[arg(long, default_value_t = 180.0)]
    handler_us: f64,
    /// Bytes of a job's arguments
    #[arg(long, default_value_t = 200.0)]
    args_bytes: f64,
    /// Days for which finished jobs are kept
    #[arg(long, default_value_t = 7.0, requires = "jobs_per_day")]
    kept_days: f64,
    /// Slots of one worker process: the setting concurrency
    #[arg(long, default_value_t = 500.0, requires = "jobs_per_day")]
    slots: f64,
    /// Ready jobs at the longest
    #[arg(long, default_value_t = 1e6, requires = "jobs_per_day")]
    backlog: f64,
}

/// The loads of the page: jobs a day, jobs of a claim, days kept, slots, waiting jobs.
const OF_THE_PAGE: [[f64; 5]; 3] = [
    [1e7, 5.0, 7.0, 64.0, 1e5],
    [1e8, 20.0, 7.0, 200.0, 1e6],
    [1e9, 100.0, 1.0, 500.0, 5e6],
];

/// Prints the table.
pub fn print(options: &CapacityOptions) {
    for line in lines(&loads(options)) {
        println!("{line}");
    }
}

fn loads(options: &CapacityOptions) -> Vec<Load> {
    let load = |[jobs_per_day, batch, kept_days, slots, backlog]: [f64; 5]| Load {
        jobs_per_day,
        peak: options.peak,
        batch,
        jobs_per_lane: options.jobs_per_lane,
        job_s: options.job_s,
        handler_us: options.handler_us,
        args_bytes: options.args_bytes,
        kept_days,
        slots,
        backlog,
    };
    match options.jobs_per_day {
        Some(jobs_per_day) => vec![load([
            jobs_per_day,
            options.batch,
            options.kept_days,
            options.slots,
            options.backlog,
        ])],
        None => OF_THE_PAGE.into_iter().map(load).collect(),
    }
}

/// A figure of a load and of what it needs.
type Figure = fn(&Load, &Need) -> f64;

/// The lines of the table, one for each quantity.
const LINES: [(&str, Figure); 21] = [
    ("jobs a day", |load, _| load.jobs_per_day),
    ("jobs of a claim at the peak (assumed)", |load, _| {
        load.batch
    }),
    ("days kept (chosen)", |load, _| load.kept_days),
    ("slots of a process (chosen)", |load, _| load.slots),
    ("ready jobs at the longest (assumed)", |load, _| {
        load.backlog
    }),
    (
        "two cores with everything on them drain, jobs a second",
        |load, _| load.drained_on(2.0),
    ),
    ("jobs a second, mean", |_, need| need.mean_per_s),
    ("jobs a second, peak", |_, need| need.peak_per_s),
    ("Postgres: cores used at the peak", |_, need| {
        need.postgres_cores
    }),
    ("Postgres: cores to have", |_, need| need.postgres_planned),
    ("Postgres: commits a second at the peak", |_, need| {
        need.commits_per_s
    }),
    ("Postgres: log, MB a second at the peak", |_, need| {
        need.log_mb_per_s
    }),
    ("Postgres: log, GB a day", |_, need| need.log_gb_per_day),
    ("Postgres: finished jobs, GB", |_, need| need.kept_gb),
    ("workers: processes", |_, need| need.processes),
    ("workers: cores used at the peak", |_, need| {
        need.worker_cores
    }),
    ("workers: connections to Postgres", |_, need| {
        need.connections
    }),
    ("workers: statements a second when idle", |_, need| {
        need.idle_statements_per_s
    }),
    ("Redis: calls a second at the peak", |_, need| {
        need.redis_calls_per_s
    }),
    ("Redis: cores used at the peak", |_, need| need.redis_cores),
    ("age of depths with that backlog, s", |_, need| need.walk_s),
];

/// Returns the lines of the table.
fn lines(loads: &[Load]) -> Vec<String> {
    let line = |(name, figure): &(&str, Figure)| {
        let cells: Vec<String> = loads
            .iter()
            .map(|load| rounded(figure(load, &load.need())))
            .collect();
        format!("| {name} | {} |", cells.join(" | "))
    };
    LINES.iter().map(line).collect()
}

/// Returns a figure with three digits that count, and commas in large ones.
fn rounded(figure: f64) -> String {
    if figure >= 100.0 {
        let digits = format!("{figure:.0}");
        let mut text = String::new();
        for (n, digit) in digits.chars().enumerate() {
            if n > 0 && (digits.len() - n) % 3 == 0 {
                text.push(',');
            }
            text.push(digit);
        }
        return text;
    }
    let text = match figure {
        10.0.. => format!("{figure:.1}"),
        1.0.. => format!("{figure:.2}"),
        _ => format!("{figure:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct OptionsAlone {
        #[command(flatten)]
        options: CapacityOptions,
    }

    const PAGE: &str = include_str!("../../../docs/scale.md");

    #[test]
    fn the_table_of_the_page_is_that_of_the_model() {
        let alone = OptionsAlone::parse_from(["capacity"]);
        let lines = lines(&loads(&alone.options));
        let missing: Vec<&String> = lines.iter().filter(|line| !PAGE.contains(*line)).collect();
        assert!(missing.is_empty(), "docs/scale.md lacks {missing:#?}");
    }

    /// A load of the benchmark, of which only batches and lanes count.
    fn drain(batch: f64, jobs_per_lane: f64) -> Load {
        Load {
            jobs_per_day: 1.0,
            peak: 1.0,
            batch,
            jobs_per_lane,
            job_s: 0.0,
            handler_us: 0.0,
            args_bytes: 0.0,
            kept_days: 0.0,
            slots: 1.0,
            backlog: 0.0,
        }
    }

    #[test]
    fn the_checks_of_the_page_are_those_of_the_model() {
        let one = f64::INFINITY;
        let per_s = |batch, lane| 1e6 / drain(batch, lane).postgres_us();
        // The model's figure, the measured one, and true if the model was fitted to it.
        let checks = [
            ("one lane, batch 100", per_s(100.0, one), 66_257.0, true),
            ("one lane, batch 500", per_s(500.0, one), 79_813.0, true),
            ("10,000 lanes, batch 500", per_s(500.0, 7.2), 64_623.0, true),
            (
                "10,000 lanes, batch 100",
                per_s(100.0, 4.8),
                51_363.0,
                false,
            ),
            ("one lane, batch 1", per_s(1.0, one), 2_612.0, false),
            (
                "one lane, both cores of a calm machine",
                drain(500.0, one).drained_on(2.0),
                105_800.0,
                true,
            ),
            (
                "10,000 lanes, both cores of a calm machine",
                drain(500.0, 7.2).drained_on(2.0),
                80_000.0,
                false,
            ),
        ];
        let mut missing = Vec::new();
        for (name, model, measured, is_fitted) in checks {
            let off = (model / measured - 1.0) * 100.0;
            let fitted = if is_fitted { "fitted" } else { "no" };
            let (model, measured) = (rounded(model), rounded(measured));
            let line = format!("| {name} | {fitted} | {measured} | {model} | {off:+.1} % |");
            if !PAGE.contains(&line) {
                missing.push(line);
            }
            let most = if is_fitted { 1.0 } else { 16.0 };
            assert!(off.abs() <= most, "{name}: off by {off} %");
        }
        assert!(missing.is_empty(), "docs/scale.md lacks {missing:#?}");
    }

    #[test]
    fn figures_keep_three_digits() {
        let figures = [0.0374, 1.0, 12.5, 34_722.2, 1e9].map(rounded);
        assert_eq!(figures, ["0.037", "1", "12.5", "34,722", "1,000,000,000"]);
    }
}
