//! The scalar functions against f64, and the conversions against the `half` crate.
use super::*;

/// Distance in units of the last place of the f32 nearest to `want`.
fn ulps(got: f32, want: f64) -> f64 {
    let near = want as f32;
    let ulp = if near.is_infinite() {
        return if got == near { 0.0 } else { f64::INFINITY };
    } else {
        f64::from(near.abs().next_up()) - f64::from(near.abs())
    };
    (f64::from(got) - want).abs() / ulp
}

fn worst(lo: f32, hi: f32, f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64) -> f64 {
    let steps = 400_000;
    (0..=steps)
        .map(|i| {
            let x = lo + (hi - lo) * (i as f32 / steps as f32);
            ulps(f(x), want(f64::from(x)))
        })
        .fold(0.0, f64::max)
}

#[test]
fn exp_is_within_one_and_a_half_ulp_everywhere() {
    assert!(worst(-87.3, 88.7, exp, f64::exp) < 1.5);
    assert!(worst(-103.9, -87.3, exp, f64::exp) < 1.5, "gradual underflow");
    assert!(worst(-0.5, 0.5, exp, f64::exp) < 1.5);
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(1.0e30), f32::INFINITY);
    assert!(exp(f32::NAN).is_nan());
}

#[test]
fn logistic_functions_hold_their_stated_ulp_and_limits() {
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    assert!(worst(-87.0, 87.0, sigmoid, logistic) < 3.0);
    assert!(worst(-80.0, 87.0, silu, |x| x * logistic(x)) < 4.0);
    assert!(worst(-87.0, 87.0, softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p()) < 3.0);
    assert_eq!(sigmoid(f32::INFINITY), 1.0);
    assert_eq!(sigmoid(f32::NEG_INFINITY), 0.0);
    assert_eq!(silu(f32::NEG_INFINITY), 0.0);
    assert_eq!(softplus(f32::INFINITY), f32::INFINITY);
    assert_eq!(softplus(f32::NEG_INFINITY), 0.0);
    for f in [sigmoid, silu, softplus] {
        assert!(f(f32::NAN).is_nan());
    }
}

#[test]
fn bf16_agrees_with_half_on_all_codes_and_on_ties() {
    for bits in 0..=u16::MAX {
        let x = bf16_to_f32(bits);
        assert_eq!(x.is_nan(), half::bf16::from_bits(bits).is_nan());
        if !x.is_nan() {
            assert_eq!(x.to_bits(), half::bf16::from_bits(bits).to_f32().to_bits());
            assert_eq!(bf16_from_f32(x), bits);
        }
        for low in [0x7fffu32, 0x8000, 0x8001, 1, 0xffff] {
            let y = f32::from_bits((u32::from(bits) << 16) | low);
            assert_eq!(bf16_from_f32(y), half::bf16::from_f32(y).to_bits(), "{y}");
        }
    }
}

#[test]
fn vectors_of_all_types_read_the_same() {
    let plain: Vec<f32> = (0..40).map(|i| i as f32 * 0.25 - 3.0).collect();
    let bf: Vec<u16> = plain.iter().map(|x| half::bf16::from_f32(*x).to_bits()).collect();
    let h: Vec<u16> = plain.iter().map(|x| f16::from_f32(*x).to_bits()).collect();
    for v in [Vector::F32(&plain), Vector::Bf16(&bf), Vector::F16(&h)] {
        assert_eq!(v.len(), 40);
        assert!(!v.is_empty());
        let mut out = [0.0; 7];
        v.load(5, &mut out);
        assert_eq!(out, plain[5..12]);
        assert_eq!(v.get(39), plain[39]);
    }
}

#[test]
fn the_dot_tree_is_sixteen_lanes_folded_in_halves() {
    for n in [0, 1, 15, 16, 17, 100] {
        let a: Vec<f32> = (0..n).map(|i| (i as f32).sin()).collect();
        let b: Vec<f32> = (0..n).map(|i| (i as f32 * 0.7).cos()).collect();
        let mut lanes = [0.0f32; 16];
        for i in 0..n {
            lanes[i % 16] = a[i].mul_add(b[i], lanes[i % 16]);
        }
        assert_eq!(dot(&a, &b).to_bits(), fold_lanes(lanes).to_bits());
        let exact: f64 = (0..n).map(|i| f64::from(a[i]) * f64::from(b[i])).sum();
        assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5);
    }
}
