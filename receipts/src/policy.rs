//! The policy: every number a verdict compares with, read from `receipts/policy.toml`.
//!
//! Tuning is an edit of data, and an edit changes the hash in every identity, so receipts judged under
//! another policy stop admitting. A device class, batch or numeric class the policy does not name fails.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::canon;

/// The policy this build judges by.
pub const EMBEDDED: &str = include_str!("../policy.toml");

/// All thresholds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// Version of the file's layout.
    pub version: u32,
    /// Fewest samples in a series.
    pub min_samples: u64,
    /// How far a rate may exceed its ceiling before it is an error, in ppm.
    pub ceiling_excess_ppm: u64,
    /// Budgets by device class.
    pub device: BTreeMap<String, DevicePolicy>,
    /// Oracle tolerances by numeric class.
    pub oracle: BTreeMap<String, OraclePolicy>,
}

/// Budgets of one device class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePolicy {
    /// Largest |unexplained| share of the step, in ppm.
    pub unexplained_ppm: u64,
    /// Largest difference of counted and planned bytes, in ppm of planned.
    pub bytes_tolerance_ppm: u64,
    /// Whether counted writes are compared, or only reads.
    pub compare_writes: bool,
    /// Furthest the canary may move, in ppm.
    pub canary_ppm: u64,
    /// Counter kinds accepted: `touched`, `ncu`, `none`.
    pub counters: Vec<String>,
    /// Lowest fraction of the ceiling, in ppm, by batch.
    pub fraction_floor_ppm: BTreeMap<String, u64>,
}

/// Oracle tolerance of one numeric class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OraclePolicy {
    /// Largest absolute logit difference, in 1e-9 units.
    pub max_abs_nano: u64,
    /// Whether greedy ids must be equal.
    pub greedy_equal: bool,
}

/// Why a policy file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not TOML, an unknown key, a missing key or a wrong type.
    #[error("policy: {0}")]
    Toml(#[from] toml::de::Error),
    /// A layout this build does not know.
    #[error("policy field `version` is {found}: this build reads {limit}")]
    Version {
        /// Version in the file.
        found: u32,
        /// Version read.
        limit: u32,
    },
    /// A value outside its limit.
    #[error("policy field `{field}` is {value}: must be {limit}")]
    Value {
        /// Dotted field.
        field: String,
        /// Rejected value.
        value: String,
        /// What is allowed.
        limit: &'static str,
    },
}

const VERSION: u32 = 1;

impl Policy {
    /// The embedded policy.
    pub fn embedded() -> Self {
        Self::parse(EMBEDDED).expect("the embedded policy is checked by a test of this module")
    }

    /// Reads a policy file's text.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let policy: Self = toml::from_str(text)?;
        if policy.version != VERSION {
            return Err(PolicyError::Version { found: policy.version, limit: VERSION });
        }
        policy.check()?;
        Ok(policy)
    }

    /// SHA-256 over the policy's canonical JSON: comments and layout of the file do not count.
    pub fn hash(&self) -> String {
        canon::digest(self).expect("`check` bounded every number of a parsed policy")
    }

    /// Budgets of a device class, if it is known.
    pub fn device(&self, class: &str) -> Option<&DevicePolicy> {
        self.device.get(class)
    }

    fn check(&self) -> Result<(), PolicyError> {
        let bad = |field: String, value: String, limit| Err(PolicyError::Value { field, value, limit });
        let share = |field: String, value: u64| {
            if value <= 1_000_000 { Ok(()) } else { bad(field, value.to_string(), "at most 1000000 ppm") }
        };
        if self.min_samples < 2 || self.min_samples > 1_000_000 {
            return bad("min_samples".into(), self.min_samples.to_string(), "2 to 1000000");
        }
        share("ceiling_excess_ppm".into(), self.ceiling_excess_ppm)?;
        for (class, device) in &self.device {
            let field = |name: &str| format!("device.{class}.{name}");
            share(field("unexplained_ppm"), device.unexplained_ppm)?;
            share(field("bytes_tolerance_ppm"), device.bytes_tolerance_ppm)?;
            share(field("canary_ppm"), device.canary_ppm)?;
            for kind in &device.counters {
                if !["touched", "ncu", "none"].contains(&kind.as_str()) {
                    return bad(field("counters"), kind.clone(), "touched, ncu or none");
                }
            }
            for (batch, &floor) in &device.fraction_floor_ppm {
                let name = field(&format!("fraction_floor_ppm.{batch}"));
                let known = batch
                    .parse::<u32>()
                    .is_ok_and(|b| b.is_power_of_two() && b <= 1024 && b.to_string() == *batch);
                if !known {
                    return bad(name, batch.clone(), "a batch bucket: a power of two from 1 to 1024");
                }
                share(name, floor)?;
            }
        }
        for (class, oracle) in &self.oracle {
            if oracle.max_abs_nano > canon::MAX_EXACT_INTEGER {
                let value = oracle.max_abs_nano.to_string();
                return bad(format!("oracle.{class}.max_abs_nano"), value, "below 2^53");
            }
        }
        Ok(())
    }
}

impl DevicePolicy {
    /// Lowest fraction of the ceiling at a batch bucket, in ppm.
    pub fn floor(&self, batch: u32) -> Option<u64> {
        self.fraction_floor_ppm.get(&batch.to_string()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_policy_covers_every_batch_of_every_device() {
        let policy = Policy::embedded();
        for (class, batch) in ["host", "h200"].iter().flat_map(|c| (0..=10).map(move |p| (c, 1u32 << p))) {
            let floor = policy.device(class).unwrap().floor(batch);
            assert!(floor.is_some_and(|f| f > 0), "{class} B{batch}");
        }
        let host = policy.device("host").unwrap();
        assert_eq!((host.unexplained_ppm, host.bytes_tolerance_ppm), (100_000, 0));
        for class in ["f32", "bf16", "int8act"] {
            assert!(policy.oracle.contains_key(class), "{class}");
        }
    }

    #[test]
    fn unknown_keys_and_wild_values_are_errors() {
        let with = |extra: &str| Policy::parse(&format!("{EMBEDDED}\n{extra}\n")).unwrap_err().to_string();
        assert!(with("override = true").contains("override"));
        assert!(with("[device.x]\nskip = 1").contains("skip"));
        let wild = EMBEDDED.replace("min_samples = 10", "min_samples = 0");
        assert!(Policy::parse(&wild).unwrap_err().to_string().contains("`min_samples` is 0"));
        let wild = EMBEDDED.replacen("unexplained_ppm = 100000", "unexplained_ppm = 1000001", 1);
        assert!(Policy::parse(&wild).unwrap_err().to_string().contains("device.host.unexplained_ppm"));
        let wild = EMBEDDED.replace("1024 =", "1000 =");
        assert!(Policy::parse(&wild).unwrap_err().to_string().contains("fraction_floor_ppm.1000"));
        let wild = EMBEDDED.replace("version = 1", "version = 2");
        assert!(matches!(Policy::parse(&wild), Err(PolicyError::Version { found: 2, limit: 1 })));
    }

    #[test]
    fn the_hash_follows_values_and_not_comments() {
        let base = Policy::embedded().hash();
        assert_eq!(Policy::parse(&format!("# note\n{EMBEDDED}")).unwrap().hash(), base);
        let tuned = EMBEDDED.replace("min_samples = 10", "min_samples = 11");
        assert_ne!(Policy::parse(&tuned).unwrap().hash(), base);
    }
}
