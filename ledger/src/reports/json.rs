//! JSON: the whole report, its summary beside it for readers that want no sums of their own.
use super::{BatchSummary, Report, ReportError};
use crate::account::Traffic;
use crate::step::EvaluatedLine;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct Written<'a> {
    summary: Vec<BatchSummary>,
    report: &'a Report,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    summary: Vec<BatchSummary>,
    report: Report,
}

/// The report as JSON, indented.
pub fn write(report: &Report) -> Result<String, ReportError> {
    let mut text = serde_json::to_string_pretty(&Written { summary: report.summary(), report })?;
    text.push('\n');
    Ok(text)
}

/// Reads what [`write()`] wrote, and refuses a summary that its ledgers do not give.
pub fn read(text: &str) -> Result<Report, ReportError> {
    let Stored { summary, report } = serde_json::from_str(text)?;
    check_sums(&report)?;
    let derived = report.summary();
    let differs = derived.iter().zip(&summary).find(|(a, b)| a != b).map(|(a, _)| a.batch);
    let missing = || derived.get(summary.len()).or(summary.get(derived.len())).map(|s| s.batch);
    match differs.or_else(missing) {
        Some(batch) => Err(ReportError::Summary { batch }),
        None => Ok(report),
    }
}

/// Sums of a file's figures must fit before anything adds them up.
fn check_sums(report: &Report) -> Result<(), ReportError> {
    for (&batch, ledger) in &report.ledgers {
        let cells = |pick: fn(&EvaluatedLine) -> &Traffic| {
            let all = ledger.lines.iter().map(pick).flat_map(|t| t.read.iter().chain(&t.write));
            all.map(|Bytes(b)| u128::from(*b)).sum::<u128>()
        };
        let largest = cells(|l| &l.touched).max(cells(|l| &l.dram));
        if largest > u128::from(u64::MAX) {
            return Err(ReportError::TooLarge { batch, got: largest });
        }
    }
    Ok(())
}
