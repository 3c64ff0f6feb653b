//! One good receipt, and for every clause the change that fails it by that clause alone.

use super::*;
use crate::measured::*;
use crate::schema::MemoryLine;
use crate::testkit::{good, run};

type Change = fn(&mut Receipt);

fn judge(receipt: &Receipt) -> Verdict {
    verdict(receipt, &Policy::embedded())
}

/// Asserts that `break_it` turns the good receipt into `fail` by `name` and by nothing else.
fn alone(name: ClauseName, break_it: impl FnOnce(&mut Receipt)) -> String {
    let mut receipt = good();
    assert_eq!(judge(&receipt), Verdict::Pass);
    break_it(&mut receipt);
    match judge(&receipt) {
        Verdict::Fail { clauses } => {
            let names: Vec<ClauseName> = clauses.iter().map(|c| c.name).collect();
            assert_eq!(names, [name], "{clauses:?}");
            clauses[0].detail.clone()
        }
        other => panic!("{name}: {other}"),
    }
}

/// Re-derives measured and closure from a changed run, as the harness would.
fn rerun(receipt: &mut Receipt, change: impl FnOnce(&mut Run)) {
    let mut run = run();
    change(&mut run);
    let measured = Measured::from_run(run).unwrap();
    let lines =
        vec![ClosureLine { name: "linear".into(), count: 119, ns: measured.step_ns, bytes: 4_000_000 }];
    receipt.closure = Closure::close(measured.step_ns, lines, 0, 0);
    receipt.measured = Some(measured);
}

#[test]
fn kind_measured_alone() {
    for kind in [Kind::Synthetic, Kind::Simulated, Kind::Estimated] {
        let detail = alone(ClauseName::KindMeasured, |r| r.kind = kind);
        assert!(detail.contains(kind.as_str()));
    }
}

#[test]
fn each_missing_section_alone() {
    let sections =
        ["ceilings", "planned", "measured", "closure", "correctness", "canary", "counters", "fill", "limits"];
    for section in sections {
        let detail = alone(ClauseName::NoFieldMissing, |r| {
            let mut value = serde_json::to_value(&*r).unwrap();
            value[section] = serde_json::Value::Null;
            *r = serde_json::from_value(value).unwrap();
        });
        assert!(detail.contains(section), "{section}: {detail}");
    }
}

#[test]
fn each_missing_field_alone() {
    let cases: [(&str, Change); 12] = [
        ("correctness.oracle", |r| r.correctness.as_mut().unwrap().oracle = None),
        ("correctness.batch_invariant", |r| r.correctness.as_mut().unwrap().batch_invariant = None),
        ("correctness.tokens", |r| r.correctness.as_mut().unwrap().tokens = 0),
        ("measured.relative_stdev_ppm", |r| r.measured.as_mut().unwrap().relative_stdev_ppm = None),
        ("measured.series_ns", |r| r.measured.as_mut().unwrap().series_ns.clear()),
        ("admission.executable", |r| r.admission.executable.clear()),
        ("evidence.compiler", |r| r.evidence.compiler.clear()),
        ("device.threads", |r| r.device.threads = 0),
        ("created", |r| r.created.clear()),
        ("tuple", |r| r.tuple.recipe.clear()),
        ("schema_version", |r| r.schema_version += 1),
        ("limits", |r| r.limits.as_mut().unwrap().total_bytes = 0),
    ];
    for (field, change) in cases {
        let detail = alone(ClauseName::NoFieldMissing, change);
        assert!(detail.contains(field), "{field}: {detail}");
    }
}

#[test]
fn oracle_parity_alone() {
    let oracle =
        |r: &mut Receipt, f: fn(&mut Oracle)| f(r.correctness.as_mut().unwrap().oracle.as_mut().unwrap());
    alone(ClauseName::OracleParity, |r| oracle(r, |o| o.max_abs_nano = 500_000_001));
    alone(ClauseName::OracleParity, |r| oracle(r, |o| o.tolerance_nano = 1));
    // A run may not widen its own tolerance beyond the policy's.
    alone(ClauseName::OracleParity, |r| {
        oracle(r, |o| (o.max_abs_nano, o.tolerance_nano) = (600_000_000, u64::MAX));
    });
    alone(ClauseName::OracleParity, |r| {
        r.tuple.numeric_class = "f32".into();
        oracle(r, |o| (o.max_abs_nano, o.greedy_equal) = (10, false));
    });
    alone(ClauseName::OracleParity, |r| r.tuple.numeric_class = "unheard-of".into());
}

#[test]
fn timed_tokens_alone() {
    alone(ClauseName::TimedTokens, |r| r.correctness.as_mut().unwrap().timed_tokens_hash = "bb".into());
    alone(ClauseName::TimedTokens, |r| r.correctness.as_mut().unwrap().poisoned = false);
}

#[test]
fn launches_alone() {
    alone(ClauseName::Launches, |r| r.measured.as_mut().unwrap().launches = 119);
    alone(ClauseName::Launches, |r| r.planned.as_mut().unwrap().graph_nodes = 121);
}

#[test]
fn bytes_alone() {
    let counters = |r: &mut Receipt, f: fn(&mut Counters)| f(r.counters.as_mut().unwrap());
    alone(ClauseName::Bytes, |r| counters(r, |c| c.counted.as_mut().unwrap().read_bytes += 1));
    alone(ClauseName::Bytes, |r| counters(r, |c| c.counted.as_mut().unwrap().write_bytes -= 1));
    alone(ClauseName::Bytes, |r| counters(r, |c| c.counted = None));
    alone(ClauseName::Bytes, |r| counters(r, |c| (c.kind, c.counted) = (CounterKind::None, None)));
    alone(ClauseName::Bytes, |r| counters(r, |c| c.planned.write_bytes = 0));
}

#[test]
fn a_tolerance_above_zero_is_inclusive() {
    let mut policy = Policy::embedded();
    policy.device.get_mut("host").unwrap().bytes_tolerance_ppm = 10_000;
    let mut receipt = good();
    receipt.counters.as_mut().unwrap().counted.as_mut().unwrap().read_bytes = 3_939_000;
    assert_eq!(verdict(&receipt, &policy), Verdict::Pass);
    receipt.counters.as_mut().unwrap().counted.as_mut().unwrap().read_bytes += 1;
    assert_eq!(verdict(&receipt, &policy).word(), "fail");
}

#[test]
fn unexplained_alone() {
    let close = |r: &mut Receipt, ns: u64| {
        let step = r.measured.as_ref().unwrap().step_ns;
        let line = ClosureLine { name: "linear".into(), count: 119, ns, bytes: 1 };
        r.closure = Closure::close(step, vec![line], 0, 0);
    };
    alone(ClauseName::Unexplained, |r| close(r, 900_000));
    alone(ClauseName::Unexplained, |r| close(r, 1_200_000)); // negative residual counts as well
    alone(ClauseName::Unexplained, |r| r.closure.as_mut().unwrap().unexplained_ns = 0);
    alone(ClauseName::Unexplained, |r| {
        let lines = r.closure.as_ref().unwrap().lines.clone();
        r.closure = Closure::close(950_000, lines, 0, 0); // closes another step than the one measured
    });
}

#[test]
fn samples_and_stop_alone() {
    alone(ClauseName::Samples, |r| rerun(r, |run| run.series_ns.truncate(9)));
    alone(ClauseName::Samples, |r| r.measured.as_mut().unwrap().relative_stdev_ppm = Some(0));
    alone(ClauseName::StopCondition, |r| r.measured.as_mut().unwrap().stop.met = false);
}

#[test]
fn canary_alone() {
    alone(ClauseName::Canary, |r| r.canary = Canary::new(100_000, 125_001));
    alone(ClauseName::Canary, |r| r.canary = Canary::new(100_000, 74_999));
    alone(ClauseName::Canary, |r| r.canary.as_mut().unwrap().moved_ppm = 0);
}

#[test]
fn rate_above_ceiling_alone() {
    let detail = alone(ClauseName::RateAboveCeiling, |r| rerun(r, |run| run.bytes_per_step = 10_400_000));
    assert!(detail.contains("1030000"), "{detail}");
    let mut receipt = good();
    rerun(&mut receipt, |run| run.bytes_per_step = 10_200_000);
    assert_eq!(judge(&receipt), Verdict::Pass, "within 3 % above the ceiling is measurement error");
}

#[test]
fn fraction_floor_alone() {
    alone(ClauseName::FractionFloor, |r| rerun(r, |run| run.bytes_per_step = 400_000));
    alone(ClauseName::FractionFloor, |r| r.measured.as_mut().unwrap().fraction_ppm = 900_000);
    alone(ClauseName::FractionFloor, |r| rerun(r, |run| run.ceiling_bytes_per_second = 7_000_000_000));
    alone(ClauseName::FractionFloor, |r| r.admission.device_class = "another".into());
}

#[test]
fn within_noise_of_the_floor_is_ambiguous_and_does_not_admit() {
    for bytes in [495_000, 520_000] {
        let mut receipt = good();
        rerun(&mut receipt, |run| {
            run.bytes_per_step = bytes;
            run.series_ns = (0..10).map(|i| 800_000 + i * 50_000).collect();
        });
        let verdict = judge(&receipt);
        assert!(matches!(&verdict, Verdict::Ambiguous { why } if why.contains("50000")), "{verdict}");
        assert!(!verdict.admits());
    }
}

#[test]
fn infeasible_needs_arithmetic_that_does_not_fit() {
    let mut receipt = good();
    let needs =
        vec![MemoryLine { name: "weights".into(), bytes: 900 }, MemoryLine { name: "kv".into(), bytes: 200 }];
    receipt.infeasible = Some(Infeasible { needs, available_bytes: 1000 });
    let text = judge(&receipt).to_string();
    assert_eq!(text, "refused-infeasible: weights 900 + kv 200 = 1100 B > 1000 B available");
    receipt.infeasible.as_mut().unwrap().available_bytes = 1100;
    assert_eq!(judge(&receipt).word(), "fail");
}

#[test]
fn the_stored_verdict_does_not_count() {
    let mut receipt = good().judged(&Policy::embedded());
    assert_eq!(receipt.verdict, Some(Verdict::Pass));
    receipt.measured.as_mut().unwrap().stop.met = false;
    assert_eq!(judge(&receipt).word(), "fail");
}
