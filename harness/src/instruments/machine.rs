//! Facts of the machine: processor, memory, caches. What the system does not say is absent, never 0.
use std::fs;

/// Facts of the host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Processors this process may use.
    pub threads: usize,
    /// Installed memory in bytes.
    pub memory: u64,
    /// Memory that can be taken without swapping, in bytes.
    pub available: u64,
    /// Second-level cache over all cores, in bytes.
    pub l2: Option<u64>,
    /// Last-level cache, in bytes.
    pub last_cache: Option<u64>,
}

impl Machine {
    /// Reads the facts of this machine.
    pub fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            cpu: cpu_model(&cpuinfo).unwrap_or_else(|| "unknown".into()),
            threads,
            memory: meminfo_bytes(&meminfo, "MemTotal").unwrap_or(0),
            available: meminfo_bytes(&meminfo, "MemAvailable").unwrap_or(0),
            l2: cache(2).map(|b| b * threads as u64),
            last_cache: cache(3).or_else(|| cache(2)),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name") || l.starts_with("Model"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// A field of /proc/meminfo in bytes.
pub fn meminfo_bytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find(|l| l.split(':').next() == Some(field))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

fn cache(level: u32) -> Option<u64> {
    for index in 0..8 {
        let dir = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
        let read = |f: &str| fs::read_to_string(format!("{dir}/{f}")).ok();
        if read("level")?.trim() == level.to_string() && read("type")?.trim() != "Instruction" {
            return size(read("size")?.trim());
        }
    }
    None
}

fn size(text: &str) -> Option<u64> {
    match text.strip_suffix('K') {
        Some(k) => k.parse::<u64>().ok()?.checked_mul(1 << 10),
        None => text.strip_suffix('M')?.parse::<u64>().ok()?.checked_mul(1 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_not_free_memory() {
        let fixture = "MemTotal:  100 kB\nMemFree:  1 kB\nMemAvailable:  64 kB\n";
        assert_eq!(meminfo_bytes(fixture, "MemAvailable"), Some(64 << 10));
        assert_eq!(meminfo_bytes(fixture, "SwapFree"), None);
    }

    #[test]
    fn cache_sizes_read_with_their_unit() {
        assert_eq!(size("512K"), Some(512 << 10));
        assert_eq!(size("32M"), Some(32 << 20));
        assert_eq!(size("lots"), None);
    }
}
