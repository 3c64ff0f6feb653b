//! The sampler against a naive implementation, its distribution, its ranges and its bad inputs.

use super::*;
use proptest::prelude::*;

/// Everything by the book: full sorts, f64, fresh vectors.
fn naive(logits: &[f32], history: History<'_>, p: &SamplingParams) -> Vec<(u32, f64)> {
    let mut l: Vec<f32> = logits.to_vec();
    for (id, logit) in l.iter_mut().enumerate() {
        let id = id as u32;
        let times = history.generated.iter().filter(|&&g| g == id).count();
        if times > 0 || history.prompt.contains(&id) {
            *logit = if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
        }
        if times > 0 {
            *logit -= p.presence_penalty + p.frequency_penalty * times as f32;
        }
    }
    let top = l.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weight = |x: f32| (f64::from(x - top) / f64::from(p.temperature)).exp();
    let mut all: Vec<(u32, f64)> = (0..).zip(l.iter().map(|&x| weight(x))).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    if p.top_k > 0 {
        all.truncate(p.top_k as usize);
    }
    let total: f64 = all.iter().map(|c| c.1).sum();
    let (mut mass, mut kept) = (0.0, Vec::new());
    for c in all {
        if mass < f64::from(p.top_p) * total * (1.0 - 1e-12) || p.top_p == 1.0 {
            mass += c.1;
            kept.push(c);
        }
    }
    kept.retain(|c| c.1 >= f64::from(p.min_p));
    let total: f64 = kept.iter().map(|c| c.1).sum();
    kept.iter().map(|c| (c.0, c.1 / total)).collect()
}

proptest! {
    #[test]
    fn the_distribution_is_that_of_the_naive_implementation(
        logits in proptest::collection::vec(-8.0f32..8.0, 2..60),
        temperature in 0.2f32..3.0, top_p in 0.05f32..1.0, top_k in 0u32..20, min_p in 0.0f32..0.5,
        repetition_penalty in 0.8f32..1.5, presence_penalty in -1.0f32..1.0, frequency_penalty in -1.0f32..1.0,
        prompt in proptest::collection::vec(0u32..60, 0..8), generated in proptest::collection::vec(0u32..60, 0..8),
    ) {
        let params = SamplingParams { temperature, top_p, top_k, min_p, repetition_penalty, presence_penalty,
            frequency_penalty, ..SamplingParams::default() };
        let history = History { prompt: &prompt, generated: &generated };
        let expected = naive(&logits, history, &params);
        let mut sampler = Sampler::new(params, logits.len()).unwrap();
        let mut work = logits.clone();
        sampler.adjust(&mut work, history).unwrap();
        let best = argmax(&work).unwrap();
        sampler.distribute(&work, best);
        let mut found = sampler.candidates.clone();
        found.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        prop_assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(&expected) {
            prop_assert!((f.1 - e.1).abs() < 1e-5, "{:?} {:?}", f, e);
        }
        prop_assert!(sampler.counts.iter().all(|&c| c == 0), "counts are cleared for the next step");
    }

    #[test]
    fn top_logprobs_are_sorted_and_normalised(logits in proptest::collection::vec(-5.0f32..5.0, 1..40), n in 0usize..25) {
        let mut out = Vec::new();
        let own = top_logprobs(&logits, 0, n, &mut out).unwrap();
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        prop_assert!((f64::from(own) - (f64::from(logits[0]) - total.ln())).abs() < 1e-5);
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        order.truncate(n);
        prop_assert_eq!(out.iter().map(|e| e.0).collect::<Vec<_>>(), order);
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let params = SamplingParams { temperature: 1.0, seed: 7, ..SamplingParams::default() };
    let weights = [1.0f64, 2.0, 3.0, 4.0, 10.0];
    let logits: Vec<f32> = weights.iter().map(|w| w.ln() as f32).collect();
    let mut sampler = Sampler::new(params, 5).unwrap();
    let (draws, prompt) = (20_000usize, vec![0u32; 20_000]);
    let mut seen = [0f64; 5];
    for n in 0..draws {
        let history = History { prompt: &prompt[..n], generated: &[] };
        seen[sampler.sample(&mut logits.clone(), history).unwrap() as usize] += 1.0;
    }
    let chi: f64 = (0..5)
        .map(|i| {
            let expected = draws as f64 * weights[i] / 20.0;
            (seen[i] - expected).powi(2) / expected
        })
        .sum();
    assert!(chi < 18.47, "chi-square {chi} with 4 degrees of freedom is beyond p = 0.001: {seen:?}");
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let params = SamplingParams { temperature: 1.0, seed: 11, ..SamplingParams::default() };
    let logits: Vec<f32> = (0..50).map(|i| (i % 7) as f32 * 0.1).collect();
    let ids = [1u32; 30];
    let draw = |sampler: &mut Sampler, n: usize| {
        let history = History { prompt: &ids[..10], generated: &ids[..n] };
        sampler.sample(&mut logits.clone(), history).unwrap()
    };
    let mut one = Sampler::new(params.clone(), 50).unwrap();
    let forward: Vec<u32> = (0..20).map(|n| draw(&mut one, n)).collect();
    let mut other = Sampler::new(params.clone(), 50).unwrap();
    let backward: Vec<u32> = (0..20).rev().map(|n| draw(&mut other, n)).collect();
    assert!(forward.iter().eq(backward.iter().rev()));
    let mut third = Sampler::new(SamplingParams { seed: 12, ..params }, 50).unwrap();
    assert_ne!(forward, (0..20).map(|n| draw(&mut third, n)).collect::<Vec<_>>());
}

#[test]
fn greedy_ties_go_to_the_lowest_id_and_bias_moves_them() {
    let mut sampler = Sampler::new(SamplingParams::default(), 4).unwrap();
    assert_eq!(sampler.sample(&mut [1.0, 3.0, 3.0, 3.0], History::default()).unwrap(), 1);
    let biased = SamplingParams { logit_bias: vec![(3, 0.5), (1, -100.0), (99, 1.0)], ..Default::default() };
    let mut sampler = Sampler::new(biased, 4).unwrap();
    assert_eq!(sampler.sample(&mut [1.0, 3.0, 3.0, 3.0], History::default()).unwrap(), 3);
}

#[test]
fn bad_logits_are_typed_errors_never_a_token() {
    let mut sampler = Sampler::new(SamplingParams { temperature: 1.0, ..Default::default() }, 3).unwrap();
    let error = sampler.sample(&mut [0.0, f32::NAN, 1.0], History::default()).unwrap_err();
    assert!(matches!(error, SamplerError::BadLogit { id: 1, .. }));
    let error = sampler.sample(&mut [f32::INFINITY, 0.0, 1.0], History::default()).unwrap_err();
    assert!(matches!(error, SamplerError::BadLogit { id: 0, .. }));
    let error = sampler.sample(&mut [f32::NEG_INFINITY; 3], History::default()).unwrap_err();
    assert_eq!(error, SamplerError::AllMasked { vocabulary: 3 });
    let error = sampler.sample(&mut [0.0; 2], History::default()).unwrap_err();
    assert_eq!(error, SamplerError::Length { found: 2, expected: 3 });
}

#[test]
fn masked_tokens_are_never_drawn_and_have_finite_logprobs() {
    let mut logits = vec![f32::NEG_INFINITY; 30];
    logits[17] = 0.0;
    let params = SamplingParams { temperature: 2.0, ..Default::default() };
    let mut sampler = Sampler::new(params, 30).unwrap();
    for n in 0..50 {
        let prompt = vec![0; n];
        assert_eq!(sampler.sample(&mut logits.clone(), History { prompt: &prompt, generated: &[] }), Ok(17));
    }
    let mut out = Vec::new();
    assert_eq!(top_logprobs(&logits, 3, 20, &mut out).unwrap(), LOGPROB_FLOOR);
    assert_eq!(out[0], (17, 0.0));
    assert!(out.len() == 20 && out.iter().all(|e| e.1.is_finite()));
}

#[test]
fn each_parameter_out_of_range_is_named() {
    let base = SamplingParams::default;
    let cases: Vec<(&str, SamplingParams)> = vec![
        ("temperature", SamplingParams { temperature: -1.0, ..base() }),
        ("temperature", SamplingParams { temperature: f32::NAN, ..base() }),
        ("top_p", SamplingParams { top_p: 0.0, ..base() }),
        ("top_p", SamplingParams { top_p: 1.5, ..base() }),
        ("min_p", SamplingParams { min_p: -0.1, ..base() }),
        ("repetition_penalty", SamplingParams { repetition_penalty: 0.0, ..base() }),
        ("presence_penalty", SamplingParams { presence_penalty: 3.0, ..base() }),
        ("frequency_penalty", SamplingParams { frequency_penalty: -3.0, ..base() }),
        ("logit_bias", SamplingParams { logit_bias: vec![(0, 101.0)], ..base() }),
    ];
    for (name, params) in cases {
        let error = params.validate().unwrap_err();
        assert!(matches!(error, SamplerError::Param { param, .. } if param == name), "{name}: {error}");
    }
    assert!(base().validate().is_ok());
}
