//! Drawing in pixels: shapes, labels, round tick values. Everything that meets the drawing crate is here.
use super::super::ReportError;
use crate::account::TrafficClass;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Where a label's position lies in it, horizontally.
#[derive(Clone, Copy)]
pub(super) enum Side {
    /// Label starts there.
    Start,
    /// Label is centred there.
    Middle,
    /// Label ends there.
    End,
}

pub(super) const INK: RGBColor = RGBColor(34, 34, 34);
pub(super) const FAINT: RGBColor = RGBColor(221, 221, 221);
pub(super) const MUTED: RGBColor = RGBColor(100, 100, 100);

/// Colour of a class: told apart also without red and green.
pub(super) fn class_color(class: TrafficClass) -> RGBColor {
    match class {
        TrafficClass::Weight => RGBColor(0, 114, 178),
        TrafficClass::Kv => RGBColor(230, 159, 0),
        TrafficClass::State => RGBColor(0, 158, 115),
        TrafficClass::Activation => RGBColor(204, 121, 167),
        TrafficClass::Scratch => RGBColor(160, 160, 160),
        TrafficClass::Collective => RGBColor(213, 94, 0),
    }
}

/// A white sheet.
pub(super) struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

fn failed(e: impl std::fmt::Display) -> ReportError {
    ReportError::Draw(e.to_string())
}

impl Canvas<'_> {
    /// Draws on a sheet of `width` x `height` pixels and returns the SVG text.
    pub(super) fn sheet(
        width: u32,
        height: u32,
        draw: impl FnOnce(&Canvas<'_>) -> Result<(), ReportError>,
    ) -> Result<String, ReportError> {
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, (width, height)).into_drawing_area();
            area.fill(&WHITE).map_err(failed)?;
            let canvas = Canvas { area };
            draw(&canvas)?;
            canvas.area.present().map_err(failed)?;
        }
        Ok(text)
    }

    pub(super) fn bar(&self, x: (f64, f64), y: (i32, i32), color: RGBColor) -> Result<(), ReportError> {
        let x = (x.0.min(x.1).round() as i32, x.0.max(x.1).round() as i32);
        self.area.draw(&Rectangle::new([(x.0, y.0), (x.1, y.1)], color.filled())).map_err(failed)
    }

    pub(super) fn path(&self, points: &[(f64, f64)], width: u32, color: RGBColor) -> Result<(), ReportError> {
        let points: Vec<(i32, i32)> =
            points.iter().map(|p| (p.0.round() as i32, p.1.round() as i32)).collect();
        self.area.draw(&PathElement::new(points, color.stroke_width(width))).map_err(failed)
    }

    pub(super) fn dot(&self, at: (f64, f64), color: RGBColor) -> Result<(), ReportError> {
        let at = (at.0.round() as i32, at.1.round() as i32);
        self.area.draw(&Circle::new(at, 4, color.filled())).map_err(failed)
    }

    /// Text of `px` pixels, vertically centred at `y`. Control characters, which XML cannot hold, become `?`.
    pub(super) fn text(
        &self,
        text: &str,
        at: (f64, f64),
        px: f64,
        side: Side,
        color: RGBColor,
    ) -> Result<(), ReportError> {
        let h = match side {
            Side::Start => HPos::Left,
            Side::Middle => HPos::Center,
            Side::End => HPos::Right,
        };
        // The backend writes size / 1.24 as the font size.
        let font = ("sans-serif", px * 1.24).into_font().color(&color);
        let style = font.pos(Pos::new(h, VPos::Center));
        let text: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let at = (at.0.round() as i32, at.1.round() as i32);
        self.area.draw(&Text::new(text, at, style)).map_err(failed)
    }

    /// A title, with a smaller line under it.
    pub(super) fn title(&self, title: &str, under: &str) -> Result<(), ReportError> {
        self.text(title, (20.0, 24.0), 17.0, Side::Start, INK)?;
        self.text(under, (20.0, 46.0), 12.0, Side::Start, MUTED)
    }
}

/// Values 0, step, 2 step .. up to at least `max`, in steps of 1, 2 or 5 times a power of ten.
pub(super) fn ticks(max: f64) -> Vec<f64> {
    let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
    let raw = max / 5.0;
    let power = 10f64.powf(raw.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|s| *s >= raw * 0.999).unwrap_or(raw);
    let count = (max / step * 0.9999).ceil() as u32;
    (0..=count).map(|i| f64::from(i) * step).collect()
}

/// `value` without needless digits.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    let digits = if magnitude >= 100.0 || magnitude == 0.0 {
        0
    } else {
        (2 - magnitude.log10().floor() as i32).clamp(0, 9) as usize
    };
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
}

/// `text` cut to `limit` characters.
pub(super) fn cut(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.into();
    }
    text.chars().take(limit - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_cover_the_range() {
        assert_eq!(ticks(10.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(7.3), [0.0, 2.0, 4.0, 6.0, 8.0]);
        assert_eq!(ticks(0.0).len(), 6);
        for max in [1e-9, 0.3, 1.0, 53.79, 999.0, 1e12] {
            let t = ticks(max);
            assert!(t.len() <= 7 && t[t.len() - 1] >= max * 0.999, "{max}: {t:?}");
        }
    }

    #[test]
    fn short_figures_keep_three_digits() {
        let texts = [0.0, 0.5, 53.792, 1234.5, 0.01234, 2.0].map(short);
        assert_eq!(texts, ["0", "0.5", "53.8", "1234", "0.0123", "2"]);
        assert_eq!(cut("abcdef", 4), "abc…");
    }
}
