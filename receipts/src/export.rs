//! CSV of a store's step receipts.
//!
//! Columns are only ever added at the end, so a spreadsheet or script keeps working. Absent values are
//! empty cells, never zero.

use std::io;

use crate::canon::short;
use crate::schema::Receipt;
use crate::store::Record;

/// The columns, in order. Append only.
pub const CSV_COLUMNS: [&str; 29] = [
    "id",
    "created",
    "kind",
    "verdict",
    "failed_clauses",
    "model",
    "recipe",
    "numeric_class",
    "context",
    "batch",
    "pipeline",
    "tensor",
    "microbatches",
    "transport",
    "device_class",
    "device_name",
    "step_ns",
    "tokens_per_second_milli",
    "bytes_per_step",
    "achieved_bytes_per_second",
    "ceiling_bytes_per_second",
    "fraction_ppm",
    "launches",
    "unexplained_ns",
    "unexplained_ppm",
    "samples",
    "relative_stdev_ppm",
    "canary_moved_ppm",
    "tuple_id",
];

/// Writes one row for each step receipt; returns how many.
pub fn write_csv<W: io::Write>(records: &[Record], out: W) -> Result<usize, csv::Error> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(CSV_COLUMNS)?;
    let mut rows = 0;
    for record in records {
        if let Some(receipt) = record.entry().step() {
            writer.write_record(row(record, receipt))?;
            rows += 1;
        }
    }
    writer.flush()?;
    Ok(rows)
}

fn row(record: &Record, receipt: &Receipt) -> [String; CSV_COLUMNS.len()] {
    fn cell<T: ToString>(value: Option<T>) -> String {
        value.map(|v| v.to_string()).unwrap_or_default()
    }
    let tuple = &receipt.tuple;
    let m = receipt.measured.as_ref();
    let closure = receipt.closure.as_ref();
    [
        short(&record.id).to_owned(),
        receipt.created.clone(),
        receipt.kind.as_str().to_owned(),
        cell(receipt.verdict.as_ref().map(|v| v.word())),
        failed_clauses(receipt),
        tuple.model.clone(),
        tuple.recipe.clone(),
        tuple.numeric_class.clone(),
        tuple.context.to_string(),
        tuple.batch.to_string(),
        tuple.pipeline.to_string(),
        tuple.tensor.to_string(),
        tuple.microbatches.to_string(),
        tuple.transport.to_string(),
        receipt.admission.device_class.clone(),
        receipt.admission.device_name.clone(),
        cell(m.map(|m| m.step_ns)),
        cell(m.map(|m| m.tokens_per_second_milli)),
        cell(m.map(|m| m.bytes_per_step)),
        cell(m.map(|m| m.achieved_bytes_per_second)),
        cell(m.map(|m| m.ceiling_bytes_per_second)),
        cell(m.map(|m| m.fraction_ppm)),
        cell(m.map(|m| m.launches)),
        cell(closure.map(|c| c.unexplained_ns)),
        cell(closure.map(|c| c.unexplained_ppm)),
        cell(m.map(|m| m.series_ns.len())),
        cell(m.and_then(|m| m.relative_stdev_ppm)),
        cell(receipt.canary.map(|c| c.moved_ppm)),
        tuple.id(),
    ]
}

fn failed_clauses(receipt: &Receipt) -> String {
    match &receipt.verdict {
        Some(crate::verdict::Verdict::Fail { clauses }) => {
            clauses.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(" ")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, GENESIS, Policy, Sealed, Signer, testkit};

    fn csv_of(entries: Vec<Entry>) -> Vec<Vec<String>> {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(dir.path()).unwrap();
        let record = |(index, entry): (usize, Entry)| Record {
            index,
            id: "ab".repeat(32),
            sealed: Sealed::new(entry, GENESIS, &signer).unwrap(),
        };
        let records: Vec<Record> = entries.into_iter().enumerate().map(record).collect();
        let mut out = Vec::new();
        write_csv(&records, &mut out).unwrap();
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&out[..]);
        reader.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect()
    }

    #[test]
    fn step_receipts_are_rows_and_absent_values_are_empty() {
        let mut failed = testkit::good();
        failed.canary = None;
        failed.closure = None;
        let policy = Policy::embedded();
        let rows = csv_of(vec![
            Entry::Step(testkit::good().judged(&policy)),
            Entry::Kernel(testkit::kernel()),
            Entry::Step(failed.judged(&policy)),
        ]);
        assert_eq!(rows.len(), 3, "a header and two rows");
        let at =
            |row: usize, name: &str| rows[row][CSV_COLUMNS.iter().position(|c| *c == name).unwrap()].as_str();
        assert_eq!(
            (at(1, "verdict"), at(1, "step_ns"), at(1, "id")),
            ("pass", "1002000", "abababababababab")
        );
        assert_eq!((at(2, "verdict"), at(2, "failed_clauses")), ("fail", "no_field_missing"));
        assert_eq!((at(2, "canary_moved_ppm"), at(2, "unexplained_ns")), ("", ""));
    }

    /// Scripts index by position: these may not move.
    #[test]
    fn the_first_columns_stay_where_they_are() {
        assert_eq!(CSV_COLUMNS[..4], ["id", "created", "kind", "verdict"]);
        assert_eq!((CSV_COLUMNS[9], CSV_COLUMNS[16], CSV_COLUMNS[28]), ("batch", "step_ns", "tuple_id"));
    }
}
