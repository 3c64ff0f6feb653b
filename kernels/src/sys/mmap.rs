//! A read-only file mapping. The one idea: a checkpoint is never copied into memory, it is looked at.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A whole file mapped read-only and private. An empty file maps to an empty slice.
#[derive(Debug)]
pub struct Mapped {
    map: Option<memmap2::Mmap>,
}

impl Mapped {
    /// Maps `path`. Fails with the operating system's error, or `InvalidInput` where `path` is no plain file.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        // Asked before it is opened: a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain file"));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Mapped { map: None });
        }
        // SAFETY: the mapping is read-only and private, and lives exactly as long as the slice that `Deref` lends.
        // Somebody who truncates the file under us raises SIGBUS, which ends the process; no byte is ever
        // trusted without a check, so changed contents can give wrong numbers but never an out-of-bounds access.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Mapped { map: Some(map) })
    }

    /// The file's bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.map.as_deref().unwrap_or(&[])
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_the_bytes_of_a_file_and_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let full = dir.path().join("full");
        std::fs::write(&full, b"sixteen bytes ok").unwrap();
        assert_eq!(&*Mapped::open(&full).unwrap(), b"sixteen bytes ok");
        let empty = dir.path().join("empty");
        std::fs::write(&empty, b"").unwrap();
        assert!(Mapped::open(&empty).unwrap().is_empty());
    }

    #[test]
    fn a_directory_or_a_missing_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Mapped::open(dir.path()).is_err());
        assert!(Mapped::open(&dir.path().join("none")).is_err());
    }
}
