//! The tracked tree: which files the repository holds, relative to its root.
//!
//! Git names them where it can; in an unpacked archive without history the
//! directories are walked instead, leaving out what `.gitignore` leaves out.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The repository root: the folder above this package, wherever the tests are run from now.
pub fn root() -> PathBuf {
    let package =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&package).parent().expect("the package lies in a workspace").to_path_buf()
}

/// Paths of all tracked files, `/`-separated, sorted.
pub fn tracked() -> Vec<String> {
    let mut files = from_git(&root()).unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root(), "", &mut found);
        found
    });
    files.retain(|path| root().join(path).is_file());
    files.sort();
    files
}

/// Text of a tracked file; `None` when it is not UTF-8 (weights, archives).
pub fn text(path: &str) -> Option<String> {
    String::from_utf8(fs::read(root().join(path)).ok()?).ok()
}

fn from_git(root: &Path) -> Option<Vec<String>> {
    let out = Command::new("git").args(["ls-files", "-z"]).current_dir(root).output().ok()?;
    let listed: Vec<String> = String::from_utf8(out.stdout)
        .ok()?
        .split('\0')
        .filter(|p| !p.is_empty())
        .map(str::to_owned)
        .collect();
    (out.status.success() && !listed.is_empty()).then_some(listed)
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let hidden = name.starts_with('.') && name != ".ci" && name != ".gitignore";
        if hidden || name == "target" || name == "artifacts" || name == "corpus" {
            continue;
        }
        let path = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
        if entry.path().is_dir() {
            walk(&entry.path(), &path, found);
        } else {
            found.push(path);
        }
    }
}
