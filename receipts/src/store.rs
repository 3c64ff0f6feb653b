//! The store: one append-only JSONL file, each line sealed to the line before.
//!
//! A line is acknowledged when it, its newline and then `receipts.head` (count and id of the last line)
//! are on disk. A crash leaves at most a torn last line that was never acknowledged: the next append
//! finishes it if it is whole, else sets its bytes aside in `receipts.torn`. A line the head counts and
//! the file lacks is damage, not a crash, and nothing is appended behind it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::canon::{self, CanonError, short};
use crate::keys::Signer;
use crate::schema::Entry;
use crate::seal::{GENESIS, Sealed};
use crate::verify::{Finding, Report, examine};

pub use crate::seal::parse_line;

/// Name of the receipts file in the store's directory.
pub const RECEIPTS_FILE: &str = "receipts.jsonl";
/// Name of the file that holds count and id of the last acknowledged line.
pub const HEAD_FILE: &str = "receipts.head";
/// Name of the file that torn bytes are set aside in.
pub const TORN_FILE: &str = "receipts.torn";

/// Why the store cannot do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system said no.
    #[error("receipt store {path:?}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something in the store does not hold.
    #[error("receipt store is damaged: {first}{}", more(*.others))]
    Damaged {
        /// The first finding.
        first: Box<Finding>,
        /// How many more there are.
        others: usize,
    },
    /// The receipt has no canonical form.
    #[error("receipt cannot be stored: {0}")]
    Canon(#[from] CanonError),
    /// The receipt would not read back.
    #[error("receipt cannot be stored: {0}")]
    Line(#[from] crate::seal::LineError),
    /// A step receipt without a verdict.
    #[error("receipt cannot be stored: field `verdict` is null; judge it first")]
    Unjudged,
    /// No receipt, or more than one, has this id.
    #[error("{matches} receipts have an id starting with {prefix:?}: need exactly one")]
    Id {
        /// What was asked for.
        prefix: String,
        /// How many there are.
        matches: usize,
    },
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more findings)") }
}

/// A receipt and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Place in the store, from 0.
    pub index: usize,
    /// The receipt's id: SHA-256 of its line, in hex.
    pub id: String,
    /// The sealed line.
    pub sealed: Sealed,
}

impl Record {
    /// The receipt.
    pub fn entry(&self) -> &Entry {
        &self.sealed.entry
    }

    /// The first 16 characters of the id.
    pub fn short_id(&self) -> &str {
        short(&self.id)
    }
}

/// Count and id of the last acknowledged line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) count: usize,
    pub(crate) id: String,
}

impl Head {
    /// Reads `COUNT ID\n`; `None` for any other text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (count, id) = text.strip_suffix('\n')?.split_once(' ')?;
        let parsed: usize = count.parse().ok()?;
        let plain = parsed.to_string() == count && canon::unhex::<32>(id).is_some();
        plain.then(|| Self { count: parsed, id: id.to_owned() })
    }
}

/// A store in a directory.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    /// File length, line count and last id after our last append: spares re-reading for the next one.
    end: Option<(u64, Head)>,
}

impl Store {
    /// The store in `dir`. Nothing is touched until the first append; an absent store is an empty one.
    pub fn open(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), end: None }
    }

    /// The store's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Seals `entry` and appends it. Returns when it is on disk.
    pub fn append(&mut self, entry: Entry, signer: &Signer) -> Result<Record, StoreError> {
        if entry.step().is_some_and(|r| r.verdict.is_none()) {
            return Err(StoreError::Unjudged);
        }
        let path = self.dir.join(RECEIPTS_FILE);
        let io = |source| StoreError::Io { path: path.clone(), source };
        fs::create_dir_all(&self.dir).map_err(io)?;
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        file.lock().map_err(io)?; // until `file` is dropped
        let length = file.metadata().map_err(io)?.len();
        let head = match self.end.take() {
            Some((end, head)) if end == length => head,
            _ => self.recover(&mut file)?,
        };
        if head.count == 0 {
            // Before the first line: from then on a store without a head has lost it.
            self.write_head(&head)?;
        }
        let sealed = Sealed::new(entry, &head.id, signer)?;
        let mut line = sealed.line()?;
        let id = parse_line(&line)?.id; // what cannot be read back is not written
        line.push(b'\n');
        let write = |file: &mut File| -> io::Result<u64> {
            let end = file.seek(SeekFrom::End(0))?;
            file.write_all(&line)?;
            file.sync_all()?;
            Ok(end + line.len() as u64)
        };
        let end = write(&mut file).map_err(io)?;
        let index = head.count;
        let head = Head { count: index + 1, id: id.clone() };
        self.write_head(&head)?;
        self.end = Some((end, head));
        Ok(Record { index, id, sealed })
    }

    /// Every receipt, oldest first. Any damage is an error: a list with a hole is not a list.
    pub fn list(&self) -> Result<Vec<Record>, StoreError> {
        let (records, report) = self.examine()?;
        damaged(report.findings)?;
        Ok(records)
    }

    /// The newest step receipt of a tuple.
    pub fn latest(&self, tuple_id: &str) -> Result<Option<Record>, StoreError> {
        let of_tuple = |r: &Record| r.entry().step().is_some_and(|step| step.tuple.id() == tuple_id);
        Ok(self.list()?.into_iter().rev().find(of_tuple))
    }

    /// The one receipt whose id starts with `prefix`.
    pub fn find(&self, prefix: &str) -> Result<Record, StoreError> {
        let mut found: Vec<Record> = self.list()?.into_iter().filter(|r| r.id.starts_with(prefix)).collect();
        match (found.len(), found.pop()) {
            (1, Some(record)) => Ok(record),
            (matches, _) => Err(StoreError::Id { prefix: prefix.chars().take(64).collect(), matches }),
        }
    }

    /// Checks every line, link, digest and signature.
    pub fn verify(&self) -> Result<Report, StoreError> {
        Ok(self.examine()?.1)
    }

    fn examine(&self) -> Result<(Vec<Record>, Report), StoreError> {
        let path = self.dir.join(RECEIPTS_FILE);
        let io = |source| StoreError::Io { path: path.clone(), source };
        let mut bytes = Vec::new();
        let mut head = self.read_head()?;
        match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(io(e)),
            Ok(mut file) => {
                file.lock_shared().map_err(io)?;
                head = self.read_head()?; // again, now that no append is between file and head
                file.read_to_end(&mut bytes).map_err(io)?;
            }
        }
        Ok(examine(&bytes, head.as_deref()))
    }

    /// Puts a crashed append in order and returns where the chain ends.
    fn recover(&self, file: &mut File) -> Result<Head, StoreError> {
        let path = self.dir.join(RECEIPTS_FILE);
        let io = |source| StoreError::Io { path: path.clone(), source };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(io)?;
        let head = self.read_head()?;
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        // The complete lines must hold by themselves, and hold all the head acknowledges.
        let (records, report) = examine(&bytes[..whole], head.as_deref());
        damaged(report.findings)?;
        let mut end = records.last().map_or(Head { count: 0, id: GENESIS.to_owned() }, |last| Head {
            count: records.len(),
            id: last.id.clone(),
        });
        let torn = &bytes[whole..];
        if torn.is_empty() {
            return Ok(end);
        }
        let finished = parse_line(torn).ok().filter(|line| {
            line.sealed.seal.prev == end.id && line.sealed.faults().is_ok_and(|faults| faults.is_empty())
        });
        if let Some(line) = finished {
            file.seek(SeekFrom::End(0))
                .and_then(|_| file.write_all(b"\n"))
                .and_then(|()| file.sync_all())
                .map_err(io)?;
            end = Head { count: end.count + 1, id: line.id };
            return Ok(end);
        }
        let aside = self.dir.join(TORN_FILE);
        let keep = || -> io::Result<()> {
            let mut side = OpenOptions::new().append(true).create(true).open(&aside)?;
            side.write_all(torn)?;
            side.write_all(b"\n")?;
            side.sync_all()
        };
        keep().map_err(|source| StoreError::Io { path: aside.clone(), source })?;
        file.set_len(whole as u64).and_then(|()| file.sync_all()).map_err(io)?;
        Ok(end)
    }

    fn read_head(&self) -> Result<Option<String>, StoreError> {
        let path = self.dir.join(HEAD_FILE);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StoreError::Io { path, source }),
        }
    }

    fn write_head(&self, head: &Head) -> Result<(), StoreError> {
        let path = self.dir.join(HEAD_FILE);
        let next = self.dir.join(format!("{HEAD_FILE}.next")); // one writer at a time: the lock is held
        let write = || -> io::Result<()> {
            let mut file = File::create(&next)?;
            file.write_all(format!("{} {}\n", head.count, head.id).as_bytes())?;
            file.sync_all()?;
            fs::rename(&next, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        write().map_err(|source| StoreError::Io { path: path.clone(), source })
    }
}

fn damaged(mut findings: Vec<Finding>) -> Result<(), StoreError> {
    if findings.is_empty() {
        return Ok(());
    }
    let first = Box::new(findings.remove(0));
    Err(StoreError::Damaged { first, others: findings.len() })
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
