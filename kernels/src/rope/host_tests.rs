//! The fused row against f64 equations, and its parts against the whole.
use super::*;
use crate::host::simd::Simd;
use crate::testing::{simd, uniform};
use crate::values::{Bf16, bf16_from_f32};

fn row(n: usize, seed: u64) -> Vec<f32> {
    uniform(n, seed, 4.0)
}

/// Norm and rotation of a head by the equations, in f64.
fn exact(head: &[f32], w: &[f32], rotary: usize, position: u32, theta: f64) -> Vec<f64> {
    let d = head.len() as f64;
    let mean = head.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / d;
    let n: Vec<f64> = head
        .iter()
        .zip(w)
        .map(|(x, w)| f64::from(*x) / (mean + 1e-6).sqrt() * (1.0 + f64::from(*w)))
        .collect();
    let mut out = n.clone();
    let half = rotary / 2;
    for m in 0..half {
        let angle = f64::from(position) / theta.powf(2.0 * m as f64 / rotary as f64);
        out[m] = n[m] * angle.cos() - n[m + half] * angle.sin();
        out[m + half] = n[m + half] * angle.cos() + n[m] * angle.sin();
    }
    out
}

#[test]
fn heads_agree_with_f64_for_full_partial_and_no_rotation() {
    for (d, rotary) in [(256, 64), (128, 128), (64, 64), (6, 2), (10, 0), (20, 18)] {
        for position in [0, 1, 127, 4096, 1_000_000] {
            let (head, w) = (row(d, 1), row(d, 2));
            let mut table = vec![0.0; rotary];
            fill_cos_sin(position, 1e7, rotary, &mut table);
            let norm = HeadNorm { weight: Vector::F32(&w), eps: 1e-6, plus_one: true };
            let mut plain = head.clone();
            qk_row(Simd::SCALAR, &mut plain, Some(&norm), &table);
            for simd in Simd::available() {
                let mut got = head.clone();
                qk_row(simd, &mut got, Some(&norm), &table);
                for (g, e) in got.iter().zip(exact(&head, &w, rotary, position, 1e7)) {
                    assert!((f64::from(*g) - e).abs() < 4e-6, "{simd:?}: {g} {e}");
                }
                assert_eq!(plain, got);
            }
        }
    }
}

#[test]
fn the_table_is_f64_rounded_once_and_position_zero_is_the_identity() {
    let mut table = [9.0; 64];
    fill_cos_sin(0, 1e6, 64, &mut table);
    assert!(table[..32].iter().all(|c| *c == 1.0) && table[32..].iter().all(|s| *s == 0.0));
    fill_cos_sin(777_777, 1e6, 64, &mut table);
    let angle = 777_777.0 * 1e6f64.powf(-2.0 * 5.0 / 64.0);
    assert_eq!((table[5], table[37]), (angle.cos() as f32, angle.sin() as f32));
    let head = row(64, 4);
    let mut got = head.clone();
    fill_cos_sin(0, 1e6, 64, &mut table);
    qk_row(simd(), &mut got, None, &table);
    assert_eq!(got, head);
}

#[test]
fn a_fused_row_equals_its_heads_and_leaves_gates_and_other_slots_alone() {
    let (heads, kv, d) = (6, 2, 32);
    let (qw, kw) = (row(d, 8), row(d, 9));
    let mut table = vec![0.0; 16];
    fill_cos_sin(300, 1e7, 16, &mut table);
    let norm = |w| HeadNorm { weight: Vector::F32(w), eps: 1e-6, plus_one: true };
    for (gated, round_q) in [(true, true), (false, false)] {
        let layer =
            QkvLayer { head_dim: d, gated, q_norm: Some(norm(&qw)), k_norm: Some(norm(&kw)), round_q };
        let width = if gated { 2 * d } else { d };
        let (q, k, v) = (row(heads * width, 5), row(kv * d, 6), row(kv * d, 7));
        let mut out = vec![f32::NAN; heads * d];
        let poison = Bf16(0xffff);
        let (mut ks, mut vs) = (vec![poison; kv * 3 * d], vec![poison; kv * 3 * d]);
        let mut slots = Strided { k: &mut ks[d..], v: &mut vs[d..], stride: 3 * d, head_dim: d };
        qkv_row(simd(), &layer, &table, &q, &k, &v, &mut out, &mut slots, &mut vec![0.0; d]);
        for h in 0..heads {
            let mut head = q[h * width..h * width + d].to_vec();
            qk_row(simd(), &mut head, Some(&norm(&qw)), &table);
            if round_q {
                head.iter_mut().for_each(|x| *x = round_bf16(*x));
            }
            assert_eq!(out[h * d..(h + 1) * d], head);
            if gated {
                assert_eq!(gate_of(&q, d, h), &q[h * width + d..(h + 1) * width]);
            }
        }
        for h in 0..kv {
            let mut head = k[h * d..(h + 1) * d].to_vec();
            qk_row(simd(), &mut head, Some(&norm(&kw)), &table);
            let at = h * 3 * d;
            for i in 0..d {
                assert_eq!(ks[at + d + i], Bf16(bf16_from_f32(head[i])));
                assert_eq!(vs[at + d + i], Bf16(bf16_from_f32(v[h * d + i])));
                assert!([ks[at + i], ks[at + 2 * d + i], vs[at + i], vs[at + 2 * d + i]] == [poison; 4]);
            }
        }
    }
}

#[test]
fn a_nan_in_one_head_stays_in_that_head() {
    let d = 16;
    let mut q = row(2 * d, 1);
    q[3] = f32::NAN;
    let w = row(d, 2);
    let norm = HeadNorm { weight: Vector::F32(&w), eps: 1e-6, plus_one: false };
    let layer = QkvLayer { head_dim: d, gated: false, q_norm: Some(norm), k_norm: None, round_q: true };
    let mut out = vec![0.0; 2 * d];
    let (mut k, mut v) = (vec![0.0f32; d], vec![0.0f32; d]);
    let mut slots = Strided { k: &mut k, v: &mut v, stride: d, head_dim: d };
    qkv_row(simd(), &layer, &[], &q, &row(d, 3), &row(d, 4), &mut out, &mut slots, &mut [0.0; 16]);
    assert!(out[..d].iter().all(|x| x.is_nan()));
    assert!(out[d..].iter().all(|x| x.is_finite()));
    assert_eq!((k, v), (row(d, 3), row(d, 4)));
}
