//! Step time against batch, both axes logarithmic: the floor of all bytes, of weights alone, and measurements.
use super::super::{Report, ReportError};
use super::canvas::{Canvas, FAINT, INK, MUTED, Side, cut, short};
use plotters::style::RGBColor;

const SIZE: (u32, u32) = (960, 520);
const LEFT: f64 = 90.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 80.0;
const BOTTOM: f64 = 460.0;
const FLOOR: RGBColor = RGBColor(0, 114, 178);
const WEIGHTS: RGBColor = RGBColor(140, 140, 140);
const MEASURED: RGBColor = RGBColor(213, 94, 0);

struct Curve {
    name: &'static str,
    color: RGBColor,
    /// Batch and milliseconds.
    points: Vec<(f64, f64)>,
}

/// The figure. Needs a probed ceiling, a datasheet rate or measured steps.
pub fn time(report: &Report) -> Result<String, ReportError> {
    let curves = curves(report);
    if curves.is_empty() {
        return Err(ReportError::Nothing { format: "svg-time", needs: "rate and no measured step" });
    }
    let all = || curves.iter().flat_map(|c| c.points.iter());
    let batches = range(all().map(|p| p.0));
    let times = range(all().map(|p| p.1));
    let x = |b: f64| LEFT + (RIGHT - LEFT) * share(b, batches);
    let y = |ms: f64| BOTTOM - (BOTTOM - TOP) * share(ms, times);
    Canvas::sheet(SIZE.0, SIZE.1, |canvas| {
        let title = format!("Step time against batch: {} in {}", report.model, report.recipe);
        let under = format!(
            "device {}; floor by {}, bytes on the memory bus",
            report.device.name,
            report.rate_source()
        );
        canvas.title(&cut(&title, 90), &under)?;
        for ms in decades(times) {
            canvas.path(&[(LEFT, y(ms)), (RIGHT, y(ms))], 1, FAINT)?;
            canvas.text(&short(ms), (LEFT - 8.0, y(ms)), 11.0, Side::End, MUTED)?;
        }
        for b in batch_marks(report) {
            canvas.path(&[(x(b), TOP), (x(b), BOTTOM)], 1, FAINT)?;
            canvas.text(&short(b), (x(b), BOTTOM + 14.0), 11.0, Side::Middle, MUTED)?;
        }
        canvas.path(&[(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], 1, INK)?;
        canvas.text("ms per step", (LEFT - 70.0, TOP - 14.0), 12.0, Side::Start, INK)?;
        canvas.text(
            "batch (rows per step)",
            ((LEFT + RIGHT) / 2.0, BOTTOM + 38.0),
            12.0,
            Side::Middle,
            INK,
        )?;
        for (i, curve) in curves.iter().enumerate() {
            let at: Vec<(f64, f64)> = curve.points.iter().map(|p| (x(p.0), y(p.1))).collect();
            canvas.path(&at, 2, curve.color)?;
            at.iter().try_for_each(|p| canvas.dot(*p, curve.color))?;
            let row = TOP + 12.0 + 22.0 * i as f64;
            canvas.path(&[(RIGHT + 20.0, row), (RIGHT + 44.0, row)], 2, curve.color)?;
            canvas.dot((RIGHT + 32.0, row), curve.color)?;
            canvas.text(curve.name, (RIGHT + 52.0, row), 12.0, Side::Start, INK)?;
        }
        Ok(())
    })
}

fn curves(report: &Report) -> Vec<Curve> {
    let mut floor = Curve { name: "floor, all bytes", color: FLOOR, points: vec![] };
    let mut weights = Curve { name: "floor, weights only", color: WEIGHTS, points: vec![] };
    let mut measured = Curve { name: "measured", color: MEASURED, points: vec![] };
    for s in report.summary() {
        let batch = s.batch as f64;
        let rate = report.ledgers.get(&s.batch).and_then(|l| report.rate_for(l));
        floor.points.extend(s.floor.map(|t| (batch, t.ms())));
        weights.points.extend(rate.map(|r| (batch, r.time_for(s.active).ms())));
    }
    measured.points.extend(report.measured.iter().map(|(b, t)| (*b as f64, t.ms())));
    let mut all = vec![weights, floor, measured];
    all.iter_mut().for_each(|c| c.points.retain(|p| p.0 > 0.0 && p.1 > 0.0));
    all.retain(|c| !c.points.is_empty());
    all
}

/// Smallest and largest value with a margin, so that a single point has a range too.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::MAX, f64::MIN_POSITIVE), |(l, h), v| (l.min(v), h.max(v)));
    (low / 1.25, high * 1.25)
}

fn share(value: f64, (low, high): (f64, f64)) -> f64 {
    (value / low).ln() / (high / low).ln()
}

/// 1, 2 and 5 times each power of ten inside the range; only powers when that would crowd.
fn decades((low, high): (f64, f64)) -> Vec<f64> {
    let powers = || (low.log10().floor() as i32..=high.log10().ceil() as i32).map(|p| 10f64.powi(p));
    let inside = |v: &f64| (low..=high).contains(v);
    let fine: Vec<f64> = powers().flat_map(|p| [p, 2.0 * p, 5.0 * p]).filter(inside).collect();
    if fine.len() <= 12 { fine } else { powers().filter(inside).collect() }
}

/// Batches of the report; where two lie closer than a label is wide, only the first.
fn batch_marks(report: &Report) -> Vec<f64> {
    let mut marks: Vec<f64> = Vec::new();
    let all: std::collections::BTreeSet<u64> =
        report.ledgers.keys().chain(report.measured.keys()).copied().filter(|b| *b > 0).collect();
    for b in all.into_iter().map(|b| b as f64) {
        if marks.last().is_none_or(|last| b / last > 1.4) {
            marks.push(b);
        }
    }
    marks
}
