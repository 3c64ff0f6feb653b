//! Host tiles against f64, and bit equality over vector levels, row groupings, row lists and tile cuts.
#![allow(clippy::unwrap_used)]

use super::host::*;
use super::host_act::Q8_GROUP;
use crate::formats::elements::{bf16_to_f32, round_bf16};
use crate::formats::random::Random;
use crate::formats::{Format, decode_row};
use crate::host::simd::Simd;

const KINDS: [ActKind; 3] = [ActKind::F32, ActKind::Bf16, ActKind::Q8];

/// Activation rows owned by a test.
#[derive(Clone)]
enum Owned {
    F32(Vec<f32>),
    Bf16(Vec<u16>),
    Q8(Vec<u8>),
}

impl Owned {
    fn new(kind: ActKind, x: &[f32], k: usize) -> Self {
        match kind {
            ActKind::F32 => Self::F32(x.to_vec()),
            ActKind::Bf16 => {
                let mut out = vec![0; x.len()];
                round_bf16(Simd::SCALAR, x, &mut out);
                Self::Bf16(out)
            }
            ActKind::Q8 => {
                let mut out = vec![0; x.len() / k * kind.row_bytes(k).unwrap()];
                for (x, o) in x.chunks(k).zip(out.chunks_mut(kind.row_bytes(k).unwrap())) {
                    quantize_q8_row(Simd::SCALAR, x, o);
                }
                Self::Q8(out)
            }
        }
    }

    fn act(&self) -> Act<'_> {
        match self {
            Self::F32(x) => Act::F32(x),
            Self::Bf16(x) => Act::Bf16(x),
            Self::Q8(x) => Act::Q8(x),
        }
    }

    /// The values the kernel sees.
    fn values(&self, k: usize) -> Vec<f64> {
        match self {
            Self::F32(x) => x.iter().map(|&v| f64::from(v)).collect(),
            Self::Bf16(x) => x.iter().map(|&v| f64::from(bf16_to_f32(v))).collect(),
            Self::Q8(x) => {
                x.chunks(ActKind::Q8.row_bytes(k).unwrap()).flat_map(|r| dequantize(r, k)).collect()
            }
        }
    }
}

fn dequantize(row: &[u8], k: usize) -> Vec<f64> {
    (0..k)
        .map(|i| {
            let s = k + i / Q8_GROUP * 4;
            let scale = f32::from_le_bytes(row[s..s + 4].try_into().unwrap());
            f64::from(scale) * f64::from(row[i].cast_signed())
        })
        .collect()
}

/// One call of `tile` with poisoned buffers.
fn run(simd: Simd, f: Format, w: &[u8], nt: usize, k: usize, x: &Owned, rows: RowSel<'_>) -> Vec<f32> {
    let mut scratch = vec![f32::NAN; scratch_len(k, nt)];
    let mut out = vec![f32::NAN; rows.len() * nt];
    tile(simd, f, w, nt, k, &x.act(), rows, &mut scratch, &mut out).unwrap();
    out
}

fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| x.to_bits()).collect()
}

/// Every (format, class) with each K that both can hold.
fn cases() -> Vec<(Format, ActKind, usize)> {
    let mut all = Vec::new();
    for f in Format::ALL {
        for kind in KINDS {
            for k in [7, 32, 72, 256, 768, 1280] {
                if supports(f, kind) && k % f.block_values() == 0 && kind.row_bytes(k).is_some() {
                    all.push((f, kind, k));
                }
            }
        }
    }
    assert!(all.len() > 40);
    all
}

#[test]
fn every_format_and_class_agrees_with_f64() {
    let mut random = Random::new(1);
    for (f, kind, k) in cases() {
        for (n, m) in [(1, 1), (3, 2), (17, 3), (3, 4), (17, 5), (1, 6), (3, 7), (1, 8), (17, 9)] {
            let w = random.weights(f, n, k);
            let x = Owned::new(kind, &random.units(m * k), k);
            let mut dense = vec![0f32; n * k];
            for (row, out) in w.chunks(w.len() / n).zip(dense.chunks_mut(k)) {
                decode_row(f, row, out).unwrap();
            }
            let values = x.values(k);
            for simd in Simd::available() {
                let got = run(simd, f, &w, n, k, &x, RowSel::Range { start: 0, end: m });
                for (i, &got) in got.iter().enumerate() {
                    let (x, w) = (&values[i / n * k..][..k], &dense[i % n * k..][..k]);
                    let want: f64 = x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum();
                    // Codes and minima cancel in a K-quant: the scale of the row, not of each product, bounds it.
                    let top = w.iter().fold(0f64, |a, w| a.max(f64::from(w.abs())));
                    let bound = x.iter().map(|x| x.abs() * top).sum::<f64>() * 2e-6;
                    let error = (f64::from(got) - want).abs();
                    assert!(error <= bound, "{f:?} {kind:?} {simd:?} n{n} m{m} k{k} [{i}]: {got} {want}");
                }
            }
        }
    }
}

#[test]
fn no_grouping_of_rows_or_weights_changes_a_bit() {
    const N: usize = 17;
    const M: usize = 9;
    let mut random = Random::new(2);
    for (f, kind, k) in cases() {
        let w = random.weights(f, N, k);
        let row = w.len() / N;
        let x = Owned::new(kind, &random.units(M * k), k);
        let all = RowSel::Range { start: 0, end: M };
        let want = bits(&run(Simd::SCALAR, f, &w, N, k, &x, all));
        for simd in Simd::available() {
            assert_eq!(bits(&run(simd, f, &w, N, k, &x, all)), want, "{f:?} {kind:?} {simd:?} k{k}");
            for (start, end) in [(0, 1), (8, 9), (3, 5), (2, 5), (1, 5), (4, 9), (0, 6), (1, 8), (0, 8)] {
                let got = run(simd, f, &w, N, k, &x, RowSel::Range { start, end });
                assert_eq!(bits(&got), want[start * N..end * N], "{f:?} {kind:?} {simd:?} {start}..{end}");
            }
            let list = [7u32, 0, 0, 8, 3, 1, 7];
            let got = bits(&run(simd, f, &w, N, k, &x, RowSel::List(&list)));
            for (i, &r) in list.iter().enumerate() {
                assert_eq!(got[i * N..(i + 1) * N], want[r as usize * N..(r as usize + 1) * N]);
            }
            for (from, nt) in [(0, 1), (16, 1), (3, 2), (5, 3), (1, 4), (2, 5), (4, 8), (0, 16)] {
                for (start, end) in [(0, M), (3, 5), (4, 5)] {
                    let rows = RowSel::Range { start, end };
                    let got = run(simd, f, &w[from * row..(from + nt) * row], nt, k, &x, rows);
                    let cut: Vec<u32> = want[start * N..end * N]
                        .chunks(N)
                        .flat_map(|o| o[from..from + nt].to_vec())
                        .collect();
                    assert_eq!(bits(&got), cut, "{f:?} {kind:?} {simd:?} rows {from}+{nt} m {start}..{end}");
                }
            }
        }
    }
}

#[test]
fn raw_block_bytes_give_the_same_bits_on_every_level() {
    // Any bytes at all: infinite and NaN scales, extreme codes, subnormal d.
    let mut random = Random::new(3);
    for (f, kind, k) in cases() {
        let (n, m) = (9, 5);
        let w = random.bytes(n * k / f.block_values() * f.block_bytes());
        let x = Owned::new(kind, &random.units(m * k), k);
        let all = RowSel::Range { start: 0, end: m };
        let want = run(Simd::SCALAR, f, &w, n, k, &x, all);
        for simd in Simd::available() {
            for (g, w) in run(simd, f, &w, n, k, &x, all).iter().zip(&want) {
                assert!(g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()), "{f:?} {kind:?} {g} {w}");
            }
        }
    }
}

#[test]
fn extreme_codes_stay_exact() {
    // Largest codes, scales and minima against ±127 everywhere: the integer sums and 16-bit steps must not wrap.
    let k = Q8_GROUP;
    for f in [Format::Q8_0, Format::Q4_K, Format::Q5_K, Format::Q6_K, Format::Q2_K] {
        for fill in [0xff, 0x80, 0x7f, 0x00] {
            for sign in [1.0, -1.0] {
                let mut w = vec![fill; 4 * k / f.block_values() * f.block_bytes()];
                let places: &[usize] = match f {
                    Format::Q8_0 => &[0],
                    Format::Q6_K => &[208],
                    Format::Q2_K => &[80, 82],
                    _ => &[0, 2],
                };
                for b in w.chunks_exact_mut(f.block_bytes()) {
                    for &at in places {
                        b[at..at + 2].copy_from_slice(&half::f16::ONE.to_le_bytes());
                    }
                }
                let x = Owned::new(ActKind::Q8, &vec![sign; 4 * k], k);
                let all = RowSel::Range { start: 0, end: 4 };
                let want = bits(&run(Simd::SCALAR, f, &w, 4, k, &x, all));
                let mut dense = vec![0f32; k];
                decode_row(f, &w[..w.len() / 4], &mut dense).unwrap();
                let exact = f64::from(sign) * dense.iter().map(|&w| f64::from(w)).sum::<f64>();
                assert!(
                    (f64::from(f32::from_bits(want[0])) - exact).abs() <= exact.abs() * 1e-6 + 1e-3,
                    "{f:?}"
                );
                for simd in Simd::available() {
                    assert_eq!(bits(&run(simd, f, &w, 4, k, &x, all)), want, "{f:?} {fill:#x}");
                }
            }
        }
    }
}

#[test]
fn a_nan_or_infinity_reaches_its_row_and_no_other() {
    let mut random = Random::new(4);
    for (f, kind, k) in cases() {
        let w = random.weights(f, 5, k);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = random.units(6 * k);
            let clean = Owned::new(kind, &x, k);
            x[2 * k + k / 2] = bad;
            let x = Owned::new(kind, &x, k);
            for simd in Simd::available() {
                let all = RowSel::Range { start: 0, end: 6 };
                let (got, clean) = (run(simd, f, &w, 5, k, &x, all), run(simd, f, &w, 5, k, &clean, all));
                for i in 0..30 {
                    if i / 5 != 2 {
                        assert_eq!(got[i].to_bits(), clean[i].to_bits());
                    } else {
                        let nan = bad.is_nan() || kind == ActKind::Q8;
                        assert!(if nan { got[i].is_nan() } else { !got[i].is_finite() }, "{f:?} {kind:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn q8_rows_are_within_half_a_step_and_equal_on_every_level() {
    let mut random = Random::new(5);
    let k = 768;
    let mut x = random.units(k);
    x[..256].iter_mut().for_each(|v| *v *= 1e-20);
    x[256..512].iter_mut().for_each(|v| *v *= 1e-32);
    let mut row = vec![0xaa; ActKind::Q8.row_bytes(k).unwrap()];
    quantize_q8_row(Simd::SCALAR, &x, &mut row);
    for (g, x) in x.chunks(Q8_GROUP).enumerate() {
        let amax = x.iter().fold(0f32, |a, v| a.max(v.abs()));
        let scale = f32::from_le_bytes(row[k + 4 * g..][..4].try_into().unwrap());
        assert_eq!(scale, if g == 1 { 0.0 } else { amax / 127.0 });
        for (i, &v) in x.iter().enumerate() {
            let code = row[Q8_GROUP * g + i].cast_signed();
            let want = if g == 1 { 0.0 } else { f64::from(v) / f64::from(amax) * 127.0 };
            assert!((f64::from(code) - want).abs() <= 0.50001, "group {g}: {v} -> {code}");
        }
    }
    for j in 0..k / 32 {
        let sum: i16 = row[32 * j..][..32].iter().map(|&c| i16::from(c.cast_signed())).sum();
        assert_eq!(sum.to_le_bytes(), row[k + k / 64 + 2 * j..][..2]);
    }
    for simd in Simd::available() {
        let mut again = vec![0x55; row.len()];
        quantize_q8_row(simd, &x, &mut again);
        assert_eq!(again, row, "{simd:?}");
    }
    // Ties go to the even code: 127/127 = 1 a step.
    let mut ties = vec![0f32; Q8_GROUP];
    ties[..5].copy_from_slice(&[127.0, 0.5, 1.5, -2.5, -3.5]);
    let mut row = vec![0; 276];
    quantize_q8_row(Simd::SCALAR, &ties, &mut row);
    assert_eq!(row[..5].iter().map(|c| c.cast_signed()).collect::<Vec<_>>(), [127, 0, 2, -2, -4]);
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (x, mut s, mut o) = (vec![0f32; 512], vec![0f32; 512], vec![0f32; 4]);
    let go = |f, w: usize, nt, k, act: &Act<'_>, rows, s: &mut [f32], o: &mut [f32]| {
        tile(Simd::SCALAR, f, &vec![0u8; w], nt, k, act, rows, s, o)
    };
    let one = RowSel::Range { start: 0, end: 1 };
    let f32s = Act::F32(&x);
    let q8 = vec![0u8; 276];
    let unsupported = TileError::Unsupported { format: Format::Bf16, act: ActKind::Q8 };
    assert_eq!(go(Format::Bf16, 512, 1, 256, &Act::Q8(&q8), one, &mut s, &mut o), Err(unsupported));
    let width = TileError::ActWidth { act: ActKind::Q8, k: 32 };
    assert_eq!(go(Format::Q8_0, 34, 1, 32, &Act::Q8(&q8), one, &mut s, &mut o), Err(width));
    assert!(matches!(go(Format::Q4_K, 143, 1, 256, &f32s, one, &mut s, &mut o), Err(TileError::Weights(_))));
    let row = TileError::Row { row: 2, rows: 2 };
    assert_eq!(go(Format::Q4_K, 144, 1, 256, &f32s, RowSel::List(&[0, 2]), &mut s, &mut o), Err(row));
    let short = TileError::Buffer { buffer: "scratch", got: 10, want: 256 };
    assert_eq!(go(Format::Q4_K, 144, 1, 256, &f32s, one, &mut s[..10], &mut o), Err(short));
    let short = TileError::Buffer { buffer: "out", got: 0, want: 1 };
    assert_eq!(go(Format::Q4_K, 144, 1, 256, &f32s, one, &mut s, &mut []), Err(short));
    let none = RowSel::Range { start: 3, end: 3 };
    assert_eq!(go(Format::Q4_K, 144, 1, 256, &f32s, none, &mut s, &mut o), Ok(()));
    assert_eq!(go(Format::F32, 0, 2, 0, &Act::F32(&[]), one, &mut s, &mut o), Ok(()));
    for f in Format::ALL {
        for k in [256, 768, 2048, 12288] {
            assert!(tile_rows(f, k).is_multiple_of(4) && (4..=16).contains(&tile_rows(f, k)));
        }
    }
}
