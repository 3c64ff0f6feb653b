//! The terminal table: bytes by layer kind and class, then totals exact to the byte.
use super::Report;
use crate::account::{Traffic, TrafficClass};
use crate::step::StepLedger;
use crate::units::{Bytes, grouped};

/// Rows of cells. The first row is the header; the first column is left-aligned, all others right.
pub(super) type Cells = Vec<Vec<String>>;

/// The report as plain text.
pub fn table(report: &Report) -> String {
    let mut out = format!(
        "{} in {} on {} (last cache {})\nweights of the pack: {} B ({})\n",
        report.model,
        report.recipe,
        report.device.name,
        report.device.last_cache,
        grouped(report.weights.0),
        report.weights
    );
    out += &format!("\nsteps (floor by {})\n", report.rate_source());
    out += &aligned(&steps(report));
    for (batch, ledger) in &report.ledgers {
        out += &format!(
            "\nbatch {batch}: {} rows, {} launches, {} lines\n",
            ledger.facts.rows,
            ledger.launches,
            ledger.lines.len()
        );
        out += &aligned(&kinds(ledger));
        out.push('\n');
        out += &aligned(&totals(ledger));
    }
    if let Some(closure) = &report.closure {
        out += &format!("\nclosure of a step of {}\n", closure.step());
        out += &aligned(&closing(closure));
    }
    // Names come from files: what could move a terminal's cursor is not printed.
    out.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect()
}

/// Batches against their sums.
pub(super) fn steps(report: &Report) -> Cells {
    let mut rows =
        vec![cells(&["batch", "launches", "active weights", "touched", "dram", "floor", "measured"])];
    let time = |t: Option<crate::units::Nanos>| t.map_or("-".into(), |t| t.to_string());
    for s in report.summary() {
        rows.push(vec![
            s.batch.to_string(),
            s.launches.to_string(),
            s.active.to_string(),
            (s.touched_read + s.touched_write).to_string(),
            (s.dram_read + s.dram_write).to_string(),
            time(s.floor),
            time(s.measured),
        ]);
    }
    rows
}

/// Layer kinds against classes, in readable units.
pub(super) fn kinds(ledger: &StepLedger) -> Cells {
    let mut header = cells(&["kind", "launches"]);
    header.extend(TrafficClass::ALL.iter().map(|c| c.name().to_string()));
    header.extend(cells(&["read", "write", "touched", "dram"]));
    let row = |name: &str, launches: u64, touched: &Traffic, dram: &Traffic| {
        let mut row = vec![name.to_string(), launches.to_string()];
        row.extend(TrafficClass::ALL.iter().map(|c| human(touched.class(*c))));
        row.extend([touched.reads(), touched.writes(), touched.total(), dram.total()].map(human));
        row
    };
    let mut rows = vec![header];
    rows.extend(ledger.kinds().iter().map(|k| row(&k.kind, k.launches, &k.touched, &k.dram)));
    rows.push(row("total", ledger.launches as u64, &ledger.touched(), &ledger.dram()));
    rows
}

/// Classes against directions, exact to the byte, with the total in readable units beside it.
pub(super) fn totals(ledger: &StepLedger) -> Cells {
    let (touched, dram) = (ledger.touched(), ledger.dram());
    let mut rows = vec![cells(&[
        "class",
        "read B",
        "write B",
        "touched B",
        "dram read B",
        "dram write B",
        "touched",
        "dram",
    ])];
    let row = |name: &str, exact: [Bytes; 5]| {
        let mut row = vec![name.to_string()];
        row.extend(exact.iter().map(|b| grouped(b.0)));
        row.push(human(exact[2]));
        row.push(human(exact[3] + exact[4]));
        row
    };
    for class in TrafficClass::ALL {
        let i = class as usize;
        let exact = [touched.read[i], touched.write[i], touched.class(class), dram.read[i], dram.write[i]];
        rows.push(row(class.name(), exact));
    }
    let all = [touched.reads(), touched.writes(), touched.total(), dram.reads(), dram.writes()];
    rows.push(row("total", all));
    rows
}

/// The parts of a closure, signs as they enter the sum.
pub(super) fn closing(closure: &crate::closure::Closure) -> Cells {
    let mut rows = vec![cells(&["part", "count", "ns", "share", "bytes", "GB/s"])];
    let step = closure.step().0 as f64;
    let share = |ns: i64| format!("{:.2} %", ns as f64 * 100.0 / step);
    for line in closure.lines() {
        let ns = line.time.0 as i64;
        let rate = line.bytes.over(line.time).map_or("-".into(), |r| format!("{:.1}", r.gbps()));
        let name = format!("{} {}", line.kind, line.name);
        rows.push(vec![
            name,
            line.count.to_string(),
            grouped(line.time.0),
            share(ns),
            human(line.bytes),
            rate,
        ]);
    }
    let parts = [
        ("gaps", closure.gaps().0 as i64),
        ("overlap", -(closure.overlap().0 as i64)),
        ("unexplained", closure.unexplained()),
        ("step", closure.step().0 as i64),
    ];
    for (name, ns) in parts {
        let sign = if ns < 0 { "-" } else { "" };
        let exact = format!("{sign}{}", grouped(ns.unsigned_abs()));
        rows.push(vec![name.into(), String::new(), exact, share(ns), String::new(), String::new()]);
    }
    rows
}

fn cells(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_string()).collect()
}

/// A zero is a dash, so that the eye finds what is there.
fn human(bytes: Bytes) -> String {
    if bytes.0 == 0 { "-".into() } else { bytes.to_string() }
}

/// Pads columns to equal width, with a rule under the header.
fn aligned(rows: &Cells) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for (i, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let w = widths[c];
            line += &if c == 0 { format!("  {cell:<w$}") } else { format!("  {cell:>w$}") };
        }
        out += line.trim_end();
        out.push('\n');
        if i == 0 {
            let total = widths.iter().map(|w| w + 2).sum::<usize>() - 2;
            out += &format!("  {}\n", "-".repeat(total));
        }
    }
    out
}
