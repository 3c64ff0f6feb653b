//! The receipts themselves: a step receipt, a kernel receipt and the entry that holds either.
//!
//! Every number is an integer with its unit in the field name: nanoseconds (`_ns`), bytes, parts per
//! million (`_ppm`), 1e-9 units (`_nano`), 1e-3 units (`_milli`). A float never enters a signed
//! document. Sections a run could not produce are `null`; a verdict fails on every `null`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::identity::{AdmissionIdentity, EvidenceIdentity};
use crate::measured::{
    Canary, Ceilings, Closure, Correctness, Counters, Measured, bytes_per_second, median, ppm,
};
use crate::tuple::TupleKey;
use crate::verdict::Verdict;

/// The schema version this build reads and writes.
pub const SCHEMA_VERSION: u32 = 2;

/// How the numbers of a receipt came to be. Only [`Kind::Measured`] can ever admit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The real model was timed on the device named in the identity.
    Measured,
    /// Timed, but with made-up weights or routing.
    Synthetic,
    /// A model of a machine produced the times.
    Simulated,
    /// Worked out on paper.
    Estimated,
}

impl Kind {
    /// The spelling used in JSON and in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Synthetic => "synthetic",
            Self::Simulated => "simulated",
            Self::Estimated => "estimated",
        }
    }
}

/// Facts of the machine, for the reader; the gate compares identities, not these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceFacts {
    /// Processor model as the system reports it.
    pub cpu_model: String,
    /// Threads the run used.
    pub threads: u32,
    /// Memory available to the device, in bytes.
    pub memory_bytes: u64,
    /// Last-level cache, in bytes; `null` where the system does not say.
    pub last_cache_bytes: Option<u64>,
    /// Core clock during the run, in MHz; `null` where it cannot be read.
    pub clock_mhz: Option<u32>,
    /// Memory clock during the run, in MHz; `null` where it cannot be read.
    pub memory_clock_mhz: Option<u32>,
    /// Temperature after the run, in degrees Celsius; absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Power after the run, in milliwatts; absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_milliwatts: Option<u32>,
    /// Why clocks were held down after the run, as the driver's bits; absent where it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle_bits: Option<u64>,
}

/// Bytes of one traffic class in one step, as the plan prices them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ClassBytes {
    /// Bytes read by kernels.
    pub touched_read_bytes: u64,
    /// Bytes written by kernels.
    pub touched_write_bytes: u64,
    /// Bytes read that must come from memory beyond the last cache.
    pub dram_read_bytes: u64,
    /// Bytes written that must reach memory beyond the last cache.
    pub dram_write_bytes: u64,
}

/// What the plan says one step does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    /// Launches in the plan.
    pub launches: u64,
    /// Graph nodes the plan declares; on a device without graphs equal to `launches`.
    pub graph_nodes: u64,
    /// Bytes by traffic class (`weight`, `kv`, `state`, `activation`, `scratch`, `collective`).
    pub bytes: BTreeMap<String, ClassBytes>,
}

/// How the context bucket was filled before the timed series.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fill {
    /// Tokens of the prefix every row shares.
    pub prefix_tokens: u64,
    /// Tokens of the seeded suffix each row has for itself.
    pub suffix_tokens: u64,
    /// Rows that differ from every other row after the fill.
    pub distinct_rows: u32,
    /// Distinct experts the timed steps used, layer by layer; empty for a dense model.
    pub distinct_experts: Vec<u32>,
}

/// What admission may grant on the strength of this receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Most rows in a step.
    pub batch: u32,
    /// Most tokens in a sequence.
    pub context: u64,
    /// Memory price of one sequence at that context, in bytes.
    pub sequence_bytes: u64,
    /// Memory of the whole plan at these limits, in bytes.
    pub total_bytes: u64,
}

/// One line of the memory sum of a tuple that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryLine {
    /// What needs the memory.
    pub name: String,
    /// How much, in bytes.
    pub bytes: u64,
}

/// The arithmetic of a tuple that cannot run here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Infeasible {
    /// Everything the tuple would allocate.
    pub needs: Vec<MemoryLine>,
    /// Memory there is, in bytes.
    pub available_bytes: u64,
}

/// The receipt of one decode step at one tuple.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Receipt {
    /// Schema version of this document.
    pub schema_version: u32,
    /// How the numbers came to be.
    pub kind: Kind,
    /// The exact configuration.
    pub tuple: TupleKey,
    /// What must be equal for this receipt to admit.
    pub admission: AdmissionIdentity,
    /// Sources and tools the evidence rests on.
    pub evidence: EvidenceIdentity,
    /// Facts of the machine.
    pub device: DeviceFacts,
    /// Probed bandwidth ceilings.
    pub ceilings: Option<Ceilings>,
    /// What the plan says.
    pub planned: Option<Planned>,
    /// What the clock said.
    pub measured: Option<Measured>,
    /// Measured time, line by line.
    pub closure: Option<Closure>,
    /// Proof that what was timed is right.
    pub correctness: Option<Correctness>,
    /// Hidden slow states, looked for before and after.
    pub canary: Option<Canary>,
    /// Bytes counted, beside bytes planned.
    pub counters: Option<Counters>,
    /// How the bucket was filled.
    pub fill: Option<Fill>,
    /// What admission may grant.
    pub limits: Option<Limits>,
    /// Set only for a tuple that cannot run: why, in numbers.
    pub infeasible: Option<Infeasible>,
    /// Ids of the kernel receipts this one rests on.
    pub rests_on: Vec<String>,
    /// Launches of the step that no kernel receipt speaks for: operation, shape, format, class and batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rests_on_absent: Vec<String>,
    /// Measurement problems that did not void the run.
    pub warnings: Vec<String>,
    /// The verdict under the policy named in the identity; `null` until judged.
    pub verdict: Option<Verdict>,
    /// When the receipt was made, RFC 3339 in UTC.
    pub created: String,
}

/// The receipt of one kernel alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelReceipt {
    /// Schema version of this document.
    pub schema_version: u32,
    /// How the numbers came to be.
    pub kind: Kind,
    /// Operation name.
    pub op: String,
    /// Shape, as the plan prints it.
    pub shape: String,
    /// Weight format and layout.
    pub format: String,
    /// Numeric class.
    pub numeric_class: String,
    /// Rows.
    pub batch: u32,
    /// Device class.
    pub device_class: String,
    /// Device name as the system reports it.
    pub device_name: String,
    /// BLAKE3 of the executable that ran.
    pub executable: String,
    /// Sources and tools.
    pub evidence: EvidenceIdentity,
    /// Sample times in execution order, in ns.
    pub series_ns: Vec<u64>,
    /// Median of the series, in ns.
    pub median_ns: u64,
    /// Bytes one call moves, by its account.
    pub bytes: u64,
    /// Launches of one call.
    pub launches: u64,
    /// Ceiling at this working set, in bytes a second.
    pub ceiling_bytes_per_second: u64,
    /// Fraction of that ceiling, in ppm.
    pub fraction_ppm: u64,
    /// Largest error against f64, in 1e-9 units.
    pub error_nano: u64,
    /// Measurement problems that did not void the run.
    pub warnings: Vec<String>,
    /// When the receipt was made, RFC 3339 in UTC.
    pub created: String,
}

impl KernelReceipt {
    /// The receipt with median and fraction derived from its series, bytes and ceiling. `None` when there
    /// is no rate to speak of: an empty series, a median of zero, a ceiling of zero.
    #[must_use]
    pub fn derived(mut self) -> Option<Self> {
        self.median_ns = median(&self.series_ns)?;
        let achieved = bytes_per_second(self.bytes, self.median_ns)?;
        self.fraction_ppm = ppm(achieved, self.ceiling_bytes_per_second)?;
        Some(self)
    }
}

/// What one line of the store holds.
// A step receipt is the common case and entries are never kept in bulk by value: no box.
#[allow(clippy::large_enum_variant)]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A step receipt.
    Step(Receipt),
    /// A kernel receipt.
    Kernel(KernelReceipt),
}

impl Entry {
    /// The step receipt, if it is one.
    pub fn step(&self) -> Option<&Receipt> {
        match self {
            Self::Step(receipt) => Some(receipt),
            Self::Kernel(_) => None,
        }
    }

    /// The kernel receipt, if it is one.
    pub fn kernel(&self) -> Option<&KernelReceipt> {
        match self {
            Self::Step(_) => None,
            Self::Kernel(receipt) => Some(receipt),
        }
    }

    /// Schema version of the receipt inside.
    pub fn schema_version(&self) -> u32 {
        match self {
            Self::Step(receipt) => receipt.schema_version,
            Self::Kernel(receipt) => receipt.schema_version,
        }
    }

    /// When the receipt inside was made.
    pub fn created(&self) -> &str {
        match self {
            Self::Step(receipt) => &receipt.created,
            Self::Kernel(receipt) => &receipt.created,
        }
    }
}

/// The JSON Schema of one line of the store, with units in the descriptions.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(crate::seal::Sealed).to_value()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    #[test]
    fn a_receipt_survives_json_and_refuses_unknown_fields() {
        let receipt = testkit::good();
        let mut value = serde_json::to_value(&receipt).unwrap();
        assert_eq!(serde_json::from_value::<Receipt>(value.clone()).unwrap(), receipt);
        value["approved_by"] = "me".into();
        let err = serde_json::from_value::<Receipt>(value).unwrap_err().to_string();
        assert!(err.contains("approved_by"), "{err}");
    }

    #[test]
    fn unknown_fields_are_refused_at_depth() {
        let mut value = serde_json::to_value(testkit::good()).unwrap();
        value["measured"]["stop"]["extra"] = true.into();
        assert!(serde_json::from_value::<Receipt>(value).is_err());
    }

    #[test]
    fn a_kernel_receipt_derives_its_rate() {
        let derived = testkit::kernel().derived().unwrap();
        // 524288 B in 100 ns is 5242.88 GB/s: 524.288 times a ceiling of 10 GB/s.
        assert_eq!((derived.median_ns, derived.fraction_ppm), (100, 524_288_000));
        assert_eq!(KernelReceipt { series_ns: vec![], ..testkit::kernel() }.derived(), None);
        assert_eq!(KernelReceipt { ceiling_bytes_per_second: 0, ..testkit::kernel() }.derived(), None);
    }

    #[test]
    fn the_schema_states_units_and_closes_every_object() {
        let schema = json_schema();
        let defs = schema["$defs"].as_object().unwrap();
        for name in ["Receipt", "KernelReceipt", "Measured", "Closure", "TupleKey", "Limits"] {
            assert_eq!(defs[name]["additionalProperties"], false, "{name}");
        }
        let series = &defs["Measured"]["properties"]["series_ns"]["description"];
        assert!(series.as_str().unwrap().contains("in ns"), "{series}");
        for (name, def) in defs {
            for (field, property) in def["properties"].as_object().into_iter().flatten() {
                assert_ne!(property["type"], "number", "{name}.{field} is a float");
            }
        }
    }
}
