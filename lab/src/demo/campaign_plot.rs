//! The plot of the second act: messages accepted and refused per second, with the quota, the knob
//! and the learned quota.

use std::path::Path;

use anyhow::Context;
use flyball::plot::{
    self, BASELINE_COLOR as KNOB, GOVERNED_COLOR as SENT, OTHER_COLOR as LEARNED,
    OVERLOAD_COLOR as REFUSED, PlotArea, PlotResult, SETPOINT_COLOR as QUOTA,
};
use plotters::prelude::*;

use super::plot::rates;
use super::tally::{Campaign, CampaignPoint};

const HEIGHT: u32 = 400;
/// Pixel at which the names of the lines begin.
const NAMES_X: i32 = 330;

/// Draws a campaign to an SVG file.
pub fn draw(campaign: &Campaign, out: &Path) -> anyhow::Result<()> {
    let svg = plot::svg(HEIGHT, |root| panel(campaign, root)).map_err(anyhow::Error::msg)?;
    std::fs::write(out, svg).with_context(|| format!("writing {}", out.display()))
}

fn panel(campaign: &Campaign, area: &PlotArea) -> PlotResult {
    let end_s = campaign.course.last().map_or(1.0, |last| last.t_s).max(1.0);
    let top = 1.25 * campaign.quota_rps.max(1.0);
    let mut chart = rates(area, end_s, 0.0..top)?;
    let halved_s = campaign.halved_after_s.min(end_s);
    let (whole, half) = (campaign.quota_rps, campaign.quota_rps / 2.0);
    let quota = [
        (0.0, whole),
        (halved_s, whole),
        (halved_s, half),
        (end_s, half),
    ];
    chart.draw_series(DashedLineSeries::new(quota, 6, 5, QUOTA.stroke_width(2)))?;
    let line = |of: fn(&CampaignPoint) -> Option<f64>| {
        campaign
            .course
            .iter()
            .filter_map(move |moment| Some((moment.t_s, of(moment)?.clamp(0.0, top))))
            .collect::<Vec<_>>()
    };
    chart.draw_series(LineSeries::new(
        line(|moment| moment.learned_rps),
        LEARNED.stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        line(|moment| moment.rps),
        KNOB.stroke_width(1),
    ))?;
    chart.draw_series(LineSeries::new(
        line(|moment| Some(moment.refused_rps)),
        REFUSED.stroke_width(2),
    ))?;
    chart.draw_series(LineSeries::new(
        line(|moment| Some(moment.sent_rps)),
        SENT.stroke_width(2),
    ))?;
    let halved = "every quota is halved, without notice";
    plot::note(&mut chart, end_s, (halved_s, top), halved)?;
    let names = [
        ("sent", SENT),
        ("refused", REFUSED),
        ("quota", QUOTA),
        ("knob", KNOB),
        ("learned quota", LEARNED),
    ];
    plot::heading(area, "messages per second", NAMES_X, &names)
}
