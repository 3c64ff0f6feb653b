//! Decoders against worked vectors, the reference decoder's output, and both layouts.
#![allow(clippy::unwrap_used)]

use super::planar::{TILE_ROWS, decode_planar_row, from_planar, planes, to_planar};
use super::random::Random;
use super::*;
use proptest::prelude::*;
use std::path::PathBuf;

/// The folder of reference vectors, or `None` with a line saying that the test was skipped.
fn oracle(file: &str) -> Option<Vec<u8>> {
    let root = std::env::var_os("SPARKPIPE_ORACLES")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/oracle"), PathBuf::from);
    let path = root.join(file);
    match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(_) => {
            println!("SKIPPED: no reference vectors at {}", path.display());
            None
        }
    }
}

fn assert_same(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(g.to_bits() == w.to_bits() || (*g == 0.0 && *w == 0.0), "{what}[{i}]: {g} wants {w}");
    }
}

fn check_file(file: &str, tensors: &[(Format, &str, &str)]) {
    let Some(bytes) = oracle(file) else { return };
    let set = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for &(format, raw, decoded) in tensors {
        let raw = set.tensor(raw).unwrap();
        let want: Vec<f32> = set
            .tensor(decoded)
            .unwrap()
            .data()
            .chunks(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        for simd in Simd::available() {
            let mut got = vec![f32::NAN; want.len()];
            decode_row_with(simd, format, raw.data(), &mut got).unwrap();
            assert_same(&got, &want, &format!("{file} {format:?} {simd:?}"));
        }
    }
}

#[test]
fn reference_blocks_decode_bit_for_bit() {
    check_file(
        "ggml_blocks/blocks.safetensors",
        &[
            (Format::Q8_0, "Q8_0.raw", "Q8_0.f32"),
            (Format::Q2_K, "Q2_K.raw", "Q2_K.f32"),
            (Format::Q4_K, "Q4_K.raw", "Q4_K.f32"),
            (Format::Q5_K, "Q5_K.raw", "Q5_K.f32"),
            (Format::Q6_K, "Q6_K.raw", "Q6_K.f32"),
        ],
    );
}

#[test]
fn reference_files_decode_bit_for_bit() {
    for (format, name) in
        [(Format::Q8_0, "q8_0"), (Format::Q2_K, "q2_k"), (Format::Q4_K, "q4_k"), (Format::Q6_K, "q6_k")]
    {
        check_file(&format!("formats/gguf_{name}.safetensors"), &[(format, "blocks", "dequant")]);
    }
}

/// A block of zeros with some bytes set.
fn block(format: Format, set: &[(usize, u8)]) -> Vec<u8> {
    let mut b = vec![0; format.block_bytes()];
    for &(at, v) in set {
        b[at] = v;
    }
    b
}

/// Values of a decoded block at the given places.
fn at(format: Format, bytes: &[u8], places: &[usize]) -> Vec<f32> {
    let mut out = vec![0.0; format.block_values()];
    decode_row(format, bytes, &mut out).unwrap();
    places.iter().map(|&p| out[p]).collect()
}

#[test]
fn worked_vectors() {
    // d = .0625, codes 80 a5 ca ef.
    let q8 = block(Format::Q8_0, &[(1, 0x2c), (2, 0x80), (3, 0xa5), (4, 0xca), (5, 0xef)]);
    assert_eq!(at(Format::Q8_0, &q8, &[0, 1, 2, 3, 4]), [-8.0, -5.6875, -3.375, -1.0625, 0.0]);
    // d = 1, dmin = .5; scale 0 = 3, min 0 = 2; scale 4 = 0x21 (top bits in byte 0), min 4 = 0x13 (byte 4).
    let k = [(1, 0x3c), (3, 0x38), (4, 3 | 2 << 6), (8, 2 | 1 << 6), (12, 0x31)];
    let q4 = block(Format::Q4_K, &[&k[..], &[(16, 0x75), (16 + 64, 0x02)]].concat());
    // 3*5 - 1; sub-block 1 has scale 0; element 1: -1; 33*2 - 9.5.
    assert_eq!(at(Format::Q4_K, &q4, &[0, 32, 1, 128]), [14.0, 0.0, -1.0, 56.5]);
    // The same with fifth bits 0 and 4 of element 0: 3*21 - 1 and 33*18 - 9.5.
    let q5 = block(Format::Q5_K, &[&k[..], &[(16, 0x11), (48, 0x75), (48 + 64, 0x02)]].concat());
    assert_eq!(at(Format::Q5_K, &q5, &[0, 128]), [62.0, 584.5]);
    // d = 2; scale 0 = -3, scale 15 = 4; value 0 = 0x1f (31 - 32), last value: ql 0xf0, qh 0xc0 -> 63.
    let q6 = block(
        Format::Q6_K,
        &[(0, 0x0f), (128, 0x01), (127, 0xf0), (191, 0xc0), (192, 0xfd), (207, 4), (209, 0x40)],
    );
    assert_eq!(at(Format::Q6_K, &q6, &[0, 255]), [6.0, 248.0]);
    // d = 1, dmin = 2; byte 0: scale 5, min 3; code bits 2 of the first byte; 5*3 - 6.
    let q2 = block(Format::Q2_K, &[(0, 0x35), (16, 0x03), (81, 0x3c), (83, 0x40)]);
    assert_eq!(at(Format::Q2_K, &q2, &[0, 1, 16]), [9.0, -6.0, 0.0]);
    assert_eq!(at(Format::F16, &[0x00, 0xb8], &[0]), [-0.5]);
    assert_eq!(at(Format::Bf16, &[0x80, 0x3f], &[0]), [1.0]);
    assert_eq!(at(Format::F32, &1.5f32.to_le_bytes(), &[0]), [1.5]);
}

#[test]
fn every_level_decodes_any_bytes_to_the_same_bits() {
    let mut random = Random::new(11);
    for format in Format::ALL {
        let k = 9 * format.block_values();
        for _ in 0..20 {
            let bytes = random.bytes(9 * format.block_bytes());
            let mut want = vec![0.0; k];
            decode_row(format, &bytes, &mut want).unwrap();
            for simd in Simd::available() {
                let mut got = vec![0.0f32; k];
                decode_row_with(simd, format, &bytes, &mut got).unwrap();
                for (g, w) in got.iter().zip(&want) {
                    assert!(g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan()), "{format:?}: {g} {w}");
                }
            }
        }
    }
}

#[test]
fn ragged_rows_and_wrong_lengths_are_named() {
    let ragged = FormatError::RaggedRow { format: Format::Q4_K, k: 300, block: 256 };
    assert_eq!(Format::Q4_K.row_bytes(300), Err(ragged));
    assert_eq!(decode_row(Format::Q4_K, &[0; 144], &mut [0.0; 300]), Err(ragged));
    let short = FormatError::Length { format: Format::Q8_0, got: 33, want: 34 };
    assert_eq!(decode_row(Format::Q8_0, &[0; 33], &mut [0.0; 32]), Err(short));
    let huge = usize::MAX / 256 * 256;
    assert!(matches!(Format::Q4_K.matrix_bytes(huge, huge), Err(FormatError::Overflow { .. })));
    assert!(to_planar(Format::Q8_0, 2, 32, &[0; 34]).is_err());
}

#[test]
fn planes_cover_each_block_and_stay_aligned() {
    for format in Format::ALL {
        assert_eq!(Format::from_name(format.name()), Some(format));
        let mut seen = vec![0; format.block_bytes()];
        let Some((last, first)) = planes(format).split_last() else { continue };
        for p in planes(format) {
            seen[p.at..p.at + p.bytes].iter_mut().for_each(|s| *s += 1);
        }
        assert!(seen.iter().all(|&s| s == 1), "{format:?}");
        assert!(first.iter().all(|p| p.bytes % 16 == 0) && last.bytes > 0, "{format:?}");
    }
    assert_eq!(TILE_ROWS % 16, 0, "whole tiles keep the next tile on 16 bytes for every field width");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn planar_is_lossless_and_decodes_equal(f in 0usize..8, n in 1usize..40, blocks in 1usize..4, seed: u64) {
        let format = Format::ALL[f];
        let k = blocks * format.block_values();
        let mut random = Random::new(seed);
        let bytes = random.bytes(n * usize::try_from(format.row_bytes(k).unwrap()).unwrap());
        let planar = to_planar(format, n, k, &bytes).unwrap();
        prop_assert_eq!(&from_planar(format, n, k, &planar).unwrap(), &bytes);
        let row_bytes = bytes.len() / n;
        for row in 0..n {
            let (mut a, mut b) = (vec![0.0; k], vec![0.0; k]);
            decode_row(format, &bytes[row * row_bytes..][..row_bytes], &mut a).unwrap();
            decode_planar_row(format, n, &planar, row, &mut b).unwrap();
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&a), bits(&b));
        }
        prop_assert!(decode_planar_row(format, n, &planar, n, &mut vec![0.0; k]).is_err());
    }
}
