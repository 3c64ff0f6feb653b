//! Expert coverage: what recorded routes say about the distinct experts of a step, beside the expectation.
//!
//! Routes are JSON lines, one per step and MoE layer: `{"step":0,"layer":3,"experts":[[5,17],[5,90]]}` with
//! one list of expert ids per row. Pricing uses the distinct count, since an active expert is read once.
use crate::facts::{StepFacts, expected_distinct_experts};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, Read};
use thiserror::Error;

/// What a routes file may hold. Files come from outside, so each size has a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteLimits {
    /// Routed experts of a layer: ids are below it.
    pub experts: u16,
    /// Bytes of a line.
    pub line_bytes: usize,
    /// Lines of a file.
    pub lines: usize,
    /// Rows of a line.
    pub rows: usize,
}

impl RouteLimits {
    /// Limits for a model with `experts` routed experts a layer.
    pub fn new(experts: u16) -> Self {
        Self { experts, line_bytes: 4 << 20, lines: 1 << 20, rows: 1 << 16 }
    }
}

/// The routes of one layer in one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteRecord {
    /// Step number.
    pub step: u64,
    /// Layer index in the model.
    pub layer: u16,
    /// Expert ids of each row.
    pub experts: Vec<Vec<u16>>,
}

/// Why a routes file was refused. Lines count from 1.
#[derive(Debug, Error)]
pub enum RouteError {
    /// Reading failed.
    #[error("routes line {line}: {source}")]
    Io {
        /// Line being read.
        line: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// A limit of [`RouteLimits`] is exceeded.
    #[error("routes line {line}: {field} exceeds the limit of {limit}")]
    Limit {
        /// Line.
        line: usize,
        /// What is too large.
        field: &'static str,
        /// The limit.
        limit: usize,
    },
    /// Not the JSON that is expected.
    #[error("routes line {line}: {source}")]
    Json {
        /// Line.
        line: usize,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// An expert id that the layer does not have.
    #[error("routes line {line}, row {row}: expert {got} is not below {experts}")]
    Expert {
        /// Line.
        line: usize,
        /// Row.
        row: usize,
        /// The id.
        got: u16,
        /// Experts of a layer.
        experts: u16,
    },
    /// A row names an expert twice.
    #[error("routes line {line}, row {row}: expert {got} appears twice")]
    Repeated {
        /// Line.
        line: usize,
        /// Row.
        row: usize,
        /// The id.
        got: u16,
    },
    /// A row whose number of experts is zero or differs from the first row of the file.
    #[error("routes line {line}, row {row}: {got} experts, the file's rows have {want}")]
    TopK {
        /// Line.
        line: usize,
        /// Row.
        row: usize,
        /// Experts of this row.
        got: usize,
        /// Experts of the file's first row (1 stands for "at least one").
        want: usize,
    },
    /// Two records of one step and layer.
    #[error("routes line {line}: step {step} layer {layer} was given before")]
    Duplicate {
        /// Line.
        line: usize,
        /// Step.
        step: u64,
        /// Layer.
        layer: u16,
    },
    /// A step lacks a layer that other steps have, or its layers differ in rows.
    #[error("routes step {step}, layer {layer}: {got} rows, the step has {want}")]
    Incomplete {
        /// Step.
        step: u64,
        /// Layer.
        layer: u16,
        /// Rows of that layer; zero when it is absent.
        got: usize,
        /// Rows of the step's first layer.
        want: usize,
    },
    /// No record at all.
    #[error("routes: no records")]
    Empty,
}

/// Recorded routes: every step has the same layers, every layer of a step the same rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    experts: u16,
    top_k: usize,
    layers: Vec<u16>,
    steps: BTreeMap<u64, BTreeMap<u16, Vec<Vec<u16>>>>,
}

/// Measured coverage of one layer beside the uniform expectation at the same rows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Layer.
    pub layer: u16,
    /// Mean distinct experts a step.
    pub measured: f64,
    /// Mean of the expectation under uniform, independent routing.
    pub uniform: f64,
}

impl Coverage {
    /// Measured over expected: below 1 when rows share experts more than chance has it.
    pub fn ratio(&self) -> f64 {
        self.measured / self.uniform
    }
}

impl Routes {
    /// Reads JSON lines. Empty lines are skipped.
    pub fn read(mut from: impl BufRead, limits: RouteLimits) -> Result<Self, RouteError> {
        let mut routes =
            Self { experts: limits.experts, top_k: 0, layers: Vec::new(), steps: BTreeMap::new() };
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let bound = limits.line_bytes as u64 + 1;
            let read = from.by_ref().take(bound).read_until(b'\n', &mut text);
            if read.map_err(|source| RouteError::Io { line, source })? == 0 {
                break;
            }
            let field = if text.trim_ascii_end().len() > limits.line_bytes { "bytes" } else { "lines" };
            if field == "bytes" || line > limits.lines {
                let limit = if field == "bytes" { limits.line_bytes } else { limits.lines };
                return Err(RouteError::Limit { line, field, limit });
            }
            if !text.trim_ascii().is_empty() {
                let record =
                    serde_json::from_slice(&text).map_err(|source| RouteError::Json { line, source })?;
                routes.insert(record, line, limits.rows)?;
            }
        }
        routes.finish()
    }

    fn insert(&mut self, record: RouteRecord, line: usize, limit: usize) -> Result<(), RouteError> {
        if record.experts.len() > limit {
            return Err(RouteError::Limit { line, field: "rows", limit });
        }
        for (row, ids) in record.experts.iter().enumerate() {
            if self.top_k == 0 {
                self.top_k = ids.len();
            }
            if ids.is_empty() || ids.len() != self.top_k {
                return Err(RouteError::TopK { line, row, got: ids.len(), want: self.top_k.max(1) });
            }
            let mut seen = BTreeSet::new();
            for &got in ids {
                if got >= self.experts {
                    return Err(RouteError::Expert { line, row, got, experts: self.experts });
                }
                if !seen.insert(got) {
                    return Err(RouteError::Repeated { line, row, got });
                }
            }
        }
        let RouteRecord { step, layer, experts } = record;
        match self.steps.entry(step).or_default().insert(layer, experts) {
            Some(_) => Err(RouteError::Duplicate { line, step, layer }),
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Self, RouteError> {
        let layers: BTreeSet<u16> = self.steps.values().flat_map(|s| s.keys().copied()).collect();
        if layers.is_empty() || self.top_k == 0 {
            return Err(RouteError::Empty);
        }
        for (&step, by_layer) in &self.steps {
            let want = by_layer.values().next().map_or(0, Vec::len);
            for &layer in &layers {
                let got = by_layer.get(&layer).map_or(0, Vec::len);
                if got != want || got == 0 {
                    return Err(RouteError::Incomplete { step, layer, got, want });
                }
            }
        }
        self.layers = layers.into_iter().collect();
        Ok(self)
    }

    /// MoE layers, ascending.
    pub fn layers(&self) -> &[u16] {
        &self.layers
    }

    /// Step numbers, ascending.
    pub fn steps(&self) -> impl Iterator<Item = u64> {
        self.steps.keys().copied()
    }

    /// Experts a row is sent to.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Rows of a step.
    pub fn rows(&self, step: u64) -> Option<usize> {
        self.steps.get(&step)?.values().next().map(Vec::len)
    }

    /// Numbers of rows that steps have, ascending.
    pub fn row_counts(&self) -> BTreeSet<usize> {
        self.steps().filter_map(|step| self.rows(step)).collect()
    }

    /// The steps of `rows` rows alone; `None` when there is none.
    pub fn of_rows(&self, rows: usize) -> Option<Self> {
        let alike = |(_, layers): &(&u64, &BTreeMap<u16, Vec<Vec<u16>>>)| {
            layers.values().next().is_some_and(|l| l.len() == rows)
        };
        let steps: BTreeMap<_, _> =
            self.steps.iter().filter(alike).map(|(step, layers)| (*step, layers.clone())).collect();
        let (experts, top_k, layers) = (self.experts, self.top_k, self.layers.clone());
        (!steps.is_empty()).then_some(Self { experts, top_k, layers, steps })
    }

    /// Distinct experts of each layer in `step`, in layer order.
    pub fn distinct(&self, step: u64) -> Option<Vec<usize>> {
        Some(self.steps.get(&step)?.values().map(|rows| distinct(rows)).collect())
    }

    /// Mean distinct experts a step of each layer, in layer order.
    pub fn mean_distinct(&self) -> Vec<f64> {
        self.coverage().iter().map(|c| c.measured).collect()
    }

    /// How often an active expert had `n` rows, over all steps and layers: `n` to occurrences.
    pub fn rows_per_expert(&self) -> BTreeMap<u64, u64> {
        let mut histogram = BTreeMap::new();
        for rows in self.steps.values().flat_map(BTreeMap::values) {
            let mut load: BTreeMap<u16, u64> = BTreeMap::new();
            rows.iter().flatten().for_each(|id| *load.entry(*id).or_default() += 1);
            load.into_values().for_each(|n| *histogram.entry(n).or_default() += 1);
        }
        histogram
    }

    /// `base` with the distinct experts that `step` really had; `None` when the step was not recorded.
    pub fn facts_of(&self, step: u64, base: &StepFacts) -> Option<StepFacts> {
        let experts = self.distinct(step)?.into_iter().map(|n| n as f64).collect();
        Some(StepFacts { experts, ..base.clone() })
    }

    /// `base` with the mean distinct experts of each layer: what a step costs under these routes.
    pub fn mean_facts(&self, base: &StepFacts) -> StepFacts {
        StepFacts { experts: self.mean_distinct(), ..base.clone() }
    }

    /// Each layer's mean coverage beside the uniform expectation for the same rows.
    pub fn coverage(&self) -> Vec<Coverage> {
        let steps = self.steps.len() as f64;
        let expect = |rows: &Vec<Vec<u16>>| {
            expected_distinct_experts(u64::from(self.experts), self.top_k as u64, rows.len() as u64)
        };
        let of = |&layer: &u16| {
            let mut mean = Coverage { layer, measured: 0.0, uniform: 0.0 };
            for rows in self.steps.values().filter_map(|s| s.get(&layer)) {
                mean.measured += distinct(rows) as f64 / steps;
                mean.uniform += expect(rows) / steps;
            }
            mean
        };
        self.layers.iter().map(of).collect()
    }
}

fn distinct(rows: &[Vec<u16>]) -> usize {
    rows.iter().flatten().collect::<BTreeSet<_>>().len()
}

#[cfg(test)]
#[path = "coverage_tests.rs"]
mod tests;
