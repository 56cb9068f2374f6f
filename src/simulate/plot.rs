//! The picture of a day, in six panels: the load, the rate, the model's estimate, the deciding
//! limit, the controller's terms, and the totals.

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

use super::run::{SimulatedSecond, SimulationRecord};
use super::scenario::Scenario;
use crate::governor::Actuator;
use crate::plot::{
    self, Axes, BASELINE_COLOR, GOVERNED_COLOR, INK_COLOR, OTHER_COLOR, OVERLOAD_COLOR, Panel,
    PlotArea, PlotResult, SETPOINT_COLOR,
};

/// Heights of the panels, from the top.
const HEIGHTS: [u32; 6] = [210, 210, 150, 70, 150, 190];
/// Pixel at which the names of the lines begin.
const NAMES_X: i32 = 330;

/// Draws the governor's day beside another controller's.
///
/// # Errors
///
/// If the drawing itself fails; the text says what.
pub fn draw(
    scenario: &Scenario,
    governed: &SimulationRecord,
    against: (&str, &SimulationRecord),
) -> Result<String, String> {
    plot::svg(HEIGHTS.iter().sum(), |root| {
        panels(root, scenario, governed, against)
    })
}

fn panels(
    root: &PlotArea,
    scenario: &Scenario,
    governed: &SimulationRecord,
    (name, other): (&str, &SimulationRecord),
) -> PlotResult {
    let mut rest = root.clone();
    let mut next = |height: u32| {
        let (panel, below) = rest.split_vertically(height);
        rest = below;
        panel
    };
    let minutes = scenario.duration_s as f64 / 60.0;
    load(
        &next(HEIGHTS[0]),
        scenario,
        minutes,
        governed,
        (name, other),
    )?;
    rate(&next(HEIGHTS[1]), scenario, minutes, governed)?;
    model(&next(HEIGHTS[2]), minutes, governed)?;
    ribbon(&next(HEIGHTS[3]), minutes, governed)?;
    terms(&next(HEIGHTS[4]), minutes, governed)?;
    totals(&next(HEIGHTS[5]), minutes, governed, (name, other))
}

fn load(
    area: &PlotArea,
    scenario: &Scenario,
    minutes: f64,
    governed: &SimulationRecord,
    (name, other): (&str, &SimulationRecord),
) -> PlotResult {
    let highest = governed.seconds.iter().map(|s| s.x).fold(1.5, f64::max);
    // Another controller may leave the panel, because the governor's own day is the subject.
    let top = 1.15
        * highest.max(
            other
                .seconds
                .iter()
                .map(|s| s.x)
                .fold(0.0, f64::max)
                .min(2.5 * highest),
        );
    let mut chart = chart(area, minutes, (0.0, top), false, 4)?;
    let clipped = |record: &SimulationRecord| course(record, |s| Some(s.x.min(top)));
    let area_over = governed
        .seconds
        .iter()
        .step_by(5)
        .map(|s| (s.t / 60.0, s.x.max(1.0).min(top)));
    chart.draw_series(AreaSeries::new(area_over, 1.0, OVERLOAD_COLOR.mix(0.4)))?;
    chart.draw_series(LineSeries::new(
        clipped(other),
        BASELINE_COLOR.mix(0.6).stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        clipped(governed),
        GOVERNED_COLOR.stroke_width(2),
    ))?;
    plot::setpoint(&mut chart, minutes, 1.0)?;
    let title = format!("{}: load in setpoints", scenario.name);
    heading(
        area,
        &title,
        &[
            ("flyball", GOVERNED_COLOR),
            (name, BASELINE_COLOR),
            ("setpoint", SETPOINT_COLOR),
            ("overload", OVERLOAD_COLOR),
        ],
    )
}

fn rate(
    area: &PlotArea,
    scenario: &Scenario,
    minutes: f64,
    governed: &SimulationRecord,
) -> PlotResult {
    let rates = governed
        .seconds
        .iter()
        .flat_map(|s| [s.knob, s.achieved, s.oracle])
        .filter(|rate| *rate > 0.0);
    let (least, most) = rates.fold((f64::INFINITY, 0.0f64), |(least, most), rate| {
        (least.min(rate), most.max(rate))
    });
    // The axis is the logarithm to base 10, so a stop is drawn at its bottom.
    let bottom = least.max(most / 3000.0).log10().floor();
    let top = (1.3 * most).log10();
    let log = |rate: f64| {
        Some(if rate > 0.0 {
            rate.log10().max(bottom)
        } else {
            bottom
        })
    };
    let mut chart = chart(area, minutes, (bottom, top.max(bottom + 0.5)), true, 4)?;
    chart.draw_series(LineSeries::new(
        course(governed, |s| log(s.oracle)),
        SETPOINT_COLOR.stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        course(governed, |s| log(s.knob)),
        GOVERNED_COLOR.mix(0.45).stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        course(governed, |s| log(s.achieved)),
        GOVERNED_COLOR.stroke_width(2),
    ))?;
    let title = match scenario.policy.law.actuator {
        Actuator::Rps => "jobs per second",
        Actuator::Concurrency => "jobs per second, slots",
    };
    heading(
        area,
        title,
        &[
            ("achieved", GOVERNED_COLOR),
            ("knob", GOVERNED_COLOR),
            ("room (oracle)", SETPOINT_COLOR),
        ],
    )
}

fn model(area: &PlotArea, minutes: f64, governed: &SimulationRecord) -> PlotResult {
    let believed = || {
        governed
            .thoughts
            .iter()
            .filter_map(|thought| Some((thought.t / 60.0, thought.model?)))
    };
    let mut chart = chart(area, minutes, (0.0, 1.8), false, 4)?;
    let sum = believed().map(|(t, (background, ours))| (t, (background + ours).min(1.8)));
    chart.draw_series(AreaSeries::new(sum, 0.0, GOVERNED_COLOR.mix(0.35)))?;
    let background = believed().map(|(t, (background, _))| (t, background.min(1.8)));
    chart.draw_series(AreaSeries::new(background, 0.0, OTHER_COLOR.mix(0.6)))?;
    chart.draw_series(LineSeries::new(
        course(governed, |s| Some(s.true_x.min(1.8))),
        INK_COLOR.stroke_width(1),
    ))?;
    heading(
        area,
        "estimated source of the load",
        &[
            ("others", OTHER_COLOR),
            ("ours", GOVERNED_COLOR),
            ("true load", INK_COLOR),
        ],
    )
}

/// Draws the deciding signals and limits as colours along the time.
fn ribbon(area: &PlotArea, minutes: f64, governed: &SimulationRecord) -> PlotResult {
    let mut chart = chart(area, minutes, (0.0, 1.0), false, 0)?;
    let tick = governed
        .thoughts
        .windows(2)
        .next()
        .map_or(5.0, |pair| pair[1].t - pair[0].t);
    let boxes = governed.thoughts.iter().map(|thought| {
        let (from, to) = ((thought.t - tick) / 60.0, thought.t / 60.0);
        Rectangle::new(
            [(from, 0.0), (to, 1.0)],
            colour_of(&thought.limiting).filled(),
        )
    });
    chart.draw_series(boxes)?;
    let legend = [
        ("signal", GOVERNED_COLOR),
        ("limit", SETPOINT_COLOR),
        ("idle", INK_COLOR),
        ("stale", OTHER_COLOR),
        ("breaker", OVERLOAD_COLOR),
    ];
    heading(area, "limiting signal", &legend)
}

fn colour_of(limiting: &str) -> RGBColor {
    match limiting {
        "breaker" => OVERLOAD_COLOR,
        "stale" | "late" | "start" => OTHER_COLOR,
        "idle" => INK_COLOR,
        "slew" | "confirm" | "floor" | "min" | "max" | "person" => SETPOINT_COLOR,
        _ => GOVERNED_COLOR,
    }
}

fn terms(area: &PlotArea, minutes: f64, governed: &SimulationRecord) -> PlotResult {
    let mut chart = chart(area, minutes, (-1.0, 1.0), false, 4)?;
    for (n, colour) in [
        (0, GOVERNED_COLOR),
        (1, SETPOINT_COLOR),
        (2, BASELINE_COLOR),
    ] {
        let term = governed
            .thoughts
            .iter()
            .map(|thought| (thought.t / 60.0, thought.pid[n].clamp(-1.0, 1.0)));
        chart.draw_series(LineSeries::new(term, colour.stroke_width(1)))?;
    }
    heading(
        area,
        "terms, in nats",
        &[
            ("P", GOVERNED_COLOR),
            ("I, one tick", SETPOINT_COLOR),
            ("D", BASELINE_COLOR),
        ],
    )
}

fn totals(
    area: &PlotArea,
    minutes: f64,
    governed: &SimulationRecord,
    (name, other): (&str, &SimulationRecord),
) -> PlotResult {
    let overload = |record: &SimulationRecord| total(record, |s| (s.x - 1.0).max(0.0) + s.refused);
    let (ours, theirs) = (overload(governed), overload(other));
    let last = |course: &[(f64, f64)]| course.last().map_or(0.0, |point| point.1);
    let top = 1.1 * last(&ours).max(last(&theirs)).max(1.0);
    let jobs = |record: &SimulationRecord| total(record, |s| s.achieved);
    let (done, all) = (jobs(governed), total(governed, |s| s.oracle));
    // Jobs share the panel, as a share of the oracle's, drawn to the same height.
    let scale = top / 1.1 / last(&all).max(1e-9);
    let mut chart = chart(area, minutes, (0.0, top), false, 4)?;
    chart.draw_series(LineSeries::new(theirs, BASELINE_COLOR.stroke_width(2)))?;
    chart.draw_series(LineSeries::new(ours, GOVERNED_COLOR.stroke_width(2)))?;
    chart.draw_series(LineSeries::new(
        done.into_iter().map(|(t, n)| (t, n * scale)),
        SETPOINT_COLOR.stroke_width(1),
    ))?;
    let legend = [
        ("overload, s", GOVERNED_COLOR),
        (name, BASELINE_COLOR),
        ("jobs (of the oracle's)", SETPOINT_COLOR),
    ];
    heading(area, "added up", &legend)
}

/// Returns the running total of `f`, every five seconds.
fn total(record: &SimulationRecord, f: impl Fn(&SimulatedSecond) -> f64) -> Vec<(f64, f64)> {
    let mut sum = 0.0;
    let added = record.seconds.iter().map(|second| {
        sum += f(second);
        (second.t / 60.0, sum)
    });
    added.step_by(5).collect()
}

/// Returns the course of `f` over the minutes, a point every five seconds.
fn course(
    record: &SimulationRecord,
    f: impl Fn(&SimulatedSecond) -> Option<f64>,
) -> Vec<(f64, f64)> {
    record
        .seconds
        .iter()
        .step_by(5)
        .filter_map(|second| Some((second.t / 60.0, f(second)?)))
        .collect()
}

/// Returns a panel over the minutes. With `log` its labels are powers of ten; without `labels` its
/// height means nothing.
fn chart<'a, 'b>(
    area: &'a PlotArea<'b>,
    minutes: f64,
    (bottom, top): (f64, f64),
    log: bool,
    labels: usize,
) -> PlotResult<Panel<'a, 'b, RangedCoordf64>> {
    let axes = Axes {
        end: minutes,
        x_labels: 12,
        x_desc: "",
        x_format: &|minute| format!("{minute:.0} min"),
        y_labels: labels,
        y_format: &|value| match log {
            true => crate::governor::explain::number(10f64.powf(*value)),
            false => format!("{value:.1}"),
        },
    };
    axes.panel(area, bottom..top)
}

fn heading(area: &PlotArea, title: &str, legend: &[(&str, RGBColor)]) -> PlotResult {
    plot::heading(area, title, NAMES_X, legend)
}

#[cfg(test)]
mod tests {
    use super::super::{Contender, disturbance::Disturbance, library, run};
    use super::*;

    #[test]
    fn every_scenario_can_be_drawn() {
        for scenario in library::scenarios().unwrap() {
            let disturbance = Disturbance::draw(&scenario, 0);
            let (governed, other) = (
                run(&scenario, &disturbance, Contender::Flyball),
                run(&scenario, &disturbance, Contender::Fixed),
            );
            let svg = draw(&scenario, &governed, ("fixed", &other)).unwrap();
            assert!(
                svg.starts_with("<svg") && svg.contains("limiting signal") && !svg.contains("NaN"),
                "{}",
                scenario.name
            );
            assert!(
                governed
                    .seconds
                    .iter()
                    .all(|second| second.knob.is_finite())
            );
        }
    }
}
