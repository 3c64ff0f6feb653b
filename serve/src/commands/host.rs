//! What this machine says about itself: processor, caches, memory, disk, driver.
//!
//! One idea: a fact that cannot be read is `None`, never a guess.
use kernels::sys::disk;
use serde::Serialize;
use std::path::Path;

/// The processor's name.
pub fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Bytes of the last cache level that the first processor sees.
pub fn last_cache() -> Option<u64> {
    let read = |dir: &Path, file: &str| std::fs::read_to_string(dir.join(file)).ok();
    let entries = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let level = |dir: &Path| -> Option<(u32, u64)> {
        Some((read(dir, "level")?.trim().parse().ok()?, size(read(dir, "size")?.trim())?))
    };
    entries.filter_map(|e| level(&e.ok()?.path())).max().map(|(_, bytes)| bytes)
}

/// Reads `32768K`.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.strip_suffix('K') {
        Some(digits) => (digits, 1 << 10),
        None => match text.strip_suffix('M') {
            Some(digits) => (digits, 1 << 20),
            None => (text, 1),
        },
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// Total and available memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryFacts {
    /// `MemTotal`.
    pub total: u64,
    /// `MemAvailable`: what can be had without swapping.
    pub available: u64,
}

/// Memory of the machine.
pub fn memory() -> Option<MemoryFacts> {
    meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn meminfo(text: &str) -> Option<MemoryFacts> {
    let field = |name: &str| -> Option<u64> {
        let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(MemoryFacts { total: field("MemTotal")?, available: field("MemAvailable")? })
}

/// Free bytes of the file system that `path`, or its nearest existing parent, lies on.
pub fn disk_free(path: &Path) -> Option<u64> {
    let full = std::path::absolute(path).ok()?;
    full.ancestors().find(|p| p.exists()).and_then(|p| disk::free_bytes(p).ok())
}

/// An accelerator as its driver describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Accelerator {
    /// Name.
    pub name: String,
    /// Memory in bytes, where the driver says.
    pub memory: Option<u64>,
}

/// The accelerator driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Driver {
    /// Version.
    pub version: String,
    /// Devices.
    pub devices: Vec<Accelerator>,
}

/// The driver, where its management library is there.
pub fn driver() -> Option<Driver> {
    let nvml = nvml_wrapper::Nvml::init().ok()?;
    let version = nvml.sys_driver_version().ok()?;
    let device = |index: u32| -> Option<Accelerator> {
        let device = nvml.device_by_index(index).ok()?;
        Some(Accelerator { name: device.name().ok()?, memory: device.memory_info().ok().map(|m| m.total) })
    };
    let devices = (0..nvml.device_count().unwrap_or(0)).filter_map(device).collect();
    Some(Driver { version, devices })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_meminfo_are_read_with_their_units() {
        assert_eq!(size("32768K"), Some(32 << 20));
        assert_eq!(size("2M"), Some(2 << 20));
        assert_eq!(size("x"), None);
        let text = "MemTotal:       2 kB\nMemFree:  1 kB\nMemAvailable:   1 kB\n";
        assert_eq!(meminfo(text), Some(MemoryFacts { total: 2048, available: 1024 }));
        assert_eq!(meminfo("MemTotal: 2 kB\n"), None);
    }

    #[test]
    fn the_disk_of_a_folder_that_is_not_there_yet_is_its_parents() {
        let dir = tempfile::tempdir().unwrap();
        assert!(disk_free(&dir.path().join("not/yet")).is_some());
    }
}
