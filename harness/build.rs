//! Hashes the sources that evidence rests on, so that a receipt says which code it was made by.
use std::path::{Path, PathBuf};
use std::process::Command;

fn files(dir: &Path, out: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, out);
        } else {
            out.push(path);
        }
    }
}

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("..");
    let mut hasher = blake3::Hasher::new();
    for room in ["kernels/src", "ledger/src", "harness/src"] {
        println!("cargo:rerun-if-changed=../{room}");
        let mut found = Vec::new();
        files(&root.join(room), &mut found);
        found.retain(|p| p.extension().is_some_and(|e| e == "rs" || e == "cu" || e == "cuh" || e == "toml"));
        found.sort();
        for path in found {
            let name = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
            hasher.update(name.as_bytes());
            hasher.update(&std::fs::read(&path).unwrap_or_default());
        }
    }
    println!("cargo:rustc-env=SPARKPIPE_SOURCES={}", hasher.finalize().to_hex());
    println!("cargo:rerun-if-changed=../Cargo.lock");
    let lock = blake3::hash(&std::fs::read(root.join("Cargo.lock")).unwrap_or_default()).to_hex();
    println!("cargo:rustc-env=SPARKPIPE_LOCKFILE={lock}");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output();
    let version = version.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
    println!("cargo:rustc-env=SPARKPIPE_RUSTC={version}");
}
