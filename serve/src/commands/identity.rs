//! The identity of this process: what a receipt was made by and what the gate compares.
use super::state::switches;
use anyhow::{Context, Result};
use harness::instruments::cuda::device_class;
use harness::instruments::machine::Machine;
use harness::pack::Pack;
use kernels::cuda::Cuda;
use kernels::cuda::nvml::Monitor;
use receipts::{AdmissionIdentity, Policy, hash_running_executable};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};
use topologies::Topology;

/// The topology a command runs on: a file, or the built-in `single`.
pub fn topology(file: Option<&PathBuf>) -> Result<Topology> {
    match file {
        None => Ok(Topology::builtin("single")?),
        Some(path) => {
            let name =
                path.file_stem().map_or_else(|| "topology".into(), |n| n.to_string_lossy().into_owned());
            let text = super::state::read_text(path, 1 << 20)?;
            Topology::parse(&name, &text).with_context(|| format!("topology {}", path.display()))
        }
    }
}

/// Why a tuple of this one process cannot run on `topology`, where it cannot.
pub fn cannot_run(topology: &Topology) -> Option<String> {
    let nodes = || topology.validate(1).err().map(|e| e.to_string());
    topology.runnable().err().map(|r| r.to_string()).or_else(nodes)
}

/// The admission identity of this executable with `pack` on `topology`, hashed now.
pub fn admission(
    pack: &Pack,
    topology: &Topology,
    policy: &Policy,
    machine: &Machine,
    threads: usize,
) -> Result<AdmissionIdentity> {
    let simd = super::state::simd();
    let recipe = serde_json::to_vec(&pack.header.recipe)?;
    Ok(AdmissionIdentity {
        executable: hash_running_executable()?,
        cubins: receipts::identity::NONE.into(),
        driver: receipts::identity::NONE.into(),
        device_class: "host".into(),
        device_name: format!("{}, {threads} threads, {}", machine.cpu, simd.name()),
        pack: pack.id.clone(),
        recipe: harness::pack::hash(&recipe),
        topology: topology.hash().into(),
        policy: policy.hash(),
        switches: switches().1,
    })
}

/// As [`admission`], of a CUDA device: the driver and the device code really loaded are part of it.
pub fn admission_on(
    cuda: &Cuda,
    monitor: &Monitor,
    pack: &Pack,
    topology: &Topology,
    policy: &Policy,
) -> Result<AdmissionIdentity> {
    let facts = cuda.device.facts();
    let recipe = serde_json::to_vec(&pack.header.recipe)?;
    let cuda_version = format!("CUDA {}.{}", facts.driver / 1000, facts.driver % 1000 / 10);
    Ok(AdmissionIdentity {
        executable: hash_running_executable()?,
        cubins: cuda.cubins(),
        driver: monitor.driver().map_or(cuda_version.clone(), |d| format!("{d}, {cuda_version}")),
        device_class: device_class(cuda),
        device_name: facts.name.clone(),
        pack: pack.id.clone(),
        recipe: harness::pack::hash(&recipe),
        topology: topology.hash().into(),
        policy: policy.hash(),
        switches: switches().1,
    })
}

/// Now, as RFC 3339 in UTC.
pub fn now() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    rfc3339(seconds)
}

/// Seconds since 1970 as RFC 3339 in UTC (proleptic Gregorian, by the days-from-civil rule).
pub fn rfc3339(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year_of_era = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (d, m) = (day_of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = year_of_era + era * 400 + u64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_826_152), "2000-02-29T12:09:12Z");
        assert_eq!(rfc3339(1_796_039_999), "2026-11-30T11:59:59Z");
    }
}
