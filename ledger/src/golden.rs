//! Golden files: a derived figure is compared with the one in the tree, and a change has to be meant.
//!
//! `SPARKPIPE_BLESS=1` rewrites the file instead; the diff is then reviewed like any other change.
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The variable that turns a comparison into a rewrite.
pub const BLESS: &str = "SPARKPIPE_BLESS";

/// Why a golden check failed.
#[derive(Debug, Error)]
pub enum GoldenError {
    /// The contents differ.
    #[error("{}:{line}: golden has {want:?}, now {got:?} ({BLESS}=1 rewrites it)", path.display())]
    Differs {
        /// The golden file.
        path: PathBuf,
        /// First line that differs, from 1.
        line: usize,
        /// That line in the file; `None` when the file is shorter.
        want: Option<String>,
        /// That line now; `None` when the content is shorter.
        got: Option<String>,
    },
    /// There is no such file.
    #[error("{}: no golden file ({BLESS}=1 writes it)", path.display())]
    Missing {
        /// The path that was tried.
        path: PathBuf,
    },
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The golden file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Compares `content` with the file at `path`; with `SPARKPIPE_BLESS=1` in the environment, writes it.
pub fn check_golden(path: impl AsRef<Path>, content: &str) -> Result<(), GoldenError> {
    let bless = std::env::var_os(BLESS).is_some_and(|v| v == "1");
    compare(path.as_ref(), content, bless)
}

fn compare(path: &Path, content: &str, bless: bool) -> Result<(), GoldenError> {
    let io = |source| GoldenError::Io { path: path.into(), source };
    let have = match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Err(e) => return Err(io(e)),
    };
    if have.as_deref() == Some(content) {
        return Ok(());
    }
    if bless {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir).map_err(io)?;
        }
        return fs::write(path, content).map_err(io);
    }
    let Some(have) = have else {
        return Err(GoldenError::Missing { path: path.into() });
    };
    let (line, want, got) = first_difference(&have, content);
    Err(GoldenError::Differs { path: path.into(), line, want, got })
}

/// Number and contents of the first line that differs. Line ends are kept, so they count too.
fn first_difference(want: &str, got: &str) -> (usize, Option<String>, Option<String>) {
    let (mut want, mut got) = (want.split_inclusive('\n'), got.split_inclusive('\n'));
    let mut line = 1;
    loop {
        match (want.next(), got.next()) {
            (Some(a), Some(b)) if a == b => line += 1,
            (a, b) => return (line, a.map(Into::into), b.map(Into::into)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_differing_line_is_named() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("deep/er/x.csv");
        assert!(matches!(compare(&path, "a\nb\n", false), Err(GoldenError::Missing { .. })));
        compare(&path, "a\nb\n", true).expect("blessing writes, directories too");
        compare(&path, "a\nb\n", false).expect("equal");
        let error = compare(&path, "a\nc\n", false).expect_err("differs");
        assert!(error.to_string().contains(r#":2: golden has Some("b\n"), now Some("c\n")"#), "{error}");
        let Err(GoldenError::Differs { line, want, got, .. }) = compare(&path, "a\nb\nc", false) else {
            panic!("longer content differs");
        };
        assert_eq!((line, want, got), (3, None, Some("c".into())));
        compare(&path, "new", true).expect("blessing rewrites");
        compare(&path, "new", false).expect("equal again");
    }
}
