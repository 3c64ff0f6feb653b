//! Recording of actual expert routes, in the format that `ledger --routes` prices with.
//!
//! A step is appended whole or not at all: after a failed write the file is cut back to the step before, so
//! what lies on disk can always be read. Step numbers go on where the file ends. A server hands its steps to a
//! thread of their own and never waits for a disk; what is lost is counted.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use ledger::{RouteLimits, RouteRecord};

/// Largest routes file unless told otherwise, in MiB.
pub const DEFAULT_LIMIT_MIB: u64 = 256;
/// Steps that may wait for the disk; one more is dropped.
const WAITING: usize = 64;

/// Chosen experts of a step, by layer and row.
pub type StepRoutes = Vec<Vec<Vec<u32>>>;

/// Why a step was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RouteLogError {
    /// The file system said no.
    #[error("routes {path:?}: {source}")]
    Io {
        /// File.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file ends in something that is not a whole record of routes.
    #[error("routes {path:?}, line {line}: {what}; name a new file")]
    Foreign {
        /// File.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// The file has reached its limit.
    #[error("routes {path:?}: {field} would be {value}, the limit is {limit}")]
    Full {
        /// File.
        path: PathBuf,
        /// What is full.
        field: &'static str,
        /// Its value with this step.
        value: u64,
        /// The limit.
        limit: u64,
    },
}

/// A routes file that grows by whole steps.
#[derive(Debug)]
pub struct RouteLog {
    file: File,
    path: PathBuf,
    next_step: u64,
    lines: u64,
    bytes: u64,
    most_bytes: u64,
    most_lines: u64,
    /// Bytes of a step that could not be taken back.
    torn: bool,
}

impl RouteLog {
    /// Opens `path` to append, made if it is not there, up to `most_bytes` in all.
    pub fn open(path: &Path, most_bytes: u64) -> Result<Self, RouteLogError> {
        let io = |source| RouteLogError::Io { path: path.to_owned(), source };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(io)?;
        let about = file.metadata().map_err(io)?;
        // What a reader of the file accepts.
        let most_lines = RouteLimits::new(u16::MAX).lines as u64;
        let (path, bytes, torn) = (path.to_owned(), about.len(), false);
        let mut log = Self { file, path, next_step: 0, lines: 0, bytes, most_bytes, most_lines, torn };
        log.fits(0, 0)?;
        if about.is_file() {
            log.continue_behind_the_end()?;
        }
        Ok(log)
    }

    /// Counts the lines and takes the step number that follows the last one.
    fn continue_behind_the_end(&mut self) -> Result<(), RouteLogError> {
        let path = self.path.clone();
        let io = |source| RouteLogError::Io { path: path.clone(), source };
        let foreign = |line: u64, what: String| RouteLogError::Foreign {
            path: path.clone(),
            line: line as usize,
            what,
        };
        let mut from = BufReader::new(File::open(&self.path).map_err(io)?);
        let (mut line, mut last) = (Vec::new(), Vec::new());
        while from.read_until(b'\n', &mut line).map_err(io)? != 0 {
            self.lines += 1;
            if line.last() != Some(&b'\n') {
                return Err(foreign(self.lines, "the file ends within a line".into()));
            }
            std::mem::swap(&mut line, &mut last);
            line.clear();
        }
        if !last.is_empty() {
            let record: RouteRecord =
                serde_json::from_slice(&last).map_err(|e| foreign(self.lines, e.to_string()))?;
            self.next_step = record.step.saturating_add(1);
        }
        self.fits(0, 0)
    }

    fn fits(&self, bytes: u64, lines: u64) -> Result<(), RouteLogError> {
        let sums =
            [("bytes", self.bytes + bytes, self.most_bytes), ("lines", self.lines + lines, self.most_lines)];
        match sums.into_iter().find(|(_, value, limit)| value > limit) {
            Some((field, value, limit)) => {
                Err(RouteLogError::Full { path: self.path.clone(), field, value, limit })
            }
            None => Ok(()),
        }
    }

    /// Appends one step, or nothing.
    pub fn append(&mut self, routes: &StepRoutes) -> Result<(), RouteLogError> {
        let failed = |path: &Path, source| RouteLogError::Io { path: path.to_owned(), source };
        if self.torn {
            let what = io::Error::other("part of a step is left in the file");
            return Err(failed(&self.path, what));
        }
        let mut text = Vec::new();
        for (layer, experts) in routes.iter().enumerate() {
            let line = serde_json::json!({"step": self.next_step, "layer": layer, "experts": experts});
            text.extend_from_slice(line.to_string().as_bytes());
            text.push(b'\n');
        }
        self.fits(text.len() as u64, routes.len() as u64)?;
        if let Err(source) = self.file.write_all(&text) {
            self.torn = self.file.set_len(self.bytes).is_err();
            return Err(failed(&self.path, source));
        }
        self.bytes += text.len() as u64;
        self.lines += routes.len() as u64;
        self.next_step += 1;
        Ok(())
    }
}

/// What became of the steps of a server that records.
#[derive(Debug, Default)]
pub struct RouteCounts {
    /// Steps on disk.
    pub recorded: AtomicU64,
    /// Steps dropped because the disk was slower than the engine, or the file full.
    pub dropped: AtomicU64,
    /// Steps lost to an error of the file system.
    pub errors: AtomicU64,
}

/// The engine's side: hands steps over and never waits.
#[derive(Debug)]
pub struct RouteSender {
    steps: SyncSender<StepRoutes>,
    counts: Arc<RouteCounts>,
}

impl RouteSender {
    /// Records a step unless too many wait.
    pub fn offer(&self, routes: StepRoutes) {
        if self.steps.try_send(routes).is_err() {
            self.counts.dropped.fetch_add(1, Relaxed);
        }
    }
}

/// The disk's side: a thread that ends when its [`RouteSender`] is gone.
#[derive(Debug)]
pub struct RouteWriter {
    /// What became of the steps.
    pub counts: Arc<RouteCounts>,
    thread: JoinHandle<()>,
}

impl RouteWriter {
    /// Starts the thread that appends to `log`.
    ///
    /// # Errors
    /// When the operating system gives no thread.
    pub fn spawn(log: RouteLog) -> io::Result<(RouteSender, Self)> {
        let (steps, inbox) = sync_channel(WAITING);
        let counts = Arc::new(RouteCounts::default());
        let own = Arc::clone(&counts);
        let thread =
            std::thread::Builder::new().name("routes".into()).spawn(move || write(log, &inbox, &own))?;
        Ok((RouteSender { steps, counts: Arc::clone(&counts) }, Self { counts, thread }))
    }

    /// Waits until everything handed over is written. The sender must be gone.
    pub fn finish(self) {
        // A panic of the thread was printed by it and lost routes alone.
        let _ = self.thread.join();
    }
}

/// Says one line when recording begins to fail and one when it works again, never one for each step.
fn write(mut log: RouteLog, inbox: &Receiver<StepRoutes>, counts: &RouteCounts) {
    let mut failing = false;
    while let Ok(routes) = inbox.recv() {
        let done = log.append(&routes);
        match &done {
            Ok(()) => counts.recorded.fetch_add(1, Relaxed),
            Err(RouteLogError::Full { .. }) => counts.dropped.fetch_add(1, Relaxed),
            Err(_) => counts.errors.fetch_add(1, Relaxed),
        };
        match &done {
            Ok(()) if failing => crate::complain("routes: recording again"),
            Err(error) if !failing => crate::complain(&format!("{error}; serving goes on without recording")),
            Ok(()) | Err(_) => {}
        }
        failing = done.is_err();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ledger::Routes;

    fn step(seed: u32, rows: u32) -> StepRoutes {
        (0..3)
            .map(|layer| {
                (0..rows).map(|r| vec![(seed + r + layer) % 6, (seed + r + layer + 1) % 6]).collect()
            })
            .collect()
    }

    fn read(path: &Path) -> Routes {
        let file = BufReader::new(File::open(path).unwrap());
        Routes::read(file, RouteLimits::new(6)).unwrap()
    }

    #[test]
    fn steps_go_on_where_the_file_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routes.jsonl");
        for rows in [1, 2] {
            let mut log = RouteLog::open(&path, 1 << 20).unwrap();
            log.append(&step(0, rows)).unwrap();
            log.append(&step(1, rows)).unwrap();
        }
        let routes = read(&path);
        assert_eq!(routes.steps().collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!([1, 2].map(|s| routes.rows(s)), [Some(1), Some(2)]);
    }

    #[test]
    fn a_full_file_keeps_whole_steps_and_takes_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("routes.jsonl");
        let mut log = RouteLog::open(&path, 400).unwrap();
        let taken = (0..10).take_while(|i| log.append(&step(*i, 1)).is_ok()).count();
        assert!((1..10).contains(&taken));
        let error = log.append(&step(0, 1)).unwrap_err();
        assert!(matches!(&error, RouteLogError::Full { field: "bytes", limit: 400, .. }), "{error}");
        assert_eq!(read(&path).steps().count(), taken);
        assert!(RouteLog::open(&path, 10).is_err());
    }

    #[test]
    fn a_file_that_is_not_routes_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notes.txt");
        for text in ["{\"step\":0}\n", "notes\n", "{\"step\":0,\"layer\":0,\"experts\":[[1"] {
            std::fs::write(&path, text).unwrap();
            let error = RouteLog::open(&path, 1 << 20).unwrap_err();
            assert!(matches!(error, RouteLogError::Foreign { line: 1, .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_disk_that_is_full_is_counted_and_stops_nobody() {
        let log = RouteLog::open(Path::new("/dev/full"), 1 << 20).unwrap();
        let (sender, writer) = RouteWriter::spawn(log).unwrap();
        for i in 0..5 {
            sender.offer(step(i, 2));
        }
        drop(sender);
        let counts = Arc::clone(&writer.counts);
        writer.finish();
        let [recorded, dropped, errors] =
            [&counts.recorded, &counts.dropped, &counts.errors].map(|c| c.load(Relaxed));
        assert_eq!((recorded, dropped, errors), (0, 0, 5));
    }

    #[test]
    fn steps_beyond_what_may_wait_are_dropped_and_counted() {
        let (steps, inbox) = sync_channel(2);
        let sender = RouteSender { steps, counts: Arc::default() };
        for i in 0..5 {
            sender.offer(step(i, 1));
        }
        assert_eq!(sender.counts.dropped.load(Relaxed), 3);
        drop(sender);
        assert_eq!(inbox.iter().count(), 2);
    }
}
