//! Named devices: the last cache, which decides what counts as dram, and the datasheet's rate.
//!
//! A datasheet figure is printed beside a measurement, never used to judge one: ceilings are probed.
use crate::units::{Bytes, BytesPerSecond};
use serde::{Deserialize, Serialize};

/// What a report needs to know of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceProfile {
    /// Short name, as commands take it.
    pub name: String,
    /// Size of the last cache before memory; zero where it is not known.
    pub last_cache: Bytes,
    /// Datasheet memory rate; `None` where there is no single datasheet (a host).
    pub nominal: Option<BytesPerSecond>,
}

const MB: u64 = 1_000_000;

/// Name, last cache in bytes, datasheet rate in GB/s.
const NAMED: [(&str, u64, f64); 4] = [
    ("h200", 50 * MB, 4800.0),
    ("gb10", 24 * MB, 273.0),
    ("rtx5090", 96 * MB, 1792.0),
    // Last cache not known: none is assumed, so that every activation counts as dram.
    ("thor", 0, 273.0),
];

impl DeviceProfile {
    /// The named device; `None` when the table has no such name.
    pub fn named(name: &str) -> Option<Self> {
        NAMED.iter().find(|(n, _, _)| *n == name).map(|(n, cache, gbps)| Self {
            name: (*n).into(),
            last_cache: Bytes(*cache),
            nominal: Some(BytesPerSecond(gbps * 1e9)),
        })
    }

    /// A host: its last cache is what the machine reports, and it has no datasheet rate.
    pub fn host(last_cache: Bytes) -> Self {
        Self { name: "host".into(), last_cache, nominal: None }
    }

    /// Names the table knows, in table order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(n, _, _)| *n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_resolves_and_others_do_not() {
        for name in DeviceProfile::names() {
            let device = DeviceProfile::named(name).expect("listed names resolve");
            assert_eq!(device.name, name);
            assert!(device.nominal.is_some_and(|r| r.gbps() > 100.0));
        }
        assert_eq!(DeviceProfile::named("h200").map(|d| d.last_cache), Some(Bytes(50_000_000)));
        assert!(DeviceProfile::named("host").is_none(), "a host is probed, not looked up");
        assert_eq!(DeviceProfile::host(Bytes(7)).nominal, None);
    }
}
