//! The waterfall of a closure: each measured part starts where the one before ended, down to the step.
use super::super::{Report, ReportError};
use super::canvas::{Canvas, FAINT, INK, MUTED, Side, cut, short, ticks};
use crate::closure::Closure;
use plotters::style::RGBColor;

const WIDTH: u32 = 960;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 780.0;
const TOP: i32 = 66;
const ROW: i32 = 24;
/// Lines with a bar of their own; the shorter ones share one.
const SHOWN: usize = 20;

const LINE: RGBColor = RGBColor(0, 114, 178);
const REST: RGBColor = RGBColor(140, 140, 140);
const GAPS: RGBColor = RGBColor(230, 159, 0);
const OVERLAP: RGBColor = RGBColor(0, 158, 115);
const UNEXPLAINED: RGBColor = RGBColor(213, 94, 0);

struct Bar {
    label: String,
    from: f64,
    to: f64,
    color: RGBColor,
}

/// The figure. Needs a closure.
pub fn closure(report: &Report) -> Result<String, ReportError> {
    let closure =
        report.closure.as_ref().ok_or(ReportError::Nothing { format: "svg-closure", needs: "closure" })?;
    let bars = bars(closure);
    let low = bars.iter().map(|b| b.from.min(b.to)).fold(0.0, f64::min);
    let high = bars.iter().map(|b| b.from.max(b.to)).fold(0.0, f64::max);
    let (unit, divisor) = if high >= 1e6 { ("ms", 1e6) } else { ("us", 1e3) };
    let marks = ticks(high / divisor);
    let end = marks.last().copied().unwrap_or(1.0) * divisor;
    let x = |ns: f64| LEFT + (RIGHT - LEFT) * (ns - low) / (end - low);
    let height = TOP + bars.len() as i32 * ROW + 44;
    Canvas::sheet(WIDTH, height.unsigned_abs(), |canvas| {
        let title = format!("Closure of a step: {} in {}", report.model, report.recipe);
        let share = closure.unexplained_fraction() * 100.0;
        let under =
            format!("device {}; step {}, unexplained {share:+.2} %", report.device.name, closure.step());
        canvas.title(&cut(&title, 90), &under)?;
        let base = f64::from(TOP + bars.len() as i32 * ROW);
        for mark in &marks {
            let at = x(mark * divisor);
            canvas.path(&[(at, f64::from(TOP)), (at, base)], 1, FAINT)?;
            canvas.text(&short(*mark), (at, base + 12.0), 11.0, Side::Middle, MUTED)?;
        }
        canvas.text(unit, (RIGHT + 30.0, base + 12.0), 11.0, Side::Start, MUTED)?;
        for (i, bar) in bars.iter().enumerate() {
            let y = TOP + i as i32 * ROW;
            let middle = f64::from(y) + 12.0;
            canvas.text(&cut(&bar.label, 32), (LEFT - 8.0, middle), 12.0, Side::End, INK)?;
            canvas.bar((x(bar.from), x(bar.to)), (y + 4, y + 20), bar.color)?;
            let ns = bar.to - bar.from;
            let figure =
                format!("{} {unit} ({:.1} %)", short(ns / divisor), ns * 100.0 / closure.step().0 as f64);
            canvas.text(&figure, (x(bar.from.max(bar.to)) + 6.0, middle), 11.0, Side::Start, MUTED)?;
        }
        Ok(())
    })
}

fn bars(closure: &Closure) -> Vec<Bar> {
    let mut lines: Vec<_> = closure.lines().iter().collect();
    lines.sort_by_key(|l| std::cmp::Reverse(l.time));
    let rest: u64 = lines.iter().skip(SHOWN).map(|l| l.time.0).sum();
    let mut parts: Vec<(String, f64, RGBColor)> = lines
        .iter()
        .take(SHOWN)
        .map(|l| (format!("{} {} x{}", l.kind, l.name, l.count), l.time.0 as f64, LINE))
        .collect();
    if lines.len() > SHOWN {
        parts.push((format!("{} shorter lines", lines.len() - SHOWN), rest as f64, REST));
    }
    parts.push(("gaps".into(), closure.gaps().0 as f64, GAPS));
    if closure.overlap().0 > 0 {
        parts.push(("overlap".into(), -(closure.overlap().0 as f64), OVERLAP));
    }
    parts.push(("unexplained".into(), closure.unexplained() as f64, UNEXPLAINED));
    let mut at = 0.0;
    let mut bars: Vec<Bar> = parts
        .into_iter()
        .map(|(label, ns, color)| {
            let from = at;
            at += ns;
            Bar { label, from, to: at, color }
        })
        .collect();
    bars.push(Bar { label: "step".into(), from: 0.0, to: closure.step().0 as f64, color: INK });
    bars
}
