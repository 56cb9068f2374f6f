//! The picture of a replay: load and setpoint with the overload shaded, rates on a log axis, and
//! the parts of the load.
//!
//! No background and colours of middle lightness, so that it reads on a light and on a dark page.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::ReplayReport;
use super::run::ReplayPoint;

const PLOT_SIZE: (u32, u32) = (960, 840);
const INK_COLOR: RGBColor = RGBColor(0x7d, 0x85, 0x90);
const RECORDED: RGBColor = RGBColor(0xdb, 0x6d, 0x28);
const WOULD_BE: RGBColor = RGBColor(0x2f, 0x81, 0xf7);
const OVERLOAD_COLOR: RGBColor = RGBColor(0xe5, 0x53, 0x4b);
const SETPOINT_COLOR: RGBColor = RGBColor(0x2d, 0xa4, 0x4e);
const ROOM_COLOR: RGBColor = RGBColor(0xa3, 0x71, 0xf7);
/// Upper end of the load's axis, in setpoints, however high a recording went.
const LOAD_MAX: f64 = 12.0;
/// The lowest rate that is drawn, as a share of the highest.
const DECADES: f64 = 1e-3;

type ReplayArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Panel<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;
type ReplayPlotResult = Result<(), Box<dyn std::error::Error>>;

/// Draws a report as SVG; of a range, its middle variant.
pub fn svg(report: &ReplayReport) -> Result<String, String> {
    let mut svg = String::new();
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
    {
        let root = SVGBackend::with_string(&mut svg, PLOT_SIZE).into_drawing_area();
        let panels = root.split_evenly((3, 1));
        load_panel(&panels[0], &variant.course, &title)
            .and_then(|()| rate_panel(&panels[1], &variant.course))
            .and_then(|()| parts_panel(&panels[2], &variant.course))
            .and_then(|()| Ok(root.present()?))
            .map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

fn load_panel(area: &ReplayArea, course: &[ReplayPoint], title: &str) -> ReplayPlotResult {
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
    chart.draw_series(DashedLineSeries::new(
        [(0.0, 1.0), (end, 1.0)],
        6,
        5,
        SETPOINT_COLOR.stroke_width(2),
    ))?;
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

fn rate_panel(area: &ReplayArea, course: &[ReplayPoint]) -> ReplayPlotResult {
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

fn parts_panel(area: &ReplayArea, course: &[ReplayPoint]) -> ReplayPlotResult {
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
    area: &'a ReplayArea<'b>,
    course: &[ReplayPoint],
    values: Y,
    below: &str,
) -> Result<Panel<'a, 'b, Y::CoordDescType>, Box<dyn std::error::Error>>
where
    Y: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let end = course.last().map_or(1.0, at).max(1.0);
    let mut chart = ChartBuilder::on(area)
        .margin_top(34)
        .margin_right(16)
        .x_label_area_size(if below.is_empty() { 10 } else { 44 })
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..end, values)?;
    let label = ("sans-serif", 13).into_font().color(&INK_COLOR);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(INK_COLOR.mix(0.2))
        .axis_style(INK_COLOR)
        .label_style(label.clone())
        .axis_desc_style(label)
        .x_labels(if below.is_empty() { 0 } else { 10 })
        .y_labels(5)
        .x_desc(below)
        .x_label_formatter(&|minutes| format!("{minutes:.0}"))
        .draw()?;
    Ok(chart)
}

fn heading(area: &ReplayArea, title: &str, names: &[(&str, RGBColor)]) -> ReplayPlotResult {
    let left = Pos::new(HPos::Left, VPos::Center);
    let style = |size: i32| ("sans-serif", size).into_font().color(&INK_COLOR).pos(left);
    area.draw(&Text::new(title.to_owned(), (56, 17), style(15)))?;
    let mut x = 540;
    for (name, colour) in names {
        area.draw(&Rectangle::new([(x, 13), (x + 16, 21)], colour.filled()))?;
        area.draw(&Text::new((*name).to_owned(), (x + 22, 17), style(13)))?;
        x += 40 + 8 * i32::try_from(name.len()).unwrap_or(0);
    }
    Ok(())
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
