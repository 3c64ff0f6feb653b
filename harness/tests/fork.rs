//! A forked suffix has the bits of an unforked prefill at the same positions, and where it cannot it is refused.
mod common;

use common::{BUILTIN, HYBRID, MOE, engine, pack, simd, tokens};
use harness::engine::{Engine, EngineError, EngineSize, STATE_GRID, Sequence};
use harness::pack::Pack;
use kernels::numeric::NumericClass;

const PROMPT: usize = 330;
const STEPS: usize = 4;
const SIZE: EngineSize = EngineSize { batch: 3, context: PROMPT + STEPS, threads: 2 };

type Bits = Vec<Vec<u32>>;

/// Prefills `text` behind what the sequence holds, cut at `cuts` (absolute) and at the engine's own grid. Returns the
/// bits of every row's logits.
fn prefill(e: &mut Engine, s: Sequence, text: &[u32], cuts: &[usize]) -> Result<Bits, EngineError> {
    let (first, mut rows, mut at) = (e.sequences().get(s)?.length, Vec::new(), 0);
    while at < text.len() {
        let position = first + at;
        let cut = cuts.iter().find(|c| **c > position).map_or(usize::MAX, |c| c - position);
        let n = Engine::chunk_len(position, text.len() - at).min(cut);
        e.prefill(&[(s, &text[at..at + n])], true)?;
        rows.extend((0..n).map(|r| e.logits(r).iter().map(|v| v.to_bits()).collect::<Vec<_>>()));
        at += n;
    }
    Ok(rows)
}

fn steps(e: &mut Engine, s: Sequence) -> Bits {
    let mut token = *e.chosen().last().unwrap();
    let step = |_| {
        e.decode(&[(s, token)]).unwrap();
        token = e.chosen()[0];
        e.logits(0).iter().map(|v| v.to_bits()).collect()
    };
    (0..STEPS).map(step).collect()
}

fn whole(pack: &Pack, class: NumericClass) -> (Vec<u32>, Bits) {
    let mut e = engine(pack, class, SIZE, simd());
    let text = tokens(11, PROMPT, e.summary().vocab);
    let s = e.open(PROMPT + STEPS).unwrap();
    let mut bits = prefill(&mut e, s, &text, &[]).unwrap();
    bits.extend(steps(&mut e, s));
    (text, bits)
}

/// The prompt in two sequences: a prefix, and behind a copy of it the suffix, while the first one goes on elsewhere.
fn forked(pack: &Pack, class: NumericClass, text: &[u32], at: usize) -> Result<Bits, EngineError> {
    let mut e = engine(pack, class, SIZE, simd());
    let (base, vocab) = (e.open(PROMPT)?, e.summary().vocab);
    let mut bits = prefill(&mut e, base, &text[..at], &[])?;
    let s = e.fork(base, PROMPT + STEPS)?;
    prefill(&mut e, base, &tokens(5, PROMPT - at, vocab), &[])?;
    bits.extend(prefill(&mut e, s, &text[at..], &[])?);
    bits.extend(steps(&mut e, s));
    Ok(bits)
}

fn first_difference(a: &Bits, b: &Bits) -> Option<usize> {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).position(|(a, b)| a != b)
}

fn prove(dir: &str, class: NumericClass, at: &[usize]) {
    let (pack, _guard) = pack(dir);
    let (text, want) = whole(&pack, class);
    for &at in at {
        let have = forked(&pack, class, &text, at).unwrap();
        assert_eq!(first_difference(&want, &have), None, "{dir} {class} forked at {at}");
    }
    for cuts in [&[64, 192][..], &[128, 256, 320]] {
        let mut e = engine(&pack, class, SIZE, simd());
        let s = e.open(PROMPT + STEPS).unwrap();
        let mut have = prefill(&mut e, s, &text, cuts).unwrap();
        have.extend(steps(&mut e, s));
        assert_eq!(first_difference(&want, &have), None, "{dir} {class} cut at {cuts:?}");
    }
}

const ON_GRID: [usize; 4] = [STATE_GRID, 2 * STATE_GRID, 4 * STATE_GRID, 5 * STATE_GRID];
const ANYWHERE: [usize; 5] = [1, 37, 127, 255, 300];

#[test]
fn a_forked_suffix_of_the_hybrid_has_the_bits_of_the_whole_prompt() {
    for (dir, class) in
        [(HYBRID, NumericClass::F32), (HYBRID, NumericClass::Bf16), (BUILTIN, NumericClass::Bf16)]
    {
        prove(dir, class, &ON_GRID);
    }
}

#[test]
fn a_forked_suffix_of_the_moe_model_has_them_wherever_it_begins() {
    for class in NumericClass::ALL {
        prove(MOE, class, &ON_GRID);
        prove(MOE, class, &ANYWHERE);
    }
}

#[test]
fn a_prompt_of_the_hybrid_that_goes_on_off_the_grid_is_refused_by_position() {
    let (pack, _guard) = pack(HYBRID);
    for class in [NumericClass::F32, NumericClass::Bf16] {
        let (text, _) = whole(&pack, class);
        for at in ANYWHERE {
            let refused = forked(&pack, class, &text, at).unwrap_err();
            assert!(
                matches!(refused, EngineError::OffGrid { position, grid: 64 } if position == at),
                "{refused}"
            );
        }
    }
}
