//! Hashes the sources that evidence rests on, so that a receipt says which code it was made by, and packs the
//! built-in weights for embedding.
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;
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

/// Built-in files and the bytes of their values. The exponents of neighbouring values are alike and their low
/// bytes are noise, so each byte plane is packed by itself: 17.9 MB of BF16 become 12.5 MB, where packing the
/// bytes in order gives 14.2 MB.
const PLANES: [(&str, usize); 3] = [
    ("model-00001-of-00002.safetensors", 2),
    ("model-00002-of-00002.safetensors", 2),
    ("expected.safetensors", 4),
];

/// Writes `<name>.planes`: for each plane its packed length (u32, little endian) and its zlib stream.
fn pack_planes(root: &Path) {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo"));
    for (name, planes) in PLANES {
        let from = root.join("harness/builtin").join(name);
        println!("cargo:rerun-if-changed=builtin/{name}");
        let to = out.join(format!("{name}.planes"));
        let time = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
        if time(&to).is_some_and(|made| time(&from).is_some_and(|source| source < made)) {
            continue;
        }
        let bytes = std::fs::read(&from).expect("the built-in model is part of the repository");
        let mut packed = Vec::new();
        for plane in 0..planes {
            let mut stream = ZlibEncoder::new(Vec::new(), Compression::new(9));
            let values: Vec<u8> = bytes.iter().skip(plane).step_by(planes).copied().collect();
            let done = stream.write_all(&values).and_then(|()| stream.finish());
            let done = done.expect("packing in memory cannot fail");
            packed.extend((done.len() as u32).to_le_bytes());
            packed.extend(done);
        }
        std::fs::write(to, packed).expect("the build folder can be written");
    }
}

fn main() {
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("..");
    pack_planes(&root);
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
