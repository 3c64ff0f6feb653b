//! Stacked bars: the touched bytes of each layer kind by class, a panel per batch with its own axis.
use super::super::{Report, ReportError};
use super::canvas::{Canvas, FAINT, INK, MUTED, Side, class_color, cut, short, ticks};
use crate::account::TrafficClass;
use crate::step::StepLedger;

const WIDTH: u32 = 960;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 850.0;
const HEAD: i32 = 92;
const ROW: i32 = 24;
const PANEL_EXTRA: i32 = 76;

/// The figure. Every batch of the report gets a panel.
pub fn bytes(report: &Report) -> Result<String, ReportError> {
    if report.ledgers.values().all(|l| l.lines.is_empty()) {
        return Err(ReportError::Nothing { format: "svg", needs: "ledger lines" });
    }
    let panel = |l: &StepLedger| l.kinds().len() as i32 * ROW + PANEL_EXTRA;
    let height = HEAD + report.ledgers.values().map(panel).sum::<i32>();
    Canvas::sheet(WIDTH, height.unsigned_abs(), |canvas| {
        let title = format!("Bytes of a step: {} in {}", report.model, report.recipe);
        let under = format!("touched bytes by layer kind, reads and writes; device {}", report.device.name);
        canvas.title(&cut(&title, 90), &under)?;
        legend(canvas, report)?;
        let mut top = HEAD;
        for (batch, ledger) in &report.ledgers {
            draw_panel(canvas, *batch, ledger, top)?;
            top += panel(ledger);
        }
        Ok(())
    })
}

/// Classes that occur, left to right.
fn legend(canvas: &Canvas<'_>, report: &Report) -> Result<(), ReportError> {
    let mut x = 20.0;
    for class in TrafficClass::ALL {
        if report.ledgers.values().any(|l| l.touched().class(class).0 > 0) {
            canvas.bar((x, x + 12.0), (64, 76), class_color(class))?;
            canvas.text(class.name(), (x + 18.0, 70.0), 12.0, Side::Start, INK)?;
            x += 40.0 + class.name().len() as f64 * 7.5;
        }
    }
    Ok(())
}

/// Unit and divisor that keep the axis below four digits.
fn unit(max: u64) -> (&'static str, f64) {
    match max {
        0..1_000_000 => ("kB", 1e3),
        1_000_000..1_000_000_000 => ("MB", 1e6),
        _ => ("GB", 1e9),
    }
}

fn draw_panel(canvas: &Canvas<'_>, batch: u64, ledger: &StepLedger, top: i32) -> Result<(), ReportError> {
    let kinds = ledger.kinds();
    let max = kinds.iter().map(|k| k.touched.total().0).max().unwrap_or(0);
    let (name, divisor) = unit(max);
    let marks = ticks(max as f64 / divisor);
    let end = marks.last().copied().unwrap_or(1.0) * divisor;
    let x = |bytes: f64| LEFT + (RIGHT - LEFT) * bytes / end;
    let total = ledger.touched().total();
    let head = format!("batch {batch}: {} launches, {total}", ledger.launches);
    canvas.text(&head, (20.0, f64::from(top) + 12.0), 13.0, Side::Start, INK)?;
    let first = top + 28;
    let base = f64::from(first + kinds.len() as i32 * ROW);
    for mark in &marks {
        let at = x(mark * divisor);
        canvas.path(&[(at, f64::from(first)), (at, base)], 1, FAINT)?;
        canvas.text(&short(*mark), (at, base + 11.0), 11.0, Side::Middle, MUTED)?;
    }
    canvas.text(name, (RIGHT + 30.0, base + 11.0), 11.0, Side::Start, MUTED)?;
    for (i, kind) in kinds.iter().enumerate() {
        let y = first + i as i32 * ROW;
        let middle = f64::from(y) + 12.0;
        canvas.text(&cut(&kind.kind, 20), (LEFT - 8.0, middle), 12.0, Side::End, INK)?;
        let mut from = 0u64;
        for class in TrafficClass::ALL {
            let bytes = kind.touched.class(class).0;
            if bytes > 0 {
                canvas.bar(
                    (x(from as f64), x((from + bytes) as f64)),
                    (y + 4, y + 20),
                    class_color(class),
                )?;
            }
            from += bytes;
        }
        let label = kind.touched.total().to_string();
        canvas.text(&label, (x(from as f64) + 6.0, middle), 11.0, Side::Start, MUTED)?;
    }
    Ok(())
}
