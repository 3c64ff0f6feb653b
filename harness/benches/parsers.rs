//! Time of the host code around a step: checkpoint headers, tokenizer, chat template, sampler.
use criterion::{Criterion, criterion_group, criterion_main};
use harness::builtin;
use harness::containers::gguf;
use harness::sampler::{History, Sampler, SamplingParams, uniform};
use harness::text::{ChatTemplate, Message, Tokenizer, encode_chat};
use std::hint::black_box;
use std::path::Path;

/// Values of a vocabulary as large as the largest known model's.
const VOCABULARY: usize = 248_320;

fn read(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a tracked file")
}

/// The first tracked GGUF file.
fn gguf_file() -> Vec<u8> {
    let oracles = Path::new(env!("CARGO_MANIFEST_DIR")).join("oracles");
    let entries = std::fs::read_dir(oracles).expect("a tracked folder");
    let mut files = entries.filter_map(|e| e.ok().map(|e| e.path().join("model.gguf")));
    std::fs::read(files.find(|f| f.exists()).expect("one oracle is GGUF")).expect("a tracked file")
}

fn containers(c: &mut Criterion) {
    c.bench_function("safetensors index and headers, 2 shards", |b| {
        b.iter(|| builtin::checkpoint().expect("the built-in shards are valid"));
    });
    let file = gguf_file();
    c.bench_function("gguf header", |b| {
        b.iter(|| gguf::parse("bench", black_box(&file), 0).map(|p| p.tensors.len()).expect("a valid file"));
    });
}

fn text(c: &mut Criterion) {
    let json = read("builtin/tokenizer.json");
    c.bench_function("tokenizer.json", |b| {
        b.iter(|| Tokenizer::from_tokenizer_json(black_box(&json)).expect("the built-in tokenizer is valid"));
    });
    let tokenizer = Tokenizer::from_tokenizer_json(&json).expect("the built-in tokenizer is valid");
    let prose = String::from_utf8(read("builtin/heldout_text.txt")).expect("a text");
    c.bench_function(&format!("encode {} bytes", prose.len()), |b| {
        b.iter(|| tokenizer.encode(black_box(&prose), false).expect("any text encodes"));
    });
    let ids = tokenizer.encode(&prose, false).expect("any text encodes");
    c.bench_function(&format!("decode {} tokens", ids.len()), |b| {
        b.iter(|| tokenizer.decode(black_box(&ids)))
    });
    let config: serde_json::Value =
        serde_json::from_slice(&read("builtin/tokenizer_config.json")).expect("a tracked file");
    let source = config["chat_template"].as_str().expect("the built-in model has a template");
    let template = ChatTemplate::new(source).expect("it is valid");
    let chat = [Message::new("user", "What does ls do?")];
    c.bench_function("render and encode a chat of one question", |b| {
        b.iter(|| encode_chat(&tokenizer, &template, black_box(&chat), true, None).expect("it renders"));
    });
}

fn sampler(c: &mut Criterion) {
    let logits: Vec<f32> = (0..VOCABULARY).map(|i| (12.0 * uniform(1, i as u64) - 6.0) as f32).collect();
    let greedy = SamplingParams::default();
    let nucleus = SamplingParams { temperature: 0.8, top_p: 0.95, seed: 7, ..SamplingParams::default() };
    let top_k = SamplingParams { top_k: 50, min_p: 0.05, repetition_penalty: 1.1, ..nucleus.clone() };
    let (prompt, answer): (Vec<u32>, Vec<u32>) = ((0..1000).collect(), (500..700).collect());
    for (name, params) in [("greedy", greedy), ("top_p", nucleus), ("top_k, min_p and penalties", top_k)] {
        let mut sampler = Sampler::new(params, VOCABULARY).expect("valid parameters");
        let mut row = logits.clone();
        c.bench_function(&format!("sample {name} of {VOCABULARY}"), |b| {
            b.iter(|| {
                row.copy_from_slice(&logits);
                let history = History { prompt: &prompt, generated: &answer };
                sampler.sample(black_box(&mut row), history).expect("finite logits")
            });
        });
    }
}

criterion_group!(benches, containers, text, sampler);
criterion_main!(benches);
