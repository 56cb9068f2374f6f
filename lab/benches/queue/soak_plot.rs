//! The curve of a soak: delays, and memory beside the tables of live jobs, by minutes.

use flyball::plot::{
    self, Axes, BASELINE_COLOR, GOVERNED_COLOR, PlotArea, PlotResult, SETPOINT_COLOR,
};
use plotters::prelude::*;

const HEIGHT: u32 = 480;

/// The pixel at which the names of the lines begin.
const NAMES_X: i32 = 430;

/// The figures of one minute.
pub struct SoakMinute {
    pub jobs_per_s: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    pub waiting: i64,
    pub worker_mib: f64,
    pub hot_mib: f64,
    pub log_per_job: f64,
    pub commits_per_job: f64,
    /// Microseconds of processor time for each job.
    pub postgres_us: f64,
    pub worker_us: f64,
}

/// A line of a panel: name, colour, figure of a minute.
type Line = (&'static str, RGBColor, fn(&SoakMinute) -> f64);

/// Draws the minutes as SVG.
pub fn draw(minutes: &[SoakMinute]) -> Result<String, String> {
    plot::svg(HEIGHT, |root| {
        let (upper, lower) = root.split_vertically(HEIGHT / 2);
        panel(
            &upper,
            minutes,
            "milliseconds from enqueue to start",
            &[
                ("p50", GOVERNED_COLOR, |minute| minute.p50_ms),
                ("p99", BASELINE_COLOR, |minute| minute.p99_ms),
            ],
        )?;
        panel(
            &lower,
            minutes,
            "MiB",
            &[
                ("memory of the worker", GOVERNED_COLOR, |minute| {
                    minute.worker_mib
                }),
                ("tables of live jobs", SETPOINT_COLOR, |minute| {
                    minute.hot_mib
                }),
            ],
        )
    })
}

fn panel(area: &PlotArea, minutes: &[SoakMinute], title: &str, lines: &[Line]) -> PlotResult {
    let highest = lines
        .iter()
        .flat_map(|(_, _, figure)| minutes.iter().map(figure))
        .fold(0.0, f64::max);
    let axes = Axes {
        end: minutes.len() as f64,
        x_labels: 13,
        x_desc: "minutes",
        x_format: &|minute| format!("{minute:.0}"),
        y_labels: 5,
        y_format: &plot::decimals,
    };
    let mut chart = axes.panel(area, 0.0..1.1 * highest)?;
    for (_, colour, figure) in lines {
        let points = minutes
            .iter()
            .zip(1..)
            .map(|(minute, n)| (f64::from(n), figure(minute)));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    let names: Vec<_> = lines
        .iter()
        .map(|(name, colour, _)| (*name, *colour))
        .collect();
    plot::heading(area, title, NAMES_X, &names)
}
