//! The plot of a run: load against its setpoint with the overload shaded, and the rate on a log
//! axis.
//!
//! It has no background and uses colours of medium lightness, so that it is legible on light and
//! dark pages.

use std::path::Path;

use anyhow::Context;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PlotOptions;
use super::report::{DemoReport, OVERLOAD, Point};

const PLOT_SIZE: (u32, u32) = (960, 600);
pub(super) const INK_COLOR: RGBColor = RGBColor(0x7d, 0x85, 0x90);
const GOVERNED_COLOR: RGBColor = RGBColor(0x2f, 0x81, 0xf7);
const BASELINE_COLOR: RGBColor = RGBColor(0xdb, 0x6d, 0x28);
const OVERLOAD_COLOR: RGBColor = RGBColor(0xe5, 0x53, 0x4b);
const SETPOINT_COLOR: RGBColor = RGBColor(0x2d, 0xa4, 0x4e);

pub(super) type DemoArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;

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
        .with_context(|| format!("{} is not a report of `flyball demo`", path.display()))
}

/// Draws one report, or two to compare.
pub fn draw(report: &DemoReport, against: Option<&DemoReport>, out: &Path) -> anyhow::Result<()> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, PLOT_SIZE).into_drawing_area();
        let (upper, lower) = root.split_vertically(PLOT_SIZE.1 / 2);
        let first = if report.settings.governor == "on" {
            GOVERNED_COLOR
        } else {
            BASELINE_COLOR
        };
        let second = if first == GOVERNED_COLOR {
            BASELINE_COLOR
        } else {
            GOVERNED_COLOR
        };
        let runs: Vec<_> = std::iter::once((report, first))
            .chain(against.map(|a| (a, second)))
            .collect();
        load_panel(&upper, &runs)
            .and_then(|()| rate_panel(&lower, &runs))
            .map_err(|error| anyhow::anyhow!("drawing: {error}"))?;
        root.present()
            .map_err(|error| anyhow::anyhow!("drawing: {error}"))?;
    }
    std::fs::write(out, svg).with_context(|| format!("writing {}", out.display()))
}

type Rates<'a, 'b, Y> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<RangedCoordf64, <Y as AsRangedCoord>::CoordDescType>,
>;
pub(super) type DemoPlotResult = Result<(), Box<dyn std::error::Error>>;

fn load_panel(area: &DemoArea, runs: &[(&DemoReport, RGBColor)]) -> DemoPlotResult {
    let settings = &runs[0].0.settings;
    let (end_s, highest) = bounds(runs, |p| p.load);
    let top = (1.08 * highest).max(2.5 * settings.setpoint);
    let mut chart = ChartBuilder::on(area)
        .margin_top(34)
        .margin_right(16)
        .x_label_area_size(10)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end_s, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK_COLOR.mix(0.2))
        .axis_style(INK_COLOR)
        .label_style(("sans-serif", 13).into_font().color(&INK_COLOR))
        .x_labels(0)
        .y_labels(5)
        .draw()?;
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
    let setpoint = [(0.0, settings.setpoint), (end_s, settings.setpoint)];
    chart.draw_series(DashedLineSeries::new(
        setpoint,
        6,
        5,
        SETPOINT_COLOR.stroke_width(2),
    ))?;
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

fn rate_panel(area: &DemoArea, runs: &[(&DemoReport, RGBColor)]) -> DemoPlotResult {
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

/// Builds a chart of rates over seconds.
pub(super) fn rates<'a, 'b, Y>(
    area: &DemoArea<'b>,
    end_s: f64,
    values: Y,
) -> Result<Rates<'a, 'b, Y>, Box<dyn std::error::Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin_top(34)
        .margin_right(16)
        .x_label_area_size(44)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end_s, values)?;
    let label = ("sans-serif", 13).into_font().color(&INK_COLOR);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK_COLOR.mix(0.2))
        .axis_style(INK_COLOR)
        .label_style(label.clone())
        .axis_desc_style(label)
        .x_desc("seconds")
        .x_label_formatter(&|t_s| format!("{t_s:.0}"))
        .y_label_formatter(&|rate| format!("{rate:.0}"))
        .draw()?;
    Ok(chart)
}

/// Draws a vertical line at the time from which the documents are harder.
fn harder<Y>(
    chart: &mut ChartContext<SVGBackend, Cartesian2d<RangedCoordf64, Y>>,
    at_s: f64,
    end_s: f64,
    (bottom, top): (f64, f64),
) -> DemoPlotResult
where
    Y: Ranged<ValueType = f64>,
{
    chart.draw_series(DashedLineSeries::new(
        [(at_s, bottom), (at_s, top)],
        3,
        4,
        INK_COLOR.stroke_width(1),
    ))?;
    let style = ("sans-serif", 13).into_font().color(&INK_COLOR);
    let beside_s = at_s + 0.006 * end_s;
    chart.draw_series(std::iter::once(Text::new(
        "documents ten times harder",
        (beside_s, top),
        style,
    )))?;
    Ok(())
}

fn heading(
    area: &DemoArea,
    title: &str,
    runs: &[(&DemoReport, RGBColor)],
    more: &[(&str, RGBColor)],
) -> DemoPlotResult {
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
    legend(area, title, (430, 40), runs.chain(more))
}

/// Draws a title and, from `x` on, the names of the lines with their colours.
///
/// Each name takes `wider` pixels in addition to its text.
pub(super) fn legend(
    area: &DemoArea,
    title: &str,
    (mut x, wider): (i32, i32),
    names: impl Iterator<Item = (String, RGBColor)>,
) -> DemoPlotResult {
    let left = Pos::new(HPos::Left, VPos::Center);
    area.draw(&Text::new(
        title.to_owned(),
        (56, 17),
        ("sans-serif", 15).into_font().color(&INK_COLOR).pos(left),
    ))?;
    for (name, colour) in names {
        area.draw(&Rectangle::new([(x, 13), (x + 16, 21)], colour.filled()))?;
        area.draw(&Text::new(
            name.clone(),
            (x + 22, 17),
            ("sans-serif", 13).into_font().color(&INK_COLOR).pos(left),
        ))?;
        x += wider + 8 * i32::try_from(name.len()).unwrap_or(0);
    }
    Ok(())
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
