//! Regions: large zeroed anonymous mappings and read-only file mappings behind one type.
#![allow(unsafe_code)]

use std::io;
use std::path::Path;

/// A block of memory that is aligned to a page and lives until dropped.
pub struct Region {
    ptr: *mut u8,
    len: usize,
    writable: bool,
}

// SAFETY: a Region owns its mapping; access is governed by the borrow of the Region or by Views' contract.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// `bytes` of zeroed memory. Pages are taken from the system when first touched, so a region of a
    /// full-size model costs nothing until it is filled.
    pub fn zeroed(bytes: u64) -> io::Result<Self> {
        let len = usize::try_from(bytes.max(1)).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous private mapping has no preconditions; the result is checked.
        let ptr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: advice on our own mapping; failure only costs speed.
        unsafe { libc::madvise(ptr, len, libc::MADV_HUGEPAGE) };
        Ok(Self { ptr: ptr.cast(), len, writable: true })
    }

    /// A read-only private mapping of `bytes` of the file at `path` from `offset` (a multiple of 4096).
    pub fn file(path: &Path, offset: u64, bytes: u64) -> io::Result<Self> {
        use std::os::fd::AsRawFd;
        let file = std::fs::File::open(path)?;
        let end = offset.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        if file.metadata()?.len() < end || !offset.is_multiple_of(4096) || bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let len = usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let at = libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: the descriptor is open and the range lies inside the file; the result is checked.
        let ptr = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), at)
        };
        if ptr == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { ptr: ptr.cast(), len, writable: false })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Start of the region.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the mapping is readable for its whole length and lives as long as self.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }

    /// All bytes for writing. Panics on a file mapping, which is read only.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.writable, "a mapped file is read only");
        // SAFETY: writable mapping, exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly the mapping made in the constructor.
        unsafe { libc::munmap(self.ptr.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_larger_than_memory_costs_nothing_until_touched() {
        let mut region = Region::zeroed(1 << 40).unwrap();
        region.as_mut_slice()[1 << 39] = 7;
        assert_eq!(region.as_slice()[1 << 39], 7);
        assert_eq!(region.as_slice()[0], 0);
    }

    #[test]
    fn a_short_file_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1u8; 100]).unwrap();
        assert!(Region::file(file.path(), 0, 101).is_err());
        assert_eq!(Region::file(file.path(), 0, 100).unwrap().as_slice()[99], 1);
    }
}
