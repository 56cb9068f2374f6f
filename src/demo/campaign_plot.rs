//! The plot of the second act: messages accepted and refused per second, with the quota, the knob
//! and the learned quota.
//!
//! It has no background and uses colours of medium lightness, so that it is legible on light and
//! dark pages.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::*;

use super::plot::{DemoPlotResult, INK_COLOR, legend, rates};
use super::tally::{Campaign, CampaignPoint};

const PLOT_SIZE: (u32, u32) = (960, 400);
const SENT: RGBColor = RGBColor(0x2f, 0x81, 0xf7);
const REFUSED: RGBColor = RGBColor(0xe5, 0x53, 0x4b);
const KNOB: RGBColor = RGBColor(0xdb, 0x6d, 0x28);
const QUOTA: RGBColor = RGBColor(0x2d, 0xa4, 0x4e);
const LEARNED: RGBColor = RGBColor(0x9a, 0x67, 0xd8);

/// Draws a campaign to an SVG file.
pub fn draw(campaign: &Campaign, out: &Path) -> anyhow::Result<()> {
    let mut svg = String::new();
    panel(campaign, &mut svg).map_err(|error| anyhow::anyhow!("drawing: {error}"))?;
    std::fs::write(out, svg).with_context(|| format!("writing {}", out.display()))
}

fn panel(campaign: &Campaign, svg: &mut String) -> DemoPlotResult {
    let area = SVGBackend::with_string(svg, PLOT_SIZE).into_drawing_area();
    let end_s = campaign.course.last().map_or(1.0, |last| last.t_s).max(1.0);
    let top = 1.25 * campaign.quota_rps.max(1.0);
    let mut chart = rates(&area, end_s, 0.0..top)?;
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
    let label = ("sans-serif", 13).into_font().color(&INK_COLOR);
    let beside = (halved_s + 0.006 * end_s, top);
    chart.draw_series(std::iter::once(Text::new(
        "every quota is halved, without notice",
        beside,
        label,
    )))?;
    let names = [
        ("sent", SENT),
        ("refused", REFUSED),
        ("quota", QUOTA),
        ("knob", KNOB),
        ("learned quota", LEARNED),
    ];
    legend(
        &area,
        "messages per second",
        (330, 44),
        names
            .into_iter()
            .map(|(name, colour)| (name.to_owned(), colour)),
    )?;
    area.present()?;
    Ok(())
}
