//! CSV: a row per ledger line, and a compact summary whose rows golden files hold.
use super::{Report, ReportError};
use crate::account::{Direction, Traffic, TrafficClass};
use crate::groups::{Group, LineKey};
use crate::units::Bytes;
use ::csv::{ReaderBuilder, StringRecord, WriterBuilder};
use std::collections::BTreeMap;

/// Batches that golden summaries are made at.
pub const GOLDEN_BATCHES: [u64; 4] = [1, 8, 64, 1024];

/// One row of [`lines`], as [`read_lines`] returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineRow {
    /// Batch of the ledger.
    pub batch: u64,
    /// Launch index.
    pub launch: usize,
    /// Layer, if any.
    pub layer: Option<u16>,
    /// Kind, name and operation.
    pub key: LineKey,
    /// Bytes touched.
    pub touched: Traffic,
    /// Bytes read over the memory bus.
    pub dram_read: Bytes,
    /// Bytes written over the memory bus.
    pub dram_write: Bytes,
}

const FIXED: [&str; 6] = ["batch", "launch", "layer", "kind", "name", "op"];
const DIRECTIONS: [(Direction, &str); 2] = [(Direction::Read, "read"), (Direction::Write, "write")];

/// Column of each touched class and direction, in order.
fn touched_columns() -> impl Iterator<Item = (TrafficClass, Direction, String)> {
    TrafficClass::ALL.into_iter().flat_map(|class| {
        DIRECTIONS.map(|(direction, name)| (class, direction, format!("touched_{class}_{name}")))
    })
}

fn header() -> Vec<String> {
    let fixed = FIXED.iter().map(|s| (*s).to_string());
    let tail = ["dram_read".to_string(), "dram_write".to_string()];
    fixed.chain(touched_columns().map(|(_, _, name)| name)).chain(tail).collect()
}

/// A row per line and batch.
pub fn lines(report: &Report) -> Result<String, ReportError> {
    let mut rows = vec![header()];
    for (batch, ledger) in &report.ledgers {
        for line in &ledger.lines {
            let layer = line.layer.map_or(String::new(), |l| l.to_string());
            let mut row = vec![batch.to_string(), line.launch.to_string(), layer];
            row.extend([line.kind.clone(), line.name.clone(), line.op.clone()]);
            row.extend(touched_columns().map(|(c, d, _)| line.touched.get(c, d).0.to_string()));
            row.extend([line.dram.reads(), line.dram.writes()].map(|b| b.0.to_string()));
            rows.push(row);
        }
    }
    write(&rows)
}

/// A row per (kind, name, op): lines, launches, touched and dram bytes at each batch of the report.
///
/// A batch whose plan has no such line leaves zeros.
pub fn summary(report: &Report) -> Result<String, ReportError> {
    let batches: Vec<u64> = report.ledgers.keys().copied().collect();
    let mut table: BTreeMap<LineKey, Vec<Option<Group>>> = BTreeMap::new();
    for (i, ledger) in report.ledgers.values().enumerate() {
        for group in ledger.groups() {
            let row = table.entry(group.key.clone()).or_insert_with(|| vec![None; batches.len()]);
            row[i] = Some(group);
        }
    }
    let mut names: Vec<String> = FIXED[3..].iter().map(|s| (*s).to_string()).collect();
    for batch in &batches {
        names.extend(["lines", "launches", "touched", "dram"].map(|what| format!("{what}_b{batch}")));
    }
    let mut rows = vec![names];
    for (key, groups) in table {
        let mut row = vec![key.kind, key.name, key.op];
        for group in groups {
            let figures =
                group.map_or([0; 4], |g| [g.lines, g.launches, g.touched.total().0, g.dram.total().0]);
            row.extend(figures.map(|n| n.to_string()));
        }
        rows.push(row);
    }
    write(&rows)
}

/// Reads what [`lines`] wrote.
pub fn read_lines(text: &str) -> Result<Vec<LineRow>, ReportError> {
    let mut reader = ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    let columns = header();
    let mut rows = Vec::new();
    for (i, record) in reader.records().enumerate() {
        let fields = Fields { record: &record?, row: i + 1, columns: &columns };
        if i == 0 {
            fields.check_header()?;
        } else {
            rows.push(fields.line()?);
        }
    }
    Ok(rows)
}

struct Fields<'a> {
    record: &'a StringRecord,
    row: usize,
    columns: &'a [String],
}

impl Fields<'_> {
    fn text(&self, column: usize) -> &str {
        self.record.get(column).unwrap_or_default()
    }

    fn error(&self, column: usize, want: &'static str) -> ReportError {
        let name = self.columns.get(column).cloned().unwrap_or_else(|| column.to_string());
        ReportError::Field { row: self.row, column: name, got: self.text(column).into(), want }
    }

    fn check_header(&self) -> Result<(), ReportError> {
        let count = self.columns.len().max(self.record.len());
        match (0..count).find(|c| self.columns.get(*c).map(String::as_str) != self.record.get(*c)) {
            Some(column) => Err(self.error(column, "the name of this column")),
            None => Ok(()),
        }
    }

    fn number<T: std::str::FromStr>(&self, column: usize) -> Result<T, ReportError> {
        self.text(column).parse().map_err(|_| self.error(column, "an integer in range"))
    }

    fn line(&self) -> Result<LineRow, ReportError> {
        let mut touched = Traffic::default();
        let mut next = FIXED.len();
        for (class, direction, _) in touched_columns() {
            touched.add(class, direction, Bytes(self.number(next)?));
            next += 1;
        }
        let [kind, name, op] = [3, 4, 5].map(|c| self.text(c).to_string());
        Ok(LineRow {
            batch: self.number(0)?,
            launch: self.number(1)?,
            layer: if self.text(2).is_empty() { None } else { Some(self.number(2)?) },
            key: LineKey { kind, name, op },
            touched,
            dram_read: Bytes(self.number(next)?),
            dram_write: Bytes(self.number(next + 1)?),
        })
    }
}

fn write(rows: &[Vec<String>]) -> Result<String, ReportError> {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    for row in rows {
        writer.write_record(row)?;
    }
    let bytes = writer.into_inner().map_err(|e| ::csv::Error::from(e.into_error()))?;
    Ok(String::from_utf8(bytes).expect("all fields are strings, so their bytes are UTF-8"))
}
