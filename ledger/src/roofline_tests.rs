//! Tests of ceilings: interpolation, mixes, residency, and the refusal of impossible rates.
use super::*;

fn point(mb: u64, read: f64, copy: f64, modify: f64) -> CeilingPoint {
    let rate = |g: f64| BytesPerSecond(g * 1e9);
    CeilingPoint {
        working_set: Bytes(mb * 1_000_000),
        read: rate(read),
        copy: rate(copy),
        modify: rate(modify),
    }
}

fn curve() -> CeilingCurve {
    let caches = vec![
        CacheLevel { name: Residency::L2, size: Bytes(2_000_000) },
        CacheLevel { name: Residency::L3, size: Bytes(30_000_000) },
    ];
    CeilingCurve::new(vec![point(1, 100.0, 80.0, 90.0), point(100, 20.0, 10.0, 16.0)], caches).expect("valid")
}

#[test]
fn interpolation_is_logarithmic_and_flat_outside() {
    let at = |mb: u64| curve().ceiling_for(Bytes(mb * 1_000_000), Mix::READ);
    assert!((at(10).rate.gbps() - 60.0).abs() < 1e-9, "halfway in the logarithm");
    assert_eq!(at(1).rate.gbps(), 100.0);
    assert_eq!(at(0).rate.gbps(), 100.0);
    assert_eq!(at(5000).rate.gbps(), 20.0);
    let places: Vec<Residency> = [1, 10, 31].map(|mb| at(mb).residency).to_vec();
    assert_eq!(places, [Residency::L2, Residency::L3, Residency::Dram]);
}

#[test]
fn a_mix_is_a_weighted_time() {
    let big = Bytes(1_000_000_000);
    let rate = |read, write, in_place| {
        let mix = Mix { read: Bytes(read), write: Bytes(write), in_place };
        curve().ceiling_for(big, mix).rate.gbps()
    };
    assert!((rate(5, 5, false) - 10.0).abs() < 1e-9);
    assert!((rate(5, 5, true) - 16.0).abs() < 1e-9);
    assert!((rate(0, 5, false) - 10.0).abs() < 1e-9, "writes alone are judged as a copy");
    // 3 read, 1 written: half the bytes at 20, half at 10 GB/s.
    assert!((rate(3, 1, false) - 40.0 / 3.0).abs() < 1e-9);
}

#[test]
fn a_rate_above_the_ceiling_is_an_error() {
    let ceiling = Ceiling { rate: BytesPerSecond(1e9), residency: Residency::Dram };
    assert_eq!(fraction(Bytes(1030), Nanos(1000), ceiling), Ok(1.03));
    let broken = fraction(Bytes(1031), Nanos(1000), ceiling).expect_err("3.1 % above");
    assert!(matches!(broken, RateError::AboveCeiling { .. }));
    assert_eq!(broken.to_string(), "rate 1.0 GB/s is above 1.03 x the DRAM ceiling 1.0 GB/s");
    assert_eq!(fraction(Bytes(1), Nanos(0), ceiling), Err(RateError::NoTime { bytes: Bytes(1) }));
    let none = Ceiling { rate: BytesPerSecond(0.0), residency: Residency::Dram };
    assert_eq!(fraction(Bytes(1), Nanos(1), none), Err(RateError::NoCeiling { got: 0.0 }));
    assert_eq!(floor_time(Bytes(5000), ceiling), Nanos(5000));
}

#[test]
fn malformed_curves_are_refused_also_from_json() {
    assert_eq!(CeilingCurve::new(vec![], vec![]), Err(CurveError::Empty));
    let twice = vec![point(1, 1.0, 1.0, 1.0), point(1, 1.0, 1.0, 1.0)];
    assert!(matches!(
        CeilingCurve::new(twice, vec![]),
        Err(CurveError::Unsorted { field: "points", index: 1, .. })
    ));
    let zero = vec![point(1, 1.0, 0.0, 1.0)];
    assert!(matches!(CeilingCurve::new(zero, vec![]), Err(CurveError::Rate { field: "copy", .. })));
    let json = serde_json::to_string(&curve()).expect("serialises");
    assert_eq!(serde_json::from_str::<CeilingCurve>(&json).expect("reads back"), curve());
    assert!(serde_json::from_str::<CeilingCurve>(r#"{"points":[],"caches":[]}"#).is_err());
}
