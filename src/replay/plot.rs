//! The picture of a replay: load and setpoint with the overload shaded, rates on a log axis, and
//! the parts of the load.

use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::report::ReplayReport;
use super::run::ReplayPoint;
use crate::plot::{
    self, Axes, BASELINE_COLOR as RECORDED, GOVERNED_COLOR as WOULD_BE, INK_COLOR,
    OTHER_COLOR as ROOM_COLOR, OVERLOAD_COLOR, Panel, PlotArea, PlotResult, SETPOINT_COLOR,
};

const HEIGHT: u32 = 840;
/// Pixel at which the names of the lines begin.
const NAMES_X: i32 = 540;
/// Upper end of the load's axis, in setpoints, however high a recording went.
const LOAD_MAX: f64 = 12.0;
/// The lowest rate that is drawn, as a share of the highest.
const DECADES: f64 = 1e-3;

/// Draws a report as SVG; of a range, its middle variant.
pub fn svg(report: &ReplayReport) -> Result<String, String> {
    let Some(variant) = report.would_be.get(report.would_be.len() / 2) else {
        return Err("there is nothing to draw".to_owned());
    };
    let title = match variant.share {
        Some(share) => format!(
            "load of {} in setpoints, if {:.0} % of it was ours",
            report.throttle,
            100.0 * share
        ),
        None => format!("load of {} in setpoints", report.throttle),
    };
    plot::svg(HEIGHT, |root| {
        let panels = root.split_evenly((3, 1));
        load_panel(&panels[0], &variant.course, &title)?;
        rate_panel(&panels[1], &variant.course)?;
        parts_panel(&panels[2], &variant.course)
    })
}

fn load_panel(area: &PlotArea, course: &[ReplayPoint], title: &str) -> PlotResult {
    let top = highest(course, |m| m.recorded.max(m.would_be)).clamp(1.5, LOAD_MAX);
    let mut chart = axes(area, course, 0.0..top, "")?;
    for (of, colour) in [
        (recorded as fn(&ReplayPoint) -> f64, RECORDED),
        (would_be, WOULD_BE),
    ] {
        let line: Vec<(f64, f64)> = course.iter().map(|m| (at(m), of(m).min(top))).collect();
        let over = line.iter().map(|&(t, x)| (t, x.max(1.0)));
        let outline: Vec<(f64, f64)> = over
            .chain(line.iter().rev().map(|&(t, _)| (t, 1.0)))
            .collect();
        let shade = if colour == WOULD_BE {
            OVERLOAD_COLOR.mix(0.35)
        } else {
            colour.mix(0.15)
        };
        chart.draw_series(std::iter::once(Polygon::new(outline, shade)))?;
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    }
    let end = course.last().map_or(1.0, at);
    plot::setpoint(&mut chart, end, 1.0)?;
    heading(
        area,
        title,
        &[
            ("recorded", RECORDED),
            ("would be", WOULD_BE),
            ("setpoint", SETPOINT_COLOR),
            ("overload", OVERLOAD_COLOR),
        ],
    )
}

fn rate_panel(area: &PlotArea, course: &[ReplayPoint]) -> PlotResult {
    let top = 1.5 * highest(course, |m| m.achieved.max(m.knob)).max(1e-6);
    let bottom = DECADES * top;
    let mut chart = axes(area, course, (bottom..top).log_scale(), "")?;
    let line = |of: fn(&ReplayPoint) -> f64| {
        course
            .iter()
            .map(move |m| (at(m), of(m).clamp(bottom, top)))
    };
    chart.draw_series(LineSeries::new(
        line(|m| m.room),
        ROOM_COLOR.mix(0.6).stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        line(|m| m.achieved),
        RECORDED.stroke_width(2),
    ))?;
    chart.draw_series(LineSeries::new(line(|m| m.knob), WOULD_BE.stroke_width(2)))?;
    heading(
        area,
        "jobs per second",
        &[
            ("recorded", RECORDED),
            ("would be", WOULD_BE),
            ("room", ROOM_COLOR),
        ],
    )
}

fn parts_panel(area: &PlotArea, course: &[ReplayPoint]) -> PlotResult {
    let top = highest(course, |m| m.background + m.ours).clamp(1.5, LOAD_MAX);
    let mut chart = axes(area, course, 0.0..top, "minutes")?;
    for (upper, lower, colour) in [
        (
            (|m| m.background) as fn(&ReplayPoint) -> f64,
            (|_| 0.0) as fn(&ReplayPoint) -> f64,
            INK_COLOR,
        ),
        (|m| m.background + m.ours, |m| m.background, WOULD_BE),
    ] {
        let above = course.iter().map(|m| (at(m), upper(m).min(top)));
        let below = course.iter().rev().map(|m| (at(m), lower(m).min(top)));
        chart.draw_series(std::iter::once(Polygon::new(
            above.chain(below).collect::<Vec<_>>(),
            colour.mix(0.35),
        )))?;
    }
    chart.draw_series(LineSeries::new(
        course.iter().map(|m| (at(m), would_be(m).min(top))),
        WOULD_BE.stroke_width(1),
    ))?;
    heading(
        area,
        "composition of the load",
        &[("background", INK_COLOR), ("ours", WOULD_BE)],
    )
}

/// Returns a panel with time below and `values` at its side.
fn axes<'a, 'b, Y>(
    area: &'a PlotArea<'b>,
    course: &[ReplayPoint],
    values: Y,
    below: &str,
) -> PlotResult<Panel<'a, 'b, Y::CoordDescType>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let axes = Axes {
        end: course.last().map_or(1.0, at).max(1.0),
        x_labels: if below.is_empty() { 0 } else { 10 },
        x_desc: below,
        x_format: &|minutes| format!("{minutes:.0}"),
        y_labels: 5,
        y_format: &plot::decimals,
    };
    axes.panel(area, values)
}

fn heading(area: &PlotArea, title: &str, names: &[(&str, RGBColor)]) -> PlotResult {
    plot::heading(area, title, NAMES_X, names)
}

/// Returns the moment's time, in minutes.
fn at(moment: &ReplayPoint) -> f64 {
    moment.t_s / 60.0
}

fn recorded(moment: &ReplayPoint) -> f64 {
    moment.recorded
}

fn would_be(moment: &ReplayPoint) -> f64 {
    moment.would_be
}

fn highest(course: &[ReplayPoint], of: impl Fn(&ReplayPoint) -> f64) -> f64 {
    course
        .iter()
        .map(of)
        .filter(|x| x.is_finite())
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::report::Variant;
    use crate::replay::run::Figures;

    #[test]
    fn a_picture_has_its_panels_whatever_the_numbers_are() {
        let moment = |t: u32| ReplayPoint {
            t_s: f64::from(t),
            recorded: 40.0,
            room: f64::INFINITY,
            knob: 0.0,
            ..ReplayPoint::default()
        };
        let variant = |course| Variant {
            share: Some(0.6),
            figures: Figures::default(),
            course,
        };
        for course in [vec![], (1..50).map(moment).collect()] {
            let report = ReplayReport {
                throttle: "reindex".to_owned(),
                from: 0.0,
                to: 50.0,
                signals: vec!["load".to_owned()],
                moved: Some(1.0),
                recorded: Figures::default(),
                would_be: vec![variant(course)],
                notes: Vec::new(),
            };
            let svg = svg(&report).unwrap();
            for text in [
                "<svg",
                "if 60 % of it was ours",
                "jobs per second",
                "composition of the load",
                "</svg>",
            ] {
                assert!(svg.contains(text), "{text}");
            }
        }
    }
}
