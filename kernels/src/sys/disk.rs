//! Free space of a file system.
#![allow(unsafe_code)]
use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes an unprivileged user may still write to the file system of `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut about = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `name` is NUL-terminated and `about` is writable memory of the type the call fills.
    if unsafe { libc::statvfs(name.as_ptr(), about.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a valid `statvfs`, and the call succeeded.
    let about = unsafe { about.assume_init() };
    // The field types differ between platforms.
    #[allow(clippy::unnecessary_cast)]
    Ok((about.f_bavail as u64).saturating_mul(about.f_frsize as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_working_folder_has_a_file_system_and_a_missing_path_has_none() {
        assert!(free_bytes(Path::new(".")).is_ok());
        assert!(free_bytes(Path::new("./no/such/path")).is_err());
    }
}
