//! Reports: one [`Report`] in several formats, all of them sums over the same ledger lines.
//!
//! [`render`] is the entry. A format never computes a figure of its own: it prints what the ledger holds.
pub mod csv;
pub mod html;
pub mod json;
pub mod svg;
pub mod table;

use crate::account::TrafficClass;
use crate::closure::Closure;
use crate::device::DeviceProfile;
use crate::roofline::{CeilingCurve, Mix};
use crate::step::StepLedger;
use crate::units::{Bytes, BytesPerSecond, Nanos};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::str::FromStr;
use thiserror::Error;

/// What is reported: the ledgers of one model in one recipe for one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// Model name.
    pub model: String,
    /// Recipe name.
    pub recipe: String,
    /// Device the dram rule used.
    pub device: DeviceProfile,
    /// Bytes of all packed weights, whether a step reads them or not.
    pub weights: Bytes,
    /// Step ledgers by batch.
    pub ledgers: BTreeMap<u64, StepLedger>,
    /// Probed ceilings, when there was a probe.
    pub ceiling: Option<CeilingCurve>,
    /// Measured step times by batch, when there are any.
    pub measured: BTreeMap<u64, Nanos>,
    /// A closed step, when one was measured.
    pub closure: Option<Closure>,
}

/// The figures of one batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchSummary {
    /// Batch.
    pub batch: u64,
    /// Launches of the step.
    pub launches: usize,
    /// Weight bytes that the step reads.
    pub active: Bytes,
    /// Bytes touched, read.
    pub touched_read: Bytes,
    /// Bytes touched, written.
    pub touched_write: Bytes,
    /// Bytes on the memory bus, read.
    pub dram_read: Bytes,
    /// Bytes on the memory bus, written.
    pub dram_write: Bytes,
    /// Least time of the step; `None` when neither a ceiling nor a datasheet rate is known.
    pub floor: Option<Nanos>,
    /// Measured time of the step.
    pub measured: Option<Nanos>,
}

impl Report {
    /// A report of derived figures only: no probe, no measurement.
    pub fn new(
        model: impl Into<String>,
        recipe: impl Into<String>,
        device: DeviceProfile,
        weights: Bytes,
        ledgers: BTreeMap<u64, StepLedger>,
    ) -> Self {
        let (model, recipe) = (model.into(), recipe.into());
        let (ceiling, measured, closure) = (None, BTreeMap::new(), None);
        Self { model, recipe, device, weights, ledgers, ceiling, measured, closure }
    }

    /// The rate a step's floor is taken at: the probed ceiling at its bytes and mix, else the datasheet's.
    pub fn rate_for(&self, ledger: &StepLedger) -> Option<BytesPerSecond> {
        let dram = ledger.dram();
        let mix = Mix { read: dram.reads(), write: dram.writes(), in_place: false };
        self.ceiling
            .as_ref()
            .map(|c| c.ceiling_for(dram.total(), mix).rate)
            .or(self.device.nominal)
            .filter(|r| r.0.is_finite() && r.0 > 0.0)
    }

    /// What the floor's rate is, in words.
    pub fn rate_source(&self) -> &'static str {
        match (&self.ceiling, self.device.nominal) {
            (Some(_), _) => "measured ceiling",
            (None, Some(_)) => "datasheet rate",
            (None, None) => "no rate known",
        }
    }

    /// The figures of each batch.
    pub fn summary(&self) -> Vec<BatchSummary> {
        let of = |(&batch, ledger): (&u64, &StepLedger)| {
            let (touched, dram) = (ledger.touched(), ledger.dram());
            BatchSummary {
                batch,
                launches: ledger.launches,
                active: touched.read[TrafficClass::Weight as usize],
                touched_read: touched.reads(),
                touched_write: touched.writes(),
                dram_read: dram.reads(),
                dram_write: dram.writes(),
                floor: self.rate_for(ledger).map(|r| r.time_for(dram.total())),
                measured: self.measured.get(&batch).copied(),
            }
        };
        self.ledgers.iter().map(of).collect()
    }
}

/// A format of [`render`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Terminal table.
    Table,
    /// A row per line and batch.
    Csv,
    /// A row per (kind, name, op), for golden files.
    SummaryCsv,
    /// All figures.
    Json,
    /// Figure: bytes by layer kind and class.
    Svg,
    /// Figure: step time against batch.
    SvgTime,
    /// Figure: waterfall of the closure.
    SvgClosure,
    /// Page with the figures and the table.
    Html,
}

impl Format {
    /// All formats with their names.
    pub const ALL: [(&'static str, Self); 8] = [
        ("table", Self::Table),
        ("csv", Self::Csv),
        ("summary-csv", Self::SummaryCsv),
        ("json", Self::Json),
        ("svg", Self::Svg),
        ("svg-time", Self::SvgTime),
        ("svg-closure", Self::SvgClosure),
        ("html", Self::Html),
    ];
}

impl FromStr for Format {
    type Err = ReportError;
    fn from_str(s: &str) -> Result<Self, ReportError> {
        let found = Self::ALL.iter().find(|(name, _)| *name == s);
        found.map(|(_, f)| *f).ok_or_else(|| ReportError::UnknownFormat { got: s.into() })
    }
}

/// Why a report could not be made or read back.
#[derive(Debug, Error)]
pub enum ReportError {
    /// No such format.
    #[error(
        "format {got:?} is unknown; known: table, csv, summary-csv, json, svg, svg-time, svg-closure, html"
    )]
    UnknownFormat {
        /// What was asked for.
        got: String,
    },
    /// The report has nothing to show in this format.
    #[error("{format}: the report has no {needs}")]
    Nothing {
        /// The format.
        format: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// CSV could not be written or read.
    #[error("csv: {0}")]
    Csv(#[from] ::csv::Error),
    /// A CSV field is not what its column holds.
    #[error("csv row {row}, column {column}: {got:?} is not {want}")]
    Field {
        /// Row, the header being 1.
        row: usize,
        /// Column name.
        column: String,
        /// The field.
        got: String,
        /// What was expected.
        want: &'static str,
    },
    /// JSON could not be written or read.
    #[error("json: {0}")]
    Json(#[from] serde_json::Error),
    /// A stored summary is not the one its ledgers give.
    #[error("json: summary of batch {batch} does not agree with its ledger")]
    Summary {
        /// Batch.
        batch: u64,
    },
    /// The bytes of a ledger do not fit in 64 bits.
    #[error("json: bytes of batch {batch} sum to {got}, limit {}", u64::MAX)]
    TooLarge {
        /// Batch.
        batch: u64,
        /// Their sum.
        got: u128,
    },
    /// The drawing backend failed.
    #[error("svg: {0}")]
    Draw(String),
}

/// Renders `report` as `format`.
pub fn render(report: &Report, format: Format) -> Result<String, ReportError> {
    match format {
        Format::Table => Ok(table::table(report)),
        Format::Csv => csv::lines(report),
        Format::SummaryCsv => csv::summary(report),
        Format::Json => json::write(report),
        Format::Svg => svg::bytes(report),
        Format::SvgTime => svg::time(report),
        Format::SvgClosure => svg::closure(report),
        Format::Html => html::page(report),
    }
}
