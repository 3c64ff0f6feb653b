//! A sequence's tokens and logits never depend on its company, its slot, the buckets, the threads, the vector
//! level or an eviction: the same bits every time.
mod common;

use common::{BUILTIN, MOE, engine, pack, simd, tokens};
use harness::engine::{Engine, EngineSize, Sequence};
use harness::pack::Pack;
use kernels::host::simd::Simd;
use kernels::numeric::NumericClass;

const PROMPT: usize = 140;
const STEPS: usize = 8;

/// Logits (as bits) and greedy token after the prompt and after each step.
#[derive(PartialEq)]
struct Trail {
    ids: Vec<u32>,
    bits: Vec<Vec<u32>>,
}

impl Trail {
    fn new() -> Self {
        Self { ids: Vec::new(), bits: Vec::new() }
    }

    fn push(&mut self, e: &Engine, row: usize) -> u32 {
        self.bits.push(e.logits(row).iter().map(|v| v.to_bits()).collect());
        self.ids.push(e.chosen()[row]);
        e.chosen()[row]
    }

    fn assert_same(&self, other: &Self, what: &str) {
        assert_eq!(self.ids, other.ids, "{what}: token ids");
        for (step, (a, b)) in self.bits.iter().zip(&other.bits).enumerate() {
            let differ = a.iter().zip(b).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{what}: {differ} logits differ at step {step}");
        }
    }
}

fn prompt(e: &Engine) -> Vec<u32> {
    tokens(4711, PROMPT, e.summary().vocab)
}

fn alone(pack: &Pack, class: NumericClass, size: EngineSize, simd: Simd) -> Trail {
    let mut e = engine(pack, class, size, simd);
    let text = prompt(&e);
    let s = e.open(PROMPT + STEPS).unwrap();
    e.prefill(&[(s, &text)], false).unwrap();
    let mut trail = Trail::new();
    let mut token = trail.push(&e, 0);
    for _ in 0..STEPS {
        e.decode(&[(s, token)]).unwrap();
        token = trail.push(&e, 0);
    }
    trail
}

/// The same prompt in slot and row `place` among `others` sequences of other lengths.
fn among(pack: &Pack, class: NumericClass, size: EngineSize, others: usize, place: usize) -> Trail {
    let mut e = engine(pack, class, size, simd());
    let (vocab, text) = (e.summary().vocab, prompt(&e));
    let texts: Vec<Vec<u32>> = (0..=others)
        .map(|i| if i == place { text.clone() } else { tokens(i as u64, 1 + i * 7 % 116, vocab) })
        .collect();
    let sequences: Vec<Sequence> = (0..=others).map(|_| e.open(PROMPT + STEPS).unwrap()).collect();
    let mut next = vec![0; others + 1];
    let mut trail = Trail::new();
    // Prefill in batches of two or more: ours shares its step with the neighbour before it.
    let mut at = 0;
    while at <= others {
        let take = 2.min(others + 1 - at);
        let chunks: Vec<_> = (at..at + take).map(|i| (sequences[i], texts[i].as_slice())).collect();
        e.prefill(&chunks, false).unwrap();
        for i in at..at + take {
            next[i] = if i == place { trail.push(&e, i - at) } else { e.chosen()[i - at] };
        }
        at += take;
    }
    for _ in 0..STEPS {
        let rows: Vec<_> = sequences.iter().copied().zip(next.iter().copied()).collect();
        e.decode(&rows).unwrap();
        next = e.chosen().to_vec();
        trail.push(&e, place);
    }
    trail
}

fn prove_company(dir: &str, class: NumericClass) {
    let (pack, _guard) = pack(dir);
    let size = |batch, context, threads| EngineSize { batch, context, threads };
    let want = alone(&pack, class, size(1, 160, 1), simd());
    assert_eq!(want.ids.len(), STEPS + 1);
    for (batch, context, threads) in [(1, 160, 2), (1, 700, 3), (5, 256, 1), (16, 1000, 2)] {
        let got = alone(&pack, class, size(batch, context, threads), simd());
        want.assert_same(&got, &format!("{dir} alone in B{batch} ctx {context} threads {threads}"));
    }
    for (others, place, context, threads) in
        [(1, 0, 160, 1), (1, 1, 300, 2), (3, 2, 160, 3), (7, 7, 512, 2), (20, 11, 160, 1), (63, 40, 160, 2)]
    {
        let got = among(&pack, class, size(others + 1, context, threads), others, place);
        want.assert_same(&got, &format!("{dir} row {place} among {others} others, threads {threads}"));
    }
    let scalar = alone(&pack, class, size(1, 160, 1), Simd::SCALAR);
    want.assert_same(&scalar, &format!("{dir} scalar code"));
}

#[test]
fn hybrid_tokens_do_not_depend_on_company() {
    prove_company(BUILTIN, NumericClass::Bf16);
}

#[test]
fn moe_tokens_do_not_depend_on_company() {
    prove_company(MOE, NumericClass::Int8Act);
}

/// Before step `t` the sequence itself or its neighbour is evicted; another one takes its pages meanwhile.
fn evicted(pack: &Pack, class: NumericClass, t: usize, own: bool) -> Trail {
    let mut e = engine(pack, class, EngineSize { batch: 3, context: 300, threads: 1 }, simd());
    let (vocab, text) = (e.summary().vocab, prompt(&e));
    let mut other = e.open(PROMPT + STEPS).unwrap();
    let mut s = e.open(PROMPT + STEPS).unwrap();
    e.prefill(&[(other, &tokens(5, 77, vocab)), (s, &text)], false).unwrap();
    let mut trail = Trail::new();
    let mut token = trail.push(&e, 1);
    for step in 0..STEPS {
        if step == t {
            let victim = if own { s } else { other };
            let saved = e.evict(victim).unwrap();
            assert!(e.sequences().conserved() && e.sequences().get(victim).is_err());
            // A squatter dirties the pages and the slot that the victim left, and stays.
            let squatter = e.open(PROMPT).unwrap();
            e.prefill(&[(squatter, &tokens(17, PROMPT, vocab))], false).unwrap();
            let back = e.restore(&saved).unwrap();
            if own { s = back } else { other = back }
        }
        e.decode(&[(other, step as u32), (s, token)]).unwrap();
        token = trail.push(&e, 1);
    }
    trail
}

fn prove_eviction(dir: &str, class: NumericClass) {
    let (pack, _guard) = pack(dir);
    let want = alone(&pack, class, EngineSize { batch: 1, context: 160, threads: 1 }, simd());
    for t in 0..STEPS {
        for own in [true, false] {
            let got = evicted(&pack, class, t, own);
            want.assert_same(&got, &format!("{dir} evicted before step {t}, own {own}"));
        }
    }
}

#[test]
fn hybrid_survives_eviction_at_every_token() {
    prove_eviction(BUILTIN, NumericClass::Bf16);
}

#[test]
fn moe_survives_eviction_at_every_token() {
    prove_eviction(MOE, NumericClass::Int8Act);
}

#[test]
fn the_comparison_sees_one_changed_token() {
    let (pack, _guard) = pack(MOE);
    let size = EngineSize { batch: 1, context: 160, threads: 1 };
    let mut e = engine(&pack, NumericClass::Int8Act, size, simd());
    let mut text = prompt(&e);
    let want = alone(&pack, NumericClass::Int8Act, size, simd());
    text[3] = (text[3] + 1) % e.summary().vocab as u32;
    let s = e.open(PROMPT).unwrap();
    e.prefill(&[(s, &text)], false).unwrap();
    let mut trail = Trail::new();
    trail.push(&e, 0);
    assert!(trail.bits[0] != want.bits[0]);
}
