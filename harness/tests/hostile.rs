//! Hostile and broken checkpoints. One idea: each case is a real defect that users met; it must end in a typed error that
//! names the culprit, without a panic and without memory in proportion to a claim.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::path::Path;

use harness::containers::stream::Declared;
use harness::containers::{
    Checkpoint, ContainerError, Dtype, MetaArray, MetaValue, Metadata, gguf_write, open, safetensors_write,
};

/// A GGUF of raw pieces: version, counts, body.
fn gguf(version: u32, tensors: u64, pairs: u64, body: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(version.to_le_bytes());
    out.extend(tensors.to_le_bytes());
    out.extend(pairs.to_le_bytes());
    out.extend(body);
    out
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A tensor's entry; `dims` in file order.
fn entry(name: &str, rank: u32, dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut out = string(name);
    out.extend(rank.to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

/// A file of these entries with `data` zero bytes in its data section.
fn with_tensors(entries: &[Vec<u8>], data: usize) -> Vec<u8> {
    let mut out = gguf(3, entries.len() as u64, 0, &entries.concat());
    out.resize(out.len().next_multiple_of(32) + data, 0);
    out
}

fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key)[..], &kind.to_le_bytes(), value].concat()
}

fn refused(bytes: Vec<u8>) -> ContainerError {
    Checkpoint::from_bytes(bytes).expect_err("must be refused")
}

#[track_caller]
fn says(error: &ContainerError, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not name `{part}`");
    }
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.resize(out.len() + data, 0);
    out
}

// GGUF

#[test]
fn row_1_number_of_dimensions_is_bounded() {
    for rank in [0, 5, 1_000_000, u32::MAX] {
        let error = refused(with_tensors(&[entry("w", rank, &[1; 5], 0, 0)], 64));
        says(&error, &["`w`", "n_dims", &rank.to_string()]);
    }
}

#[test]
fn row_2_products_of_dimensions_are_checked() {
    for dims in [[1 << 63, 2], [(1 << 42) + 1, 1 << 22], [u64::MAX, u64::MAX], [1 << 62, 1]] {
        let error = refused(with_tensors(&[entry("wide", 2, &dims, 0, 0)], 64));
        says(&error, &["`wide`", "dims"]);
    }
    says(&refused(with_tensors(&[entry("none", 1, &[0], 0, 0)], 64)), &["`none`", "dims"]);
}

#[test]
fn row_4_counts_beyond_the_file_are_refused_before_memory_is_taken() {
    says(&refused(gguf(3, 0, 1 << 60, &[0; 64])), &["key/value count", &(1u64 << 60).to_string()]);
    says(&refused(gguf(3, 1 << 60, 0, &[0; 64])), &["tensor count"]);
    for kind in [0u32, 7, 8, 9, 12] {
        let array = [&kind.to_le_bytes()[..], &(1u64 << 60).to_le_bytes(), &[0; 32]].concat();
        says(&refused(gguf(3, 0, 1, &pair("big", 9, &array))), &["array length of big"]);
    }
    let mut nested = Vec::new();
    for _ in 0..64 {
        nested.extend([&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat());
    }
    says(&refused(gguf(3, 0, 1, &pair("deep", 9, &nested))), &["nesting of deep"]);
}

#[test]
fn row_5_alignment_and_string_lengths_are_bounded() {
    for alignment in [0u32, 3, 4, 1 << 21, 1 << 30] {
        let error = refused(gguf(3, 0, 1, &pair("general.alignment", 4, &alignment.to_le_bytes())));
        says(&error, &["general.alignment", &alignment.to_string()]);
    }
    let long = pair("text", 8, &(1u64 << 30).to_le_bytes());
    says(&refused(gguf(3, 0, 1, &long)), &["text", &(1u64 << 30).to_string()]);
    let key = (1u64 << 30).to_le_bytes();
    says(&refused(gguf(3, 0, 1, &[&key[..], &[0; 32]].concat())), &["metadata key"]);
}

#[test]
fn row_5_a_vocabulary_of_256k_entries_parses_in_under_a_second() {
    let mut meta = Metadata::default();
    let tokens: Vec<String> = (0..262_144).map(|i| format!("token number {i}")).collect();
    meta.insert("tokenizer.ggml.tokens", MetaValue::Array(MetaArray::String(tokens)));
    meta.insert("tokenizer.ggml.scores", MetaValue::Array(MetaArray::F32(vec![0.5; 262_144])));
    let bytes = gguf_write::header(&[], &meta).unwrap();
    let start = std::time::Instant::now();
    let checkpoint = Checkpoint::from_bytes(bytes).unwrap();
    assert!(start.elapsed().as_secs_f64() < 1.0, "{:?}", start.elapsed());
    assert_eq!(checkpoint.metadata().unwrap().strings("tokenizer.ggml.tokens").unwrap().len(), 262_144);
}

#[test]
fn row_7_tensors_that_nothing_uses_are_listed() {
    let entries = [entry("used", 1, &[8], 0, 0), entry("extra.weight", 1, &[8], 0, 32)];
    let checkpoint = Checkpoint::from_bytes(with_tensors(&entries, 64)).unwrap();
    says(&checkpoint.refuse_unused(|name| name == "used").unwrap_err(), &["1 tensors", "extra.weight"]);
    assert!(checkpoint.refuse_unused(|_| true).is_ok());
}

/// Writes three shards of two tensors each; shard `n` holds `t{2n}` and `t{2n+1}`.
fn three_shards(dir: &Path, total: i32) {
    for n in 0..3u16 {
        let mut meta = Metadata::default();
        meta.insert("split.no", MetaValue::U16(n));
        meta.insert("split.count", MetaValue::U16(3));
        meta.insert("split.tensors.count", MetaValue::I32(total));
        if n == 0 {
            meta.insert("general.architecture", MetaValue::String("toy".into()));
        }
        let tensors = [2 * n, 2 * n + 1].map(|t| Declared::new(format!("t{t}"), Dtype::F32, &[1, 3]));
        let path = dir.join(format!("m-{:05}-of-00003.gguf", n + 1));
        let mut out = gguf_write::create(&path, &tensors, &meta).unwrap();
        out.write(&[n as u8 * 2; 12]).unwrap();
        out.write(&[n as u8 * 2 + 1; 12]).unwrap();
        out.finish().unwrap();
    }
}

#[test]
fn row_8_a_split_opens_from_any_shard_or_the_directory() {
    let dir = tempfile::tempdir().unwrap();
    three_shards(dir.path(), 6);
    let mut paths: Vec<_> = (1..=3).map(|n| dir.path().join(format!("m-{n:05}-of-00003.gguf"))).collect();
    paths.push(dir.path().to_owned());
    for path in paths {
        let checkpoint = open(&path).unwrap();
        assert_eq!(checkpoint.tensors().len(), 6);
        assert_eq!(checkpoint.metadata().unwrap().str("general.architecture").unwrap(), "toy");
        for t in 0..6u8 {
            assert_eq!(checkpoint.bytes(&format!("t{t}")).unwrap(), [t; 12]);
        }
    }
}

#[test]
fn row_8_the_total_of_a_split_and_its_numbers_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    three_shards(dir.path(), 7);
    says(&open(dir.path()).unwrap_err(), &["split.tensors.count", "7", "6", "m-00001-of-00003.gguf"]);
    three_shards(dir.path(), 6);
    let swap = |n: u32| dir.path().join(format!("m-{n:05}-of-00003.gguf"));
    std::fs::copy(swap(3), swap(2)).unwrap();
    says(&open(&swap(1)).unwrap_err(), &["split.no", "m-00001-of-00003.gguf"]);
}

#[test]
fn row_10_a_missing_shard_is_named_and_a_renamed_one_says_how_names_look() {
    let dir = tempfile::tempdir().unwrap();
    three_shards(dir.path(), 6);
    std::fs::remove_file(dir.path().join("m-00002-of-00003.gguf")).unwrap();
    for path in [dir.path().join("m-00003-of-00003.gguf"), dir.path().to_owned()] {
        let error = open(&path).unwrap_err();
        assert!(matches!(error, ContainerError::MissingShard { number: 2, count: 3, .. }));
        says(&error, &["m-00002-of-00003.gguf"]);
    }
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(dir.path().join("m-00003-of-00003.gguf"), &renamed).unwrap();
    says(&open(&renamed).unwrap_err(), &["-00001-of-"]);
}

#[test]
fn row_10_concatenated_shards_are_detected() {
    let one = with_tensors(&[entry("a", 1, &[5], 0, 0)], 32);
    for first in [one.clone(), one[..one.len() - 12].to_vec()] {
        let at = first.len() as u64;
        let error = refused([first, one.clone()].concat());
        assert!(matches!(error, ContainerError::SecondHeader { at: found, .. } if found == at), "{error}");
    }
    let junk = [one, b"junk behind the data".to_vec()].concat();
    assert!(matches!(refused(junk), ContainerError::Gap { .. }));
}

#[test]
fn gguf_magic_version_and_truncation_are_named() {
    says(&refused(b"GGUF".to_vec()), &["version"]);
    says(&refused(gguf(1, 0, 0, &[])), &["version", "1"]);
    says(&refused(gguf(3u32.swap_bytes(), 0, 0, &[])), &["version"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, b"GGML....").unwrap();
    says(&open(&path).unwrap_err(), &["magic"]);
    let whole = with_tensors(&[entry("a", 2, &[16, 4], 0, 0)], 256);
    for cut in 0..whole.len() {
        refused(whole[..cut].to_vec());
    }
}

#[test]
fn gguf_offsets_types_and_names_are_checked() {
    says(&refused(with_tensors(&[entry("a", 1, &[8], 0, 4)], 64)), &["`a`", "offset", "multiple of 32"]);
    says(&refused(with_tensors(&[entry("a", 1, &[8], 0, 1 << 40)], 64)), &["`a`", "offset + bytes"]);
    says(&refused(with_tensors(&[entry("a", 1, &[8], 0, u64::MAX - 31)], 64)), &["`a`"]);
    says(&refused(with_tensors(&[entry("a", 1, &[8], 4, 0)], 64)), &["`a`", "unknown type 4"]);
    says(&refused(with_tensors(&[entry("a", 1, &[31], 8, 0)], 64)), &["`a`", "Q8_0"]);
    let same = [entry("a", 1, &[8], 0, 0), entry("a", 1, &[8], 0, 32)];
    assert!(matches!(refused(with_tensors(&same, 64)), ContainerError::Duplicate { .. }));
    let over = [entry("a", 1, &[16], 0, 0), entry("b", 1, &[8], 0, 32)];
    assert!(matches!(refused(with_tensors(&over, 64)), ContainerError::Overlap { .. }));
}

#[test]
fn gguf_metadata_types_and_repeats_are_checked() {
    says(&refused(gguf(3, 0, 1, &pair("k", 13, &[0; 8]))), &["`k`", "unknown type 13"]);
    says(&refused(gguf(3, 0, 1, &pair("k", 7, &[2]))), &["k", "0 or 1"]);
    says(&refused(gguf(3, 0, 1, &pair("k", 8, &[1, 0, 0, 0, 0, 0, 0, 0, 0xff]))), &["k", "UTF-8"]);
    let twice = [pair("k", 4, &[0; 4]), pair("k", 4, &[0; 4])].concat();
    assert!(matches!(refused(gguf(3, 0, 2, &twice)), ContainerError::Duplicate { .. }));
    let mut meta = Metadata::default();
    meta.insert("n", MetaValue::I32(-1));
    says(&meta.u64("n").unwrap_err(), &["`n`", "i32"]);
    says(&meta.str("absent").unwrap_err(), &["`absent`", "missing"]);
}

// safetensors

#[test]
fn row_11_offsets_shorter_than_shape_times_type_are_refused() {
    let header = r#"{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}"#;
    says(&refused(safetensors(header, 4)), &["`w`", "data_offsets length", "4000000"]);
}

#[test]
fn row_12_an_unknown_type_never_skips_the_checks() {
    for dtype in ["F6_E3M2", "F6_E2M3", "", "f32", "F8_E4M3FNUZ"] {
        let header = format!(
            r#"{{"w":{{"dtype":"{dtype}","shape":[1],"data_offsets":[9223372036854775808,9223372036854775809]}}}}"#
        );
        says(&refused(safetensors(&header, 8)), &["`w`", dtype, "unknown type"]);
    }
}

#[test]
fn row_12_reversed_overlapping_gapped_and_wrapping_offsets_are_refused() {
    let two = |a: &str, b: &str| {
        let of = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
        refused(safetensors(&format!(r#"{{"a":{},"b":{}}}"#, of(a), of(b)), 8))
    };
    says(&two("[4,0]", "[4,8]"), &["`a`", "begin <= end"]);
    assert!(matches!(two("[0,4]", "[2,6]"), ContainerError::Overlap { .. }));
    assert!(matches!(two("[0,4]", "[0,4]"), ContainerError::Overlap { .. }));
    says(&two("[0,4]", "[6,10]"), &["`b`", "end", "10"]);
    says(&two("[0,4]", "[18446744073709551612,18446744073709551615]"), &["`b`"]);
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    assert!(matches!(refused(safetensors(header, 6)), ContainerError::Gap { bytes: 2, .. }));
    let header = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
    assert!(matches!(refused(safetensors(header, 6)), ContainerError::Gap { bytes: 2, .. }));
    let header = r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,4]}}"#;
    says(&refused(safetensors(header, 4)), &["`a`", "shape"]);
}

#[test]
fn safetensors_headers_that_lie_or_repeat_are_refused() {
    says(&refused(vec![1, 2, 3]), &["length"]);
    says(&refused(u64::MAX.to_le_bytes().to_vec()), &["header length"]);
    says(&refused((1u64 << 27).to_le_bytes().to_vec()), &["header length", "100000000"]);
    says(&refused(safetensors("[]", 0)), &["`{`"]);
    let a = r#""a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    says(&refused(safetensors(&format!("{{{a},{a}}}"), 1)), &["`a`", "twice"]);
    for broken in ["{", r#"{"a":1}"#, r#"{"a":{"dtype":"U8"}}"#, r#"{"__metadata__":{"x":1}}"#] {
        assert!(matches!(refused(safetensors(broken, 0)), ContainerError::Json { .. }), "{broken}");
    }
    let signed = r#"{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}"#;
    assert!(matches!(refused(safetensors(signed, 1)), ContainerError::Json { .. }));
    let deep = format!("{{\"a\":{}}}", "[".repeat(100_000));
    assert!(matches!(refused(safetensors(&deep, 0)), ContainerError::Json { .. }));
}

/// Two shards `a` and `b` with one tensor each, and the index text.
fn indexed(dir: &Path, index: &str) {
    for name in ["a", "b"] {
        let path = dir.join(format!("{name}.safetensors"));
        let tensors = [Declared::new(name, Dtype::BF16, &[2, 2])];
        let mut out = safetensors_write::create(&path, &tensors, None).unwrap();
        out.write(&[7; 3]).unwrap();
        out.write(&[7; 5]).unwrap();
        out.finish().unwrap();
    }
    std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let dir = tempfile::tempdir().unwrap();
    let map = |body: &str| format!(r#"{{"metadata":{{}},"weight_map":{{{body}}}}}"#);
    indexed(dir.path(), &map(r#""a":"a.safetensors","b":"b.safetensors""#));
    assert_eq!(open(dir.path()).unwrap().bytes("b").unwrap(), [7; 8]);
    let cases: [(&str, &[&str]); 6] = [
        (r#""a":"a.safetensors","b":"c.safetensors""#, &["c.safetensors", "missing"]),
        (r#""a":"a.safetensors","b":"a.safetensors""#, &["`b`"]),
        (r#""a":"b.safetensors","b":"a.safetensors""#, &["shard"]),
        (r#""a":"a.safetensors","b":"b.safetensors","c":"b.safetensors""#, &["`c`"]),
        (r#""a":"../a.safetensors","b":"b.safetensors""#, &["plain"]),
        (r#""a":"a.safetensors","a":"b.safetensors""#, &["twice"]),
    ];
    for (body, parts) in cases {
        indexed(dir.path(), &map(body));
        says(&open(dir.path()).unwrap_err(), parts);
    }
    indexed(dir.path(), "not json");
    assert!(matches!(open(dir.path()).unwrap_err(), ContainerError::Json { .. }));
}

#[test]
fn a_truncated_shard_is_named() {
    let dir = tempfile::tempdir().unwrap();
    indexed(dir.path(), r#"{"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#);
    let path = dir.path().join("b.safetensors");
    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 7, 8, 20, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        says(&open(dir.path()).unwrap_err(), &["b.safetensors"]);
    }
}

#[test]
fn paths_that_hold_no_checkpoint_say_what_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    says(&open(dir.path()).unwrap_err(), &["no checkpoint", "*.gguf"]);
    says(&open(&dir.path().join("none")).unwrap_err(), &["none"]);
    std::fs::write(dir.path().join("weights.bin"), b"x").unwrap();
    says(&open(&dir.path().join("weights.bin")).unwrap_err(), &["no checkpoint"]);
    let one = [Declared::new("a", Dtype::F32, &[1])];
    for name in ["one.safetensors", "two.safetensors"] {
        let mut out = safetensors_write::create(&dir.path().join(name), &one, None).unwrap();
        out.write(&[0; 4]).unwrap();
        out.finish().unwrap();
    }
    says(&open(dir.path()).unwrap_err(), &["2 weight files"]);
    let single = open(&dir.path().join("one.safetensors")).unwrap();
    assert!(single.config_json().unwrap().is_none(), "a missing config is no config, not an invented one");
    std::fs::write(dir.path().join("config.json"), b"{").unwrap();
    assert!(matches!(single.config_json().unwrap_err(), ContainerError::Json { .. }));
}

// writers

#[test]
fn writers_refuse_what_the_readers_would() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let meta = Metadata::default();
    let odd = [Declared::new("w", Dtype::Q4_K, &[2, 100])];
    says(&gguf_write::create(&path, &odd, &meta).unwrap_err(), &["`w`", "256"]);
    says(&safetensors_write::create(&path, &odd, None).unwrap_err(), &["`w`", "Q4_K"]);
    let fine = [Declared::new("w", Dtype::F32, &[2])];
    let mut out = gguf_write::create(&path, &fine, &meta).unwrap();
    says(&out.write(&[0; 9]).unwrap_err(), &["w", "8"]);
    says(&out.finish().unwrap_err(), &["w", "never written"]);
}
