//! Engines on the tracked checkpoints, shared by the proofs.
#![allow(dead_code)]
use harness::engine::{Engine, EngineSize, PREFILL_GRID, Sequence};
use harness::oracle::checkpoint;
use harness::pack::Pack;
use harness::recipe::Recipe;
use kernels::host::simd::{Simd, Switches};
use kernels::numeric::NumericClass;
use std::path::PathBuf;

/// The tracked checkpoints: folder, and classes its weights have kernels for.
pub const HYBRID: &str = "oracles/qwen3_6_27b";
pub const MOE: &str = "oracles/qwen3_30b_a3b";
pub const BUILTIN: &str = "builtin";

pub fn simd() -> Simd {
    Simd::detect(&Switches::default())
}

/// A pack of the checkpoint in `dir`; the file goes away with the guard, mappings of it stay.
pub fn pack(dir: &str) -> (Pack, tempfile::TempDir) {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir);
    let temp = tempfile::tempdir().unwrap();
    let recipe = Recipe::builtin("bf16").unwrap();
    let pack = Pack::write(&checkpoint(&dir).unwrap(), "test", &recipe, &temp.path().join("p")).unwrap();
    (pack, temp)
}

pub fn engine(pack: &Pack, class: NumericClass, size: EngineSize, simd: Simd) -> Engine {
    let h = &pack.header;
    Engine::new(&h.model, &h.manifest, class, size, pack.weights().unwrap(), simd).unwrap()
}

/// Seeded tokens below `vocab`.
pub fn tokens(seed: u64, len: usize, vocab: usize) -> Vec<u32> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            ((x >> 33) % vocab as u64) as u32
        })
        .collect()
}

/// Prefills the whole prompt; returns the last row of logits.
pub fn fill(engine: &mut Engine, sequence: Sequence, prompt: &[u32]) -> Vec<f32> {
    for chunk in prompt.chunks(PREFILL_GRID) {
        engine.prefill(&[(sequence, chunk)], false).unwrap();
    }
    engine.logits(0).to_vec()
}
