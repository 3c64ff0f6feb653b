//! `serve` refuses what nobody measured, and what is no longer what was measured.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use receipts::{Entry, Signer, Store};

use crate::home::{BINARY, Home, steps};
use crate::server::Server;

const SERVE: [&str; 5] = ["serve", "--port", "0", "--batch", "1"];

fn with<'a>(args: &[&'a str]) -> Vec<&'a str> {
    [&SERVE[..], args].concat()
}

/// The file with one byte changed.
fn changed(path: &Path, at: usize, to: impl Fn(u8) -> u8) {
    let mut bytes = fs::read(path).expect("a file");
    let was = bytes[at];
    bytes[at] = to(was);
    assert_ne!(bytes[at], was);
    fs::write(path, bytes).expect("writable");
}

#[test]
fn serve_before_qualify_names_the_exact_command() {
    let home = Home::empty();
    let command = "`sparkpipe qualify whatis-9m --recipe bf16 --class bf16 --context 2048 --batch 1`";
    home.refused(&SERVE, &["refused: no receipt for whatis-9m", command]);
}

#[test]
fn a_batch_without_a_receipt_of_its_own_is_refused() {
    let home = Home::qualified();
    home.refused(&["serve", "--port", "0", "--batch", "16"], &["no receipt", "--batch 16`"]);
}

#[test]
fn one_changed_byte_of_the_pack_is_refused_wherever_it_lies() {
    let home = Home::qualified();
    let pack = home.path().join("packs/whatis-9m.bf16.pack");
    let good = fs::read(&pack).expect("the pack that qualify wrote");
    let header = u64::from_le_bytes(good[8..16].try_into().expect("8 bytes")) as usize;
    let payload = (16 + header).next_multiple_of(4096);
    assert!(payload > 16 + header, "there is padding behind the header");
    let copy = home.path().join("copy.pack");
    let path = copy.to_string_lossy().into_owned();
    fs::write(&copy, &good).expect("writable");
    Server::start(&home, &[&path, "--batch", "1"]).terminate();
    let name = good.windows(9).position(|w| w == b"whatis-9m").expect("the header names the model");
    for (at, says) in [
        (0, "field 'magic'"),
        (8, "field 'header"),
        (16, "field 'header'"),
        (name, "no receipt for vhatis-9m"),
        (16 + header, "field 'padding'"),
        (payload, "BLAKE3"),
        (payload + (good.len() - payload) / 2, "BLAKE3"),
        (good.len() - 1, "field 'padding'"),
    ] {
        fs::write(&copy, &good).expect("writable");
        changed(&copy, at, |b| b ^ 1);
        home.refused(&with(&[&path]), &["refused:", says]);
    }
    fs::write(&copy, &good[..good.len() - 1]).expect("writable");
    home.refused(&with(&[&path]), &["refused:", "field 'payload'"]);
}

#[test]
fn a_pack_of_other_bytes_is_refused_by_its_id() {
    let home = Home::qualified();
    let other = home.file("other.pack");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../harness/builtin");
    // The built-in model's name and weights without one of its side files: another pack.
    let copy = home.path().join("whatis-9m");
    fs::create_dir(&copy).expect("a folder");
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let name = entry.file_name();
        if name != "generation_config.json" {
            fs::copy(entry.path(), copy.join(name)).expect("a copy");
        }
    }
    let packed = home.run(&["pack", &copy.to_string_lossy(), "-o", &other]);
    assert_eq!(packed.code, Some(0), "{}", packed.err);
    home.refused(&with(&[&other]), &["was made with pack = ", &format!("qualify {other}")]);
}

#[test]
fn one_changed_byte_of_the_topology_file_is_refused() {
    let home = Home::qualified();
    let file = home.path().join("single.toml");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../topologies/fabrics/single.toml");
    fs::copy(source, &file).expect("a copy");
    let path = file.to_string_lossy().into_owned();
    Server::start(&home, &["--batch", "1", "--topology", &path]).terminate();
    // A comment's letter: the fabric reads the same, the file is another.
    changed(&file, 2, |b| b ^ 0x20);
    home.refused(
        &with(&["--topology", &path]),
        &["was made with topology = ", &format!("--topology {path}")],
    );
}

#[test]
fn one_byte_more_at_the_end_of_the_executable_is_refused() {
    let home = Home::qualified();
    let copy = home.path().join("sparkpipe");
    let path = copy.to_string_lossy().into_owned();
    fs::copy(BINARY, &copy).expect("a copy");
    let mut bytes = fs::read(&copy).expect("the copy");
    bytes.push(0);
    fs::write(&copy, bytes).expect("writable");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("runnable");
    home.refused_by(&path, &SERVE, &["was made with executable = ", "qualify whatis-9m"]);
}

#[test]
fn a_switch_that_was_off_while_measuring_is_refused_by_name() {
    let home = Home::qualified();
    let on = crate::home::command(BINARY, home.path())
        .args(SERVE)
        .env("SPARKPIPE_DISABLE_AVX2", "1")
        .output()
        .expect("the binary starts");
    let said = String::from_utf8(on.stderr).expect("UTF-8");
    assert_eq!(on.status.code(), Some(1), "{said}");
    // Without vectors the device has another name, which is the first field that differs.
    assert!(
        said.contains("was made with device_name = ") || said.contains("SPARKPIPE_DISABLE_AVX2"),
        "{said}"
    );
}

#[test]
fn one_changed_byte_of_the_receipts_is_refused() {
    let home = Home::qualified();
    let store = home.path().join("receipts/receipts.jsonl");
    let at = fs::read(&store).expect("receipts").len() / 2;
    changed(&store, at, |b| if b == b'1' { b'2' } else { b'1' });
    let ran = home.run(&SERVE);
    assert_eq!(ran.code, Some(2), "{}", ran.out);
    assert!(ran.err.contains("receipt") && !ran.out.contains("listening"), "{}", ran.err);
}

/// Receipts of other sources stay where they are; the list says which they are and why.
#[test]
fn a_list_says_which_receipts_other_sources_made() {
    let home = Home::qualified();
    let mut store = Store::open(&home.path().join("receipts"));
    let signer = Signer::open_or_create(&home.path().join("keys")).expect("the key that qualify made");
    let mut other = steps(&store).pop().expect("a receipt");
    other.evidence.sources = "77".repeat(32);
    store.append(Entry::Step(other), &signer).expect("appended");
    let ran = home.run(&["receipts", "list"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let (last, before) =
        ran.out.lines().collect::<Vec<_>>().split_last().map(|(l, b)| (*l, b.to_vec())).expect("lines");
    assert!(last.ends_with("stale (sources)"), "{last}");
    assert!(!before.is_empty() && before.iter().all(|line| line.ends_with("current")), "{before:?}");
}
