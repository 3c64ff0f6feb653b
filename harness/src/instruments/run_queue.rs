//! Time this process's threads spent runnable but not running: what neighbours on the same processors took.
//!
//! The files stay open and are read in place, about a microsecond a thread, so that looking between two steps
//! does not let the pool's threads fall asleep.
use std::fs::{File, read_dir};
use std::os::unix::fs::FileExt;

/// The scheduler's own account of every thread that lives when it is opened.
pub struct RunQueue {
    threads: Vec<File>,
}

/// A step that lost more than this share of its time to other processes is no sample of the step. It is the
/// accuracy that receipts claim: a rate 3 % above its ceiling is an error (`ceiling_excess_ppm` of the policy).
pub const DISTURBED_PPM: u64 = 30_000;

impl RunQueue {
    /// Opens the account of each thread of this process. Where the system keeps none, [`Self::wait`] is `None`.
    pub fn open() -> Self {
        let tasks = read_dir("/proc/self/task").into_iter().flatten().flatten();
        let threads = tasks.filter_map(|t| File::open(t.path().join("schedstat")).ok()).collect();
        Self { threads }
    }

    /// Nanoseconds waited so far, summed over the threads; `None` where it is not known.
    pub fn wait(&self) -> Option<u64> {
        let mut sum = None;
        for file in &self.threads {
            let mut text = [0u8; 96];
            // A thread that ended since has no account any more.
            let Ok(n) = file.read_at(&mut text, 0) else { continue };
            sum = Some(sum.unwrap_or(0) + waited(&text[..n])?);
        }
        sum
    }
}

/// Second field of `schedstat`: time on a processor, time waiting for one, time slices.
fn waited(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a step of `nanos` that waited from `before` to `after` was disturbed. Unknown is undisturbed.
pub fn disturbed(before: Option<u64>, after: Option<u64>, nanos: u64) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    u128::from(after.saturating_sub(before)) * 1_000_000 > u128::from(nanos) * u128::from(DISTURBED_PPM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_percent_is_the_edge_and_unknown_is_undisturbed() {
        assert!(!disturbed(Some(5), Some(35), 1000));
        assert!(disturbed(Some(5), Some(36), 1000));
        assert!(!disturbed(None, Some(36), 1000));
        assert!(!disturbed(Some(36), Some(5), 1000));
    }

    #[test]
    fn the_second_field_is_read() {
        assert_eq!(waited(b"12 345 6\n"), Some(345));
        assert_eq!(waited(b"12\n"), None);
        assert_eq!(waited(b"12 x 6"), None);
    }

    /// More spinning threads than processors: somebody has to wait, and the account shows it.
    #[test]
    fn crowded_processors_show_up() {
        if RunQueue::open().wait().is_none() {
            eprintln!("skipped: this system keeps no scheduler account");
            return;
        }
        let n = std::thread::available_parallelism().map_or(1, usize::from) * 3;
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..n {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let queue = RunQueue::open();
            let before = queue.wait();
            std::thread::sleep(std::time::Duration::from_millis(300));
            let after = queue.wait();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(disturbed(before, after, 300_000_000), "{before:?} {after:?}");
        });
    }
}
