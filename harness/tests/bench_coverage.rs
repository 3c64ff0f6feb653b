//! Every op of every plan has a bench, each bench's kernel is right, and a wrong kernel is found.
use harness::bench::{Bench, Case, Geometry, GeometryError, builtin_geometries, cases, geometry};
use harness::engine::{EngineSize, Plans};
use harness::families::{Model, PlanError};
use harness::recipe::Recipe;
use kernels::buffer::BufId;
use kernels::host::simd::{Simd, Switches};
use kernels::memory::Memory;
use kernels::numeric::NumericClass;
use ledger::Direction;
use std::collections::BTreeSet;

fn simd() -> Simd {
    Simd::detect(&Switches::default())
}

/// Names of the ops of both plans of a geometry in a class, the draft head's among them.
fn planned(g: &Geometry, class: NumericClass, out: &mut BTreeSet<String>) {
    let size = EngineSize { batch: 4, context: 300, threads: 1 };
    match Plans::build(&g.model, &g.manifest, class, size) {
        Ok(plans) => {
            let launches = plans.decode.launches.iter().chain(&plans.prefill.launches);
            out.extend(launches.map(|l| l.op.name()));
            if !g.model.draft_tensors().is_empty() {
                let drafting = Plans::drafting(&g.model, &g.manifest, class, size).unwrap();
                let launches = drafting.decode.launches.iter().chain(&drafting.prefill.launches);
                out.extend(launches.map(|l| l.op.name()));
            }
        }
        Err(PlanError::Unsupported { .. }) => {}
        Err(error) => panic!("{} {class}: {error}", g.name),
    }
}

fn all_cases(batches: &[usize]) -> Vec<Case> {
    let mut seen = BTreeSet::new();
    let mut out = Vec::new();
    for g in builtin_geometries().unwrap() {
        for class in NumericClass::ALL {
            out.extend(cases(&g, class, batches, 300, &mut seen).unwrap());
        }
    }
    out
}

#[test]
fn an_op_of_a_plan_without_a_bench_fails() {
    let mut want = BTreeSet::new();
    for g in builtin_geometries().unwrap() {
        NumericClass::ALL.iter().for_each(|class| planned(&g, *class, &mut want));
    }
    for (name, config, own) in Model::known() {
        for recipe in Recipe::names().chain([own]) {
            let g = match geometry(name, config, &Recipe::builtin(recipe).unwrap()) {
                // Rows that are no whole blocks of the recipe's format: no such plan exists.
                Err(GeometryError::Plan(PlanError::Manifest(_))) => continue,
                other => other.unwrap(),
            };
            NumericClass::ALL.iter().for_each(|class| planned(&g, *class, &mut want));
        }
    }
    let have: BTreeSet<String> = all_cases(&[1, 4]).into_iter().map(|c| c.op).collect();
    let missing: Vec<&String> = want.difference(&have).collect();
    assert!(missing.is_empty(), "ops without a bench: {missing:?}");
    for op in ["delta/step", "delta/chunk", "route", "fold", "conv", "argmax", "linear/q8xq4_k", "embed/q2_k"]
    {
        assert!(have.contains(op), "{op} of {have:?}");
    }
}

#[test]
fn every_bench_finds_its_kernel_right() {
    let mut wrong = Vec::new();
    for case in all_cases(&[1, 3]) {
        let found = Bench::new(&case, 2, simd(), 7).unwrap().check().unwrap();
        let limit = harness::bench::tolerance(&case.launch().op);
        if found.error > limit || found.values == 0 {
            wrong.push(format!(
                "{} {} {} {}: {found:?} > {limit}",
                case.model, case.op, case.shape, case.phase
            ));
        }
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Buffers that the launch writes.
fn written(case: &Case) -> Vec<BufId> {
    let accesses = case.launch().parts.iter().flat_map(|p| &p.accesses);
    accesses.filter(|a| a.direction == Direction::Write).map(|a| a.buf).collect()
}

#[test]
fn a_wrong_kernel_is_found_whatever_buffer_it_spoils() {
    let mut missed = Vec::new();
    let mut seen = BTreeSet::new();
    for case in all_cases(&[3]).into_iter().filter(|c| seen.insert(c.op.clone())) {
        for buf in written(&case) {
            let spoil = |case: &Case, memory: &mut Memory| {
                let bytes = memory.values_mut::<u8>(case.plan.buffer(buf));
                bytes.iter_mut().for_each(|b| *b ^= 0x40);
            };
            let found = Bench::new(&case, 1, simd(), 7).unwrap().check_with(spoil).unwrap();
            if found.error <= harness::bench::tolerance(&case.launch().op) {
                missed.push(format!("{} {}: {found:?}", case.op, case.plan.buffer(buf).name));
            }
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn an_output_two_percent_off_is_found() {
    let cases = all_cases(&[2]);
    for op in ["linear/f32xbf16", "linear/bf16xbf16", "delta/step", "delta/chunk", "conv", "fold"] {
        let case = cases.iter().find(|c| c.op == op).unwrap();
        let off = |case: &Case, memory: &mut Memory| {
            let out = written(case).into_iter().last().unwrap();
            memory.values_mut::<f32>(case.plan.buffer(out)).iter_mut().for_each(|v| *v *= 1.02);
        };
        let found = Bench::new(case, 1, simd(), 7).unwrap().check_with(off).unwrap();
        assert!(found.error > harness::bench::tolerance(&case.launch().op), "{op}: {found:?}");
    }
}
