//! Every (experts, k) of the user-reported failures, ties, refusals, and the grouping.
use super::*;
use crate::host::simd::Simd;
use crate::testing::{simd, words};

fn row(n: usize, seed: u64, levels: u32) -> Vec<f32> {
    let level = |s: u64| (((s >> 33) as u32 % levels) as f32 / levels as f32 - 0.5) * 12.0;
    words(n, seed).map(level).collect()
}

/// Softmax, then a stable sort by falling probability, in f64.
fn exact(logits: &[f32], k: usize, norm: bool) -> Vec<(u32, f64)> {
    let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
    let mut all: Vec<(u32, f64)> =
        logits.iter().enumerate().map(|(i, x)| (i as u32, f64::from(*x).exp() / total)).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(k);
    let sum: f64 = if norm { all.iter().map(|a| a.1).sum() } else { 1.0 };
    all.iter_mut().for_each(|a| a.1 /= sum);
    all
}

#[test]
fn every_expert_count_and_k_with_and_without_normalisation() {
    for experts in [64, 128, 256, 7, 100] {
        for k in [1, 4, 8, 7] {
            if k > experts {
                continue;
            }
            for norm in [false, true] {
                for seed in 0..40 {
                    // Few levels make many ties.
                    let levels = if seed % 2 == 0 { 1 << 24 } else { 5 };
                    let logits = row(experts, seed, levels);
                    let (mut ids, mut weights) = (vec![u32::MAX; k], vec![f32::NAN; k]);
                    route_row(simd(), &logits, norm, &mut ids, &mut weights).expect("finite");
                    for (s, (id, p)) in exact(&logits, k, norm).into_iter().enumerate() {
                        assert_eq!(ids[s], id);
                        assert!((f64::from(weights[s]) - p).abs() < 1e-6 * p.max(1e-3));
                    }
                    let mut unique = ids.clone();
                    unique.sort_unstable();
                    unique.dedup();
                    assert_eq!(unique.len(), k);
                    for simd in Simd::available() {
                        let (mut ids2, mut weights2) = (vec![u32::MAX; k], vec![f32::NAN; k]);
                        route_row(simd, &logits, norm, &mut ids2, &mut weights2).expect("finite");
                        assert_eq!((&ids2, &weights2), (&ids, &weights));
                    }
                }
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_index() {
    let (mut ids, mut weights) = ([9; 4], [0.0; 4]);
    route_row(simd(), &[1.0; 64], true, &mut ids, &mut weights).expect("finite");
    assert_eq!((ids, weights), ([0, 1, 2, 3], [0.25; 4]));
    let mut logits = [0.0; 10];
    (logits[9], logits[2], logits[5]) = (3.0, 3.0, 4.0);
    route_row(simd(), &logits, false, &mut ids, &mut weights).expect("finite");
    assert_eq!(ids, [5, 2, 9, 0]);
}

#[test]
fn bad_logits_and_bad_k_are_typed_refusals() {
    let (mut ids, mut weights) = ([0; 2], [0.0; 2]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut logits = row(64, 1, 1000);
        logits[33] = bad;
        let got = route_row(simd(), &logits, true, &mut ids, &mut weights);
        assert_eq!(got, Err(RouteError::NotFinite { expert: 33 }));
    }
    let got = route_row(simd(), &[1.0], true, &mut ids, &mut weights);
    assert_eq!(got, Err(RouteError::TopK { k: 2, experts: 1 }));
    let got = route_row(simd(), &[1.0], true, &mut [], &mut []);
    assert_eq!(got, Err(RouteError::TopK { k: 0, experts: 1 }));
}

#[test]
fn grouping_is_a_stable_sort_by_expert() {
    let (rows, k, experts) = (37, 4, 16);
    let ids: Vec<u32> = (0..rows)
        .flat_map(|r| {
            let (mut ids, mut w) = (vec![0; k], vec![0.0; k]);
            route_row(simd(), &row(experts, r as u64, 1 << 20), true, &mut ids, &mut w).expect("finite");
            ids
        })
        .collect();
    let pairs = rows * k;
    let (mut counts, mut offsets) = (vec![7; experts], vec![7; experts + 1]);
    let mut list = vec![u32::MAX; pairs];
    let active = group(&ids, experts, &mut counts, &mut offsets, &mut list).expect("ids in range");
    let mut want: Vec<u32> = (0..pairs as u32).collect();
    want.sort_by_key(|p| ids[*p as usize]);
    assert_eq!(list, want);
    for e in 0..experts {
        assert_eq!(offsets[e + 1] - offsets[e], counts[e]);
        let range = offsets[e] as usize..offsets[e + 1] as usize;
        assert!(list[range].iter().all(|p| ids[*p as usize] == e as u32));
    }
    assert_eq!(active, counts.iter().filter(|c| **c > 0).count());
    let got = group(&[0, 16], 16, &mut counts, &mut offsets, &mut list);
    assert_eq!(got, Err(RouteError::Id { pair: 1, id: 16, experts: 16 }));
}
