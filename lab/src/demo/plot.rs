//! The plot of a run: load against its setpoint with the overload shaded, and the rate on a log
//! axis.

use std::path::Path;

use anyhow::Context;
use flyball::plot::{
    self, Axes, BASELINE_COLOR, GOVERNED_COLOR, INK_COLOR, OVERLOAD_COLOR, Panel, PlotArea,
    PlotResult, SETPOINT_COLOR,
};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::PlotOptions;
use super::report::{DemoReport, OVERLOAD, Point};

const HEIGHT: u32 = 600;
/// Pixel at which the names of the lines begin.
const NAMES_X: i32 = 430;

/// Draws the reports that the options name.
pub fn plot(options: &PlotOptions) -> anyhow::Result<()> {
    let report = read(&options.report)?;
    let against = options.against.as_deref().map(read).transpose()?;
    draw(&report, against.as_ref(), &options.out)
}

fn read(path: &Path) -> anyhow::Result<DemoReport> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{} is not a report of `flyball-lab demo`", path.display()))
}

/// Draws one report, or two to compare.
pub fn draw(report: &DemoReport, against: Option<&DemoReport>, out: &Path) -> anyhow::Result<()> {
    let (first, second) = match report.settings.governor.as_str() {
        "on" => (GOVERNED_COLOR, BASELINE_COLOR),
        _ => (BASELINE_COLOR, GOVERNED_COLOR),
    };
    let runs: Vec<_> = std::iter::once((report, first))
        .chain(against.map(|other| (other, second)))
        .collect();
    let svg = plot::svg(HEIGHT, |root| {
        let (upper, lower) = root.split_vertically(HEIGHT / 2);
        load_panel(&upper, &runs)?;
        rate_panel(&lower, &runs)
    });
    std::fs::write(out, svg.map_err(anyhow::Error::msg)?)
        .with_context(|| format!("writing {}", out.display()))
}

fn load_panel(area: &PlotArea, runs: &[(&DemoReport, RGBColor)]) -> PlotResult {
    let settings = &runs[0].0.settings;
    let (end_s, highest) = bounds(runs, |p| p.load);
    let top = (1.08 * highest).max(2.5 * settings.setpoint);
    let axes = Axes {
        end: end_s,
        x_labels: 0,
        x_desc: "",
        x_format: &plot::decimals,
        y_labels: 5,
        y_format: &plot::decimals,
    };
    let mut chart = axes.panel(area, 0.0..top)?;
    for (run, _) in runs.iter().rev() {
        let limit = OVERLOAD * run.settings.setpoint;
        for part in over(&run.course, limit) {
            let outline = part
                .iter()
                .copied()
                .chain([(part[part.len() - 1].0, limit), (part[0].0, limit)]);
            chart.draw_series(std::iter::once(Polygon::new(
                outline.collect::<Vec<_>>(),
                OVERLOAD_COLOR.mix(0.28),
            )))?;
        }
    }
    plot::setpoint(&mut chart, end_s, settings.setpoint)?;
    for (run, colour) in runs.iter().rev() {
        chart.draw_series(LineSeries::new(
            run.course.iter().map(|p| (p.t_s, p.load)),
            colour.stroke_width(2),
        ))?;
    }
    harder(&mut chart, settings.harder_after_s, end_s, (0.0, top))?;
    heading(
        area,
        "load of the search store",
        runs,
        &[("setpoint", SETPOINT_COLOR), ("overload", OVERLOAD_COLOR)],
    )
}

fn rate_panel(area: &PlotArea, runs: &[(&DemoReport, RGBColor)]) -> PlotResult {
    let (end_s, highest) = bounds(runs, |p| p.rate.max(p.rps.unwrap_or(0.0)));
    let (bottom, top) = (1.0, (1.5 * highest).max(100.0));
    let mut chart = rates(area, end_s, (bottom..top).log_scale())?;
    for (run, colour) in runs.iter().rev() {
        let knob = run
            .course
            .iter()
            .filter_map(|p| Some((p.t_s, p.rps.filter(|rps| *rps >= 0.0)?.max(bottom))));
        chart.draw_series(LineSeries::new(knob, colour.mix(0.45).stroke_width(1)))?;
        let rate = run.course.iter().map(|p| (p.t_s, p.rate.max(bottom)));
        chart.draw_series(LineSeries::new(rate, colour.stroke_width(2)))?;
    }
    harder(
        &mut chart,
        runs[0].0.settings.harder_after_s,
        end_s,
        (bottom, top),
    )?;
    heading(
        area,
        "documents indexed per second (thin: the knob)",
        runs,
        &[],
    )
}

/// Draws a panel of rates over seconds.
pub(super) fn rates<'a, 'b, Y>(
    area: &'a PlotArea<'b>,
    end_s: f64,
    values: Y,
) -> PlotResult<Panel<'a, 'b, Y::CoordDescType>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let axes = Axes {
        end: end_s,
        x_labels: 11,
        x_desc: "seconds",
        x_format: &|t_s| format!("{t_s:.0}"),
        y_labels: 11,
        y_format: &|rate| format!("{rate:.0}"),
    };
    axes.panel(area, values)
}

/// Draws a vertical line at the time from which the documents are harder.
fn harder<Y>(chart: &mut Panel<Y>, at_s: f64, end_s: f64, (bottom, top): (f64, f64)) -> PlotResult
where
    Y: Ranged<ValueType = f64>,
{
    chart.draw_series(DashedLineSeries::new(
        [(at_s, bottom), (at_s, top)],
        3,
        4,
        INK_COLOR.stroke_width(1),
    ))?;
    plot::note(chart, end_s, (at_s, top), "documents ten times harder")
}

fn heading(
    area: &PlotArea,
    title: &str,
    runs: &[(&DemoReport, RGBColor)],
    more: &[(&str, RGBColor)],
) -> PlotResult {
    let runs = runs.iter().map(|(run, colour)| {
        let name = if run.settings.governor == "on" {
            "governed".to_owned()
        } else {
            format!("fixed at {:.0}/s", run.settings.rps)
        };
        (name, *colour)
    });
    let more = more
        .iter()
        .map(|(name, colour)| ((*name).to_owned(), *colour));
    let names: Vec<_> = runs.chain(more).collect();
    plot::heading(area, title, NAMES_X, &names)
}

fn bounds(runs: &[(&DemoReport, RGBColor)], of: impl Fn(&Point) -> f64) -> (f64, f64) {
    let end_s = runs
        .iter()
        .map(|(run, _)| run.settings.seconds)
        .fold(1.0, f64::max);
    let highest = runs
        .iter()
        .flat_map(|(run, _)| &run.course)
        .map(of)
        .fold(0.0, f64::max);
    (end_s, highest)
}

/// Returns the stretches of a course above a limit, with interpolated crossings.
fn over(course: &[Point], limit: f64) -> Vec<Vec<(f64, f64)>> {
    let mut parts = Vec::new();
    let mut part: Vec<(f64, f64)> = Vec::new();
    for pair in course.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        let crossing = || a.t_s + (b.t_s - a.t_s) * (limit - a.load) / (b.load - a.load);
        match (a.load > limit, b.load > limit) {
            (false, true) => part = vec![(crossing(), limit), (b.t_s, b.load)],
            (true, true) => {
                if part.is_empty() {
                    part.push((a.t_s, a.load));
                }
                part.push((b.t_s, b.load));
            }
            (true, false) => {
                part.push((crossing(), limit));
                parts.push(std::mem::take(&mut part));
            }
            (false, false) => {}
        }
    }
    parts.extend((part.len() > 1).then_some(part));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(t_s: f64, load: f64) -> Point {
        Point {
            t_s,
            load,
            rate: 0.0,
            rps: None,
        }
    }

    #[test]
    fn stretches_above_the_limit_begin_and_end_where_it_is_crossed() {
        let course = [
            point(0.0, 0.0),
            point(1.0, 2.0),
            point(2.0, 0.0),
            point(3.0, 0.0),
            point(4.0, 4.0),
        ];

        let parts = over(&course, 1.0);

        assert_eq!(
            parts,
            [
                vec![(0.5, 1.0), (1.0, 2.0), (1.5, 1.0)],
                vec![(3.25, 1.0), (4.0, 4.0)]
            ]
        );
        assert!(over(&[], 1.0).is_empty());
    }
}
