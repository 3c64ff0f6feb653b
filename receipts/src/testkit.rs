//! Test-only: one receipt that passes, from which each test breaks one thing.

use std::collections::BTreeMap;

use crate::identity::{AdmissionIdentity, EvidenceIdentity};
use crate::measured::*;
use crate::policy::Policy;
use crate::schema::*;
use crate::tuple::TupleKey;

pub fn admission() -> AdmissionIdentity {
    AdmissionIdentity {
        executable: "e0".repeat(32),
        cubins: "none".into(),
        driver: "none".into(),
        device_class: "host".into(),
        device_name: "Test CPU".into(),
        pack: "ac".repeat(32),
        recipe: "5e".repeat(32),
        topology: "70".repeat(32),
        policy: Policy::embedded().hash(),
        switches: BTreeMap::from([("SPARKPIPE_DISABLE_VNNI".to_owned(), "0".to_owned())]),
    }
}

pub fn evidence() -> EvidenceIdentity {
    EvidenceIdentity { sources: "50".repeat(32), lockfile: "10".repeat(32), compiler: "rustc 1.95.0".into() }
}

/// Ten samples around 1 ms moving 4 MB: 4 GB/s of 10 GB/s.
pub fn run() -> Run {
    Run {
        series_ns: (0..10).map(|i| 1_000_000 + (i % 5) * 1000).collect(),
        warmup_ns: vec![1_500_000, 1_100_000],
        stop: Stop { met: true, reason: "relative standard deviation at most 0.5 %".into() },
        discarded_samples: 0,
        batch: 8,
        launches: 120,
        graph_nodes: 120,
        bytes_per_step: 4_000_000,
        working_set_bytes: 18_000_000,
        ceiling_bytes_per_second: 10_000_000_000,
        residency: Residency::Dram,
    }
}

/// An unjudged receipt that passes under the embedded policy.
pub fn good() -> Receipt {
    let measured = Measured::from_run(run()).unwrap();
    let line = ClosureLine { name: "linear".into(), count: 119, ns: 950_000, bytes: 4_000_000 };
    let moved = ReadWrite { read_bytes: 3_900_000, write_bytes: 100_000 };
    let point = CeilingPoint {
        working_set_bytes: 64 << 20,
        read_bytes_per_second: 10_000_000_000,
        copy_bytes_per_second: 9_000_000_000,
        update_bytes_per_second: 8_000_000_000,
    };
    Receipt {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Measured,
        tuple: TupleKey::local("whatis-9m", "bf16", "bf16", 2048, 8),
        admission: admission(),
        evidence: evidence(),
        device: DeviceFacts {
            cpu_model: "Test CPU".into(),
            threads: 2,
            memory_bytes: 8 << 30,
            last_cache_bytes: Some(32 << 20),
            clock_mhz: None,
            memory_clock_mhz: None,
            temperature_celsius: None,
            power_milliwatts: None,
            throttle_bits: None,
        },
        ceilings: Some(Ceilings { points: vec![point], launch_ns: 300, datasheet_bytes_per_second: None }),
        planned: Some(Planned {
            launches: 120,
            graph_nodes: 120,
            bytes: BTreeMap::from([("weight".to_owned(), ClassBytes::default())]),
        }),
        closure: Closure::close(measured.step_ns, vec![line], 36_000, 0),
        measured: Some(measured),
        correctness: Some(Correctness {
            oracle: Some(Oracle {
                scope: OracleScope::Model,
                name: "transformers".into(),
                max_abs_nano: 20_000_000,
                tolerance_nano: 500_000_000,
                greedy_equal: true,
            }),
            timed_tokens_hash: "aa".repeat(32),
            reference_tokens_hash: "aa".repeat(32),
            tokens: 96,
            batch_invariant: Some(true),
            poisoned: true,
        }),
        canary: Canary::new(100_000, 101_000),
        counters: Some(Counters { kind: CounterKind::Touched, planned: moved, counted: Some(moved) }),
        fill: Some(Fill {
            prefix_tokens: 2000,
            suffix_tokens: 36,
            distinct_rows: 8,
            distinct_experts: vec![],
        }),
        limits: Some(Limits { batch: 8, context: 2048, sequence_bytes: 1 << 20, total_bytes: 64 << 20 }),
        infeasible: None,
        rests_on: vec![],
        rests_on_absent: vec![],
        warnings: vec![],
        verdict: None,
        created: "2026-11-30T08:00:00Z".into(),
    }
}

pub fn kernel() -> KernelReceipt {
    KernelReceipt {
        schema_version: SCHEMA_VERSION,
        kind: Kind::Measured,
        op: "linear".into(),
        shape: "k 256 n 1024".into(),
        format: "bf16".into(),
        numeric_class: "bf16".into(),
        batch: 8,
        device_class: "host".into(),
        device_name: "Test CPU".into(),
        executable: "e0".repeat(32),
        evidence: evidence(),
        series_ns: vec![100; 10],
        median_ns: 100,
        bytes: 524_288,
        launches: 1,
        ceiling_bytes_per_second: 10_000_000_000,
        fraction_ppm: 500_000,
        error_nano: 12,
        warnings: vec![],
        created: "2026-11-30T08:00:00Z".into(),
    }
}
