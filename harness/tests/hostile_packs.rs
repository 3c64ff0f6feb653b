//! Packs, configurations, answers and outputs that lie or stand in the way: a typed error that names the culprit, never
//! a panic, and never a file destroyed.
mod common;

use common::{HYBRID, MOE, pack, simd};
use harness::containers::stream::Declared;
use harness::containers::{Checkpoint, Dtype, open, safetensors_write};
use harness::engine::{EngineSize, Plans};
use harness::families::Model;
use harness::families::config::GeometryError;
use harness::oracle::{checkpoint, run_pack};
use harness::pack::{Pack, PackError};
use harness::recipe::Recipe;
use harness::sampler::uniform;
use harness::synth::write::{SynthTensor, write_gguf, write_safetensors};
use kernels::check::check;
use kernels::numeric::NumericClass;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// A pack file of this header, its payload a hole in the file.
fn with_header(dir: &Path, header: &Value) -> PathBuf {
    let text = serde_json::to_vec(header).unwrap();
    let start = (16 + text.len() as u64).next_multiple_of(4096);
    let mut bytes = b"SPKPACK1".to_vec();
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
    let path = dir.join("hostile.pack");
    std::fs::write(&path, bytes).unwrap();
    let payload = header.pointer("/manifest/payload").and_then(Value::as_u64).unwrap_or(0).min(1 << 30);
    std::fs::File::options().write(true).open(&path).unwrap().set_len(start + payload).unwrap();
    path
}

fn header_of(dir: &str) -> Value {
    let (pack, _guard) = pack(dir);
    serde_json::to_value(&pack.header).unwrap()
}

/// Pointers to every number and string below `value`.
fn leaves(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(k, v)| leaves(v, &format!("{path}/{k}"), out)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, v)| leaves(v, &format!("{path}/{i}"), out))
        }
        Value::Number(_) | Value::String(_) => out.push(path.to_owned()),
        _ => {}
    }
}

/// What opens is planned and checked: an accepted pack must not panic later either. Returns whether it opened.
fn survives(path: &Path, what: &str) -> bool {
    let pack = match Pack::open(path) {
        Ok(pack) => pack,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "{what}");
            return false;
        }
    };
    let h = &pack.header;
    let size = EngineSize { batch: 4, context: 300, threads: 1 };
    for class in NumericClass::ALL {
        if let Ok(plans) = Plans::build(&h.model, &h.manifest, class, size) {
            let max = h.model.summary().maximum_facts(&plans.decode.bucket);
            assert_eq!(check(&plans.decode, &max), [], "{what}");
        }
    }
    let _ = (pack.verify(), h.model.manifest(&h.recipe), pack.has_draft());
    for name in ["tokenizer.json", "gguf.header"] {
        let _ = pack.file(name);
    }
    h.model.summary().sequence_price(NumericClass::F32, u64::MAX / 2);
    true
}

const NUMBERS: [u64; 12] = [0, 1, 2, 3, 5, 48, 255, 512, 1 << 21, (1 << 21) + 1, 1 << 40, u64::MAX];
const TEXTS: [&str; 7] = ["", "q4_k", "bf16", "F32", "no such thing", "norm", "\u{1f980}"];

#[test]
fn every_geometry_field_of_a_pack_may_lie() {
    let dir = tempfile::tempdir().unwrap();
    for model in [HYBRID, MOE] {
        let header = header_of(model);
        let mut paths = Vec::new();
        for part in ["/model", "/recipe"] {
            leaves(&header[&part[1..]], part, &mut paths);
        }
        let (mut opened, mut refused) = (0, 0);
        for path in &paths {
            let hostile = NUMBERS.iter().map(|n| json!(n)).chain(TEXTS.iter().map(|t| json!(t)));
            for value in hostile.chain([json!(-1), json!(1e300), json!(1e-300), Value::Null]) {
                let mut changed = header.clone();
                *changed.pointer_mut(path).unwrap() = value.clone();
                let file = with_header(dir.path(), &changed);
                match survives(&file, &format!("{model} {path} = {value}")) {
                    true => opened += 1,
                    false => refused += 1,
                }
            }
        }
        assert!(refused > 3 * opened && opened > 0, "{model}: {opened} opened, {refused} refused");
    }
}

#[test]
fn every_kind_of_manifest_field_of_a_pack_may_lie() {
    let dir = tempfile::tempdir().unwrap();
    let header = header_of(HYBRID);
    let mut paths = Vec::new();
    leaves(&header["manifest"], "/manifest", &mut paths);
    leaves(&header["files"], "/files", &mut paths);
    let mut accepted = Vec::new();
    for round in 0..1500u64 {
        let pick = |n: usize, salt: u64| (uniform(salt, round) * n as f64) as usize;
        let path = &paths[pick(paths.len(), 1)];
        let mut changed = header.clone();
        let at = changed.pointer_mut(path).unwrap();
        *at = if at.is_number() { json!(NUMBERS[pick(12, 2)]) } else { json!(TEXTS[pick(7, 3)]) };
        let same = changed == header;
        let file = with_header(dir.path(), &changed);
        if survives(&file, path) && !same && !path.ends_with("/blake3") {
            accepted.push(path.clone());
        }
    }
    assert!(accepted.is_empty(), "only a hash is not known from the geometry: {accepted:?}");
}

#[test]
fn a_pack_with_a_tensor_more_or_less_or_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let header = header_of(MOE);
    let entries = header["manifest"]["entries"].as_array().unwrap().clone();
    let mut more = header.clone();
    let mut extra = entries[0].clone();
    extra["name"] = json!("backdoor");
    more["manifest"]["entries"].as_array_mut().unwrap().push(extra);
    let mut less = header.clone();
    less["manifest"]["entries"].as_array_mut().unwrap().pop();
    let mut twice = header.clone();
    twice["manifest"]["entries"][1] = entries[0].clone();
    let mut file = header.clone();
    file["files"].as_array_mut().unwrap().push(json!({"name": "x", "offset": 0, "bytes": 1, "blake3": ""}));
    let last = entries[entries.len() - 1]["name"].as_str().unwrap();
    let second = entries[1]["name"].as_str().unwrap();
    for (what, header, says) in [
        ("more", more, "tensors, the geometry has"),
        ("less", less, last),
        ("twice", twice, second),
        ("file", file, "'x'"),
    ] {
        let error = Pack::open(&with_header(dir.path(), &header)).unwrap_err().to_string();
        assert!(error.contains(says), "{what}: {error}");
    }
    assert!(Pack::open(&with_header(dir.path(), &header)).is_ok(), "the unchanged header opens");
}

#[test]
fn damaged_pack_files_never_panic() {
    let (pack, guard) = pack(MOE);
    let good = std::fs::read(&pack.path).unwrap();
    let head = 16 + u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
    let path = guard.path().join("damaged");
    for round in 0..400u64 {
        let pick = |n: usize, salt: u64| (uniform(salt, round) * n as f64) as usize;
        let mut bytes = good.clone();
        for i in 0..1 + pick(3, 10) as u64 {
            let at = pick(head, 20 + i);
            match pick(4, 30 + i) {
                0 => bytes[at] ^= 1 << pick(8, 40 + i),
                1 => bytes.truncate(at.max(1)),
                2 => drop(bytes.drain(at..(at + 5).min(bytes.len()))),
                _ => bytes.insert(at, b'9'),
            }
            if bytes.len() < head {
                break;
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        survives(&path, &format!("round {round}"));
    }
}

#[test]
fn configurations_with_long_foreign_or_extreme_values_are_refused_by_field() {
    for (name, config, _) in Model::known() {
        let config: Value = serde_json::from_str(config).unwrap();
        let text = if config.get("text_config").is_some() { "/text_config" } else { "" };
        // 80 bytes end inside a character of this value.
        let wide = format!("x{}", "\u{e9}".repeat(200));
        for (field, value) in [
            ("hidden_size", json!(wide)),
            ("hidden_act", json!(wide)),
            ("rms_norm_eps", json!(1e-300)),
            ("rms_norm_eps", json!(1e300)),
            ("vocab_size", json!([1])),
            ("num_hidden_layers", json!(1 << 20)),
            ("max_position_embeddings", json!(0)),
        ] {
            let mut changed = config.clone();
            changed.pointer_mut(text).unwrap()[field] = value;
            let error = Model::from_config(&changed).unwrap_err();
            let named = match &error {
                GeometryError::Invalid { field, .. } | GeometryError::Missing { field } => field.clone(),
                other => panic!("{name} {field}: {other}"),
            };
            let bare = named.rsplit('.').next().unwrap();
            assert!(
                bare == field || (field, bare) == ("num_hidden_layers", "layer_types"),
                "{name}: {error}"
            );
            assert!(error.to_string().len() < 400);
        }
    }
}

/// The oracle's answers, one tensor replaced.
fn answers(dir: &Path, name: &str, dtype: Dtype, shape: &[u64], bytes: &[u8]) -> Checkpoint {
    let from =
        open(&Path::new(env!("CARGO_MANIFEST_DIR")).join(HYBRID).join("expected.safetensors")).unwrap();
    let path = dir.join("expected.safetensors");
    let declared: Vec<Declared> = from
        .tensors()
        .iter()
        .map(|t| match t.name == name {
            true => Declared::new(name, dtype, shape),
            false => Declared::new(t.name.as_str(), t.dtype, &t.shape),
        })
        .collect();
    let mut out = safetensors_write::create(&path, &declared, None).unwrap();
    for t in from.tensors() {
        out.write(if t.name == name { bytes } else { from.bytes_of(t) }).unwrap();
    }
    out.finish().unwrap();
    open(&path).unwrap()
}

#[test]
fn answers_of_the_wrong_type_or_size_are_refused_and_never_pass() {
    let (pack, guard) = pack(HYBRID);
    let i64s = |ids: &[i64]| ids.iter().flat_map(|i| i.to_le_bytes()).collect::<Vec<u8>>();
    let cases: [(&str, Dtype, Vec<u64>, Vec<u8>); 8] = [
        ("prompt.0.logits", Dtype::F32, vec![0, 512], vec![]),
        ("prompt.0.logits", Dtype::F32, vec![7], vec![0; 28]),
        ("prompt.0.logits", Dtype::F32, vec![1000, 512], vec![0; 4 * 512_000]),
        ("prompt.0.logits", Dtype::BF16, vec![2, 512], vec![0; 2048]),
        ("prompt.0.input_ids", Dtype::I64, vec![0], vec![]),
        ("prompt.0.input_ids", Dtype::I64, vec![2], i64s(&[1, -1])),
        ("prompt.0.greedy_ids", Dtype::I32, vec![2], vec![0; 8]),
        ("prompt.0.greedy_ids", Dtype::I64, vec![0], vec![]),
    ];
    for (name, dtype, shape, bytes) in cases {
        let expected = answers(guard.path(), name, dtype, &shape, &bytes);
        let error = run_pack(&pack, &expected, "x", NumericClass::F32, 1, simd()).unwrap_err().to_string();
        assert!(error.contains("prompt.0") || error.contains("tokens"), "{name} {shape:?}: {error}");
    }
}

fn names(dir: &Path) -> Vec<String> {
    let list = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        list.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn a_pack_replaces_packs_only_and_leaves_nothing_behind() {
    let (old, guard) = pack(HYBRID);
    let dir = guard.path();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(MOE);
    let (from, recipe) = (checkpoint(&source).unwrap(), Recipe::builtin("q4_k_m").unwrap());
    let copy = dir.join("model.gguf");
    std::fs::copy(source.join("model.gguf"), &copy).unwrap();
    std::fs::create_dir(dir.join("folder")).unwrap();
    for target in [copy.as_path(), &dir.join("folder"), Path::new("/dev/null")] {
        let error = Pack::write(&from, "moe", &recipe, target).unwrap_err();
        assert!(matches!(&error, PackError::Invalid { field, .. } if field == "output"), "{error}");
    }
    assert_eq!(std::fs::read(&copy).unwrap(), std::fs::read(source.join("model.gguf")).unwrap());
    let new = Pack::write(&from, "moe", &recipe, &old.path).unwrap();
    assert_ne!(new.id, old.id, "a pack replaces a pack");
    assert_eq!(names(dir), ["folder", "model.gguf", "p"], "no unfinished file stays");
}

/// Eight million gigabytes: no file system of this machine has them.
const HUGE: [u64; 2] = [1 << 31, 1 << 31];

#[test]
fn a_checkpoint_larger_than_the_disk_is_refused_before_a_byte_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let huge = [SynthTensor::new("w", Dtype::BF16, &HUGE)];
    let paths = ["x.gguf", "x.safetensors"].map(|n| dir.path().join(n));
    let meta = harness::containers::Metadata::default();
    let errors = [
        write_gguf(&paths[0], &huge, &meta, 1, |_, _| {}).unwrap_err().to_string(),
        write_safetensors(&paths[1], &huge, None, 1, |_, _| {}).unwrap_err().to_string(),
    ];
    for (error, path) in errors.iter().zip(&paths) {
        assert!(error.contains("free") && error.contains(&*path.to_string_lossy()), "{error}");
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn an_unfinished_checkpoint_never_has_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, "kept").unwrap();
    let declared = [Declared::new("a", Dtype::F32, &[4])];
    let mut stream = safetensors_write::create(&path, &declared, None).unwrap();
    stream.write(&[0; 8]).unwrap();
    assert_eq!(names(dir.path()).len(), 2, "it is written under another name");
    assert!(stream.finish().is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
    assert_eq!(names(dir.path()), ["model.safetensors"]);
    let error = safetensors_write::create(dir.path(), &declared, None).unwrap_err().to_string();
    assert!(error.contains("not a file"), "{error}");
}

#[test]
fn pipes_and_folders_in_the_place_of_files_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("model.safetensors");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let error = open(&pipe).unwrap_err().to_string();
    assert!(error.contains("not a plain file"), "{error}");
    std::fs::remove_file(&pipe).unwrap();
    for file in ["model.safetensors", "config.json"] {
        std::fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join(HYBRID).join(file), dir.path().join(file))
            .unwrap();
    }
    for what in ["config.json", "tokenizer.json"] {
        let _ = std::fs::remove_file(dir.path().join(what));
        std::fs::create_dir(dir.path().join(what)).unwrap();
        let checkpoint = open(dir.path()).unwrap();
        let recipe = Recipe::builtin("bf16").unwrap();
        let error = Pack::write(&checkpoint, "x", &recipe, &dir.path().join("p")).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("not a plain file"), "{error}");
        std::fs::remove_dir(dir.path().join(what)).unwrap();
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(HYBRID).join("config.json");
        std::fs::copy(config, dir.path().join("config.json")).unwrap();
    }
}

/// A file with a hole has the bytes that it promises, and they cost nothing.
#[test]
fn a_gguf_header_of_a_file_with_a_hole_takes_no_memory_in_proportion() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole.gguf");
    let key = b"k";
    for (kind, size) in [(0u32, 1u64), (8, 8), (12, 8), (9, 12)] {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key);
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(((6u64 << 30) / size).to_le_bytes());
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(8 << 30).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("array length of k") && error.contains("header"), "{error}");
    }
}
