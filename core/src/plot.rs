//! The shared parts of the pictures: palette, panels, headings.
//!
//! A picture has no background and uses colours of medium lightness, so that it is legible on light
//! and dark pages.

use std::error::Error;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

pub const WIDTH: u32 = 960;
pub const INK_COLOR: RGBColor = RGBColor(0x7d, 0x85, 0x90);
pub const GOVERNED_COLOR: RGBColor = RGBColor(0x2f, 0x81, 0xf7);
pub const BASELINE_COLOR: RGBColor = RGBColor(0xdb, 0x6d, 0x28);
pub const OVERLOAD_COLOR: RGBColor = RGBColor(0xe5, 0x53, 0x4b);
pub const SETPOINT_COLOR: RGBColor = RGBColor(0x2d, 0xa4, 0x4e);
pub const OTHER_COLOR: RGBColor = RGBColor(0x9a, 0x67, 0xd8);

const FONT: (&str, i32) = ("sans-serif", 13);
const TITLE_FONT: (&str, i32) = ("sans-serif", 15);
/// Left end of the panels and titles, in pixels.
const LEFT: i32 = 56;
/// Middle of a heading, in pixels below the upper edge of its panel.
const HEADING_Y: i32 = 17;

pub type PlotArea<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Panel<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, Y>>;
pub type PlotResult<T = ()> = Result<T, Box<dyn Error>>;

/// Draws a picture of this height and returns it as SVG.
pub fn svg(height: u32, draw: impl FnOnce(&PlotArea) -> PlotResult) -> Result<String, String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        draw(&root)
            .and_then(|()| Ok(root.present()?))
            .map_err(|error| format!("drawing: {error}"))?;
    }
    Ok(svg)
}

/// The axes of a panel. Its horizontal axis begins at 0.
pub struct Axes<'a> {
    /// End of the horizontal axis.
    pub end: f64,
    /// Number of labels on the horizontal axis.
    pub x_labels: usize,
    /// Description of the horizontal axis.
    pub x_desc: &'a str,
    pub x_format: &'a dyn Fn(&f64) -> String,
    /// Number of labels on the vertical axis.
    pub y_labels: usize,
    pub y_format: &'a dyn Fn(&f64) -> String,
}

impl Axes<'_> {
    /// Draws a panel with `values` on its vertical axis.
    pub fn panel<'a, 'b, Y>(
        &self,
        area: &'a PlotArea<'b>,
        values: Y,
    ) -> PlotResult<Panel<'a, 'b, Y::CoordDescType>>
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let below = match (self.x_labels, self.x_desc) {
            (0, "") => 10,
            (_, "") => 22,
            _ => 44,
        };
        let mut panel = ChartBuilder::on(area)
            .margin_top(34)
            .margin_right(16)
            .x_label_area_size(below)
            .y_label_area_size(LEFT)
            .build_cartesian_2d(0.0..self.end, values)?;
        let label = FONT.into_font().color(&INK_COLOR);
        panel
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(INK_COLOR.mix(0.2))
            .axis_style(INK_COLOR)
            .label_style(label.clone())
            .axis_desc_style(label)
            .x_labels(self.x_labels)
            .y_labels(self.y_labels)
            .x_desc(self.x_desc)
            .x_label_formatter(&self.x_format)
            .y_label_formatter(&self.y_format)
            .draw()?;
        Ok(panel)
    }
}

/// Formats a number with one decimal, or up to five if they are not zero.
pub fn decimals(number: &f64) -> String {
    let text = format!("{number:.5}");
    let short = text.trim_end_matches('0');
    match short.ends_with('.') {
        true => format!("{short}0"),
        false => short.to_owned(),
    }
}

/// Draws a title and, from the pixel `x` on, the names of the lines with their colours.
pub fn heading<N: AsRef<str>>(
    area: &PlotArea,
    title: &str,
    mut x: i32,
    names: &[(N, RGBColor)],
) -> PlotResult {
    let left = Pos::new(HPos::Left, VPos::Center);
    let style = |font: (&'static str, i32)| font.into_font().color(&INK_COLOR).pos(left);
    let at = (LEFT, HEADING_Y);
    area.draw(&Text::new(title.to_owned(), at, style(TITLE_FONT)))?;
    for (name, colour) in names {
        let (name, box_) = (name.as_ref(), [(x, HEADING_Y - 4), (x + 16, HEADING_Y + 4)]);
        area.draw(&Rectangle::new(box_, colour.filled()))?;
        let at = (x + 22, HEADING_Y);
        area.draw(&Text::new(name.to_owned(), at, style(FONT)))?;
        x += 40 + 8 * i32::try_from(name.len()).unwrap_or(0);
    }
    Ok(())
}

/// Draws a dashed horizontal line at the setpoint.
pub fn setpoint<Y>(panel: &mut Panel<Y>, end: f64, value: f64) -> PlotResult
where
    Y: Ranged<ValueType = f64>,
{
    let line = [(0.0, value), (end, value)];
    let style = SETPOINT_COLOR.stroke_width(2);
    panel.draw_series(DashedLineSeries::new(line, 6, 5, style))?;
    Ok(())
}

/// Writes a text to the right of a point.
pub fn note<Y>(panel: &mut Panel<Y>, end: f64, (x, y): (f64, f64), text: &str) -> PlotResult
where
    Y: Ranged<ValueType = f64>,
{
    let style = FONT.into_font().color(&INK_COLOR);
    let at = (x + 0.006 * end, y);
    panel.draw_series(std::iter::once(Text::new(text.to_owned(), at, style)))?;
    Ok(())
}
