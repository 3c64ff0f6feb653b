//! The plan checker over both families at tiny and full geometry, and the faults it must find.
mod common;

use common::{BUILTIN, HYBRID, MOE, pack};
use harness::engine::{EngineSize, Plans};
use harness::families::Model;
use harness::manifest::Manifest;
use harness::recipe::Recipe;
use kernels::buffer::{Arena, BufId};
use kernels::check::{PlanFault, check};
use kernels::launch::Op;
use kernels::numeric::NumericClass;
use kernels::plan::Plan;
use ledger::{Amount, StepFacts};
use proptest::prelude::*;
use serde_json::{Value, json};

fn models() -> Vec<(String, Model, Manifest)> {
    let mut out = Vec::new();
    for dir in [HYBRID, MOE, BUILTIN] {
        let (pack, _guard) = pack(dir);
        out.push((dir.to_owned(), pack.header.model, pack.header.manifest));
    }
    for (name, config, recipe) in Model::known() {
        let model = Model::from_config(&serde_json::from_str(config).unwrap()).unwrap();
        let manifest = model.manifest(&Recipe::builtin(recipe).unwrap()).unwrap();
        out.push((name.to_owned(), model, manifest));
    }
    out
}

fn plans(model: &Model, manifest: &Manifest, class: NumericClass, batch: usize) -> Plans {
    let size = EngineSize { batch, context: 2048, threads: 1 };
    Plans::build(model, manifest, class, size).unwrap()
}

fn assert_sound(model: &Model, plan: &Plan, what: &str) {
    let max = model.summary().maximum_facts(&plan.bucket);
    let faults = check(plan, &max);
    assert!(faults.is_empty(), "{what}: {} faults, first {}", faults.len(), faults[0]);
    assert_eq!(plan.nodes(), plan.launches.len() as u64, "{what}");
    let lines = plan.lines();
    for (index, launch) in plan.launches.iter().enumerate() {
        assert!(!launch.parts.is_empty(), "{what}: launch {index} has no account");
        for part in &launch.parts {
            assert!(part.accesses.iter().any(|a| a.amount.at(&max).0 > 0), "{what}: {}", part.name);
        }
        assert!(lines.iter().any(|l| l.launch == index && l.account.at(&max).total().0 > 0), "{what}");
    }
    assert_eq!(lines.len(), plan.launches.iter().map(|l| l.parts.len()).sum::<usize>(), "{what}");
}

fn caches(plan: &Plan) -> Vec<(&str, u64, u64)> {
    let cache = plan.buffers.iter().filter(|b| b.arena == Arena::Cache);
    cache.map(|b| (b.name.as_str(), b.offset, b.bytes)).collect()
}

#[test]
fn every_plan_of_both_families_is_sound() {
    for (name, model, manifest) in models() {
        for class in NumericClass::ALL {
            for batch in [1, 8, 64, 1024] {
                let what = format!("{name} {class} B{batch}");
                let p = plans(&model, &manifest, class, batch);
                assert_sound(&model, &p.decode, &format!("{what} decode"));
                assert_sound(&model, &p.prefill, &format!("{what} prefill"));
                assert!(!caches(&p.decode).is_empty());
                assert_eq!(caches(&p.decode), caches(&p.prefill), "{what}: the plans share one cache");
                // Price of a sequence times slots is what the cache arena holds (2048 tokens are whole pages).
                let priced = model.summary().sequence_price(class, 2048).0 * batch as u64;
                let held: u64 = caches(&p.decode).iter().map(|c| c.2).sum();
                assert_eq!(priced, held, "{what}: admission price and cache bytes");
            }
        }
    }
}

/// Decode plan of the MoE oracle with a fault seeded into it, checked.
fn seeded(change: impl Fn(&mut Plan)) -> Vec<PlanFault> {
    let (pack, _guard) = pack(MOE);
    let (model, manifest) = (&pack.header.model, &pack.header.manifest);
    let mut plan = plans(model, manifest, NumericClass::Int8Act, 8).decode;
    let max: StepFacts = model.summary().maximum_facts(&plan.bucket);
    change(&mut plan);
    check(&plan, &max)
}

fn id(plan: &Plan, name: &str) -> BufId {
    BufId(plan.buffers.iter().position(|b| b.name == name).unwrap() as u32)
}

#[test]
fn an_unchanged_plan_has_no_fault() {
    assert_eq!(seeded(|_| {}), []);
}

#[test]
fn an_aliased_scratch_buffer_is_named() {
    let faults = seeded(|p| {
        let (a, b) = (id(p, "expert_h.1"), id(p, "residual"));
        p.buffers[a.0 as usize].offset = p.buffer(b).offset;
    });
    let named = |f: &PlanFault| {
        matches!(f, PlanFault::Alias { a, b, arena: Arena::Scratch, .. }
            if [a.as_str(), b.as_str()].contains(&"expert_h.1") && [a.as_str(), b.as_str()].contains(&"residual"))
    };
    assert!(faults.iter().any(named), "{faults:?}");
}

#[test]
fn an_aliased_cache_buffer_is_named() {
    let faults = seeded(|p| {
        let (a, b) = (id(p, "k.1"), id(p, "v.0"));
        p.buffers[a.0 as usize].offset = p.buffer(b).offset + 128;
    });
    assert!(faults.iter().any(|f| matches!(f, PlanFault::Alias { arena: Arena::Cache, .. })), "{faults:?}");
}

#[test]
fn a_dropped_producer_is_a_read_before_write() {
    let faults = seeded(|p| {
        let at = p.launches.iter().position(|l| matches!(l.op, Op::Norm(_))).unwrap();
        p.launches.remove(at);
    });
    let named = |f: &PlanFault| matches!(f, PlanFault::ReadBeforeWrite { launch: 1, buffer, .. } if buffer == "normed.1");
    assert!(faults.iter().any(named), "{faults:?}");
}

#[test]
fn launches_out_of_order_are_a_read_before_write() {
    let faults = seeded(|p| {
        let at = p.launches.iter().position(|l| matches!(l.op, Op::Attend(_))).unwrap();
        p.launches.swap(at, at - 1);
    });
    assert!(faults.iter().any(|f| matches!(f, PlanFault::ReadBeforeWrite { .. })), "{faults:?}");
}

#[test]
fn a_buffer_that_is_too_small_is_named() {
    let faults = seeded(|p| {
        let logits = id(p, "logits");
        p.buffers[logits.0 as usize].bytes -= 4;
    });
    let named = |f: &PlanFault| matches!(f, PlanFault::AccountTooLarge { buffer, .. } if buffer == "logits");
    assert!(!faults.is_empty() && faults.iter().all(named), "{faults:?}");
}

#[test]
fn a_buffer_outside_its_arena_is_named() {
    let faults = seeded(|p| {
        let at = id(p, "attended.1");
        p.buffers[at.0 as usize].offset = p.arena_bytes[Arena::Scratch as usize];
    });
    let named = |f: &PlanFault| matches!(f, PlanFault::OutOfArena { buffer, .. } if buffer == "attended.1");
    assert!(faults.iter().any(named), "{faults:?}");
}

#[test]
fn a_dropped_consumer_is_a_dead_write() {
    let faults = seeded(|p| {
        let at = p.launches.iter().position(|l| matches!(l.op, Op::Attend(_))).unwrap();
        p.launches.remove(at + 1);
    });
    let named = |f: &PlanFault| matches!(f, PlanFault::DeadWrite { buffer, .. } if buffer == "attended.1");
    assert!(faults.iter().any(named), "{faults:?}");
}

#[test]
fn a_doubled_account_is_too_large_for_a_full_bucket() {
    let faults = seeded(|p| {
        let access = &mut p.launches.last_mut().unwrap().parts[0].accesses[0];
        access.amount = std::mem::take(&mut access.amount).plus(Amount::fixed(1));
    });
    assert!(matches!(faults[..], [PlanFault::AccountTooLarge { .. }]), "{faults:?}");
}

#[test]
fn a_class_has_one_name_in_recipes_receipts_and_on_the_command_line() {
    for class in NumericClass::ALL {
        assert_eq!(serde_json::to_value(class).unwrap(), json!(class.name()));
        assert_eq!(NumericClass::from_name(class.name()), Some(class));
    }
}

#[test]
fn a_router_with_more_choices_than_the_fold_holds_is_refused() {
    let (_, config, _) = Model::known()[1];
    let mut config: Value = serde_json::from_str(config).unwrap();
    config["num_experts_per_tok"] = json!(65);
    let error = Model::from_config(&config).unwrap_err().to_string();
    assert!(error.contains("num_experts_per_tok") && error.contains("64"), "{error}");
}

/// Paths of all numbers in a configuration.
fn numbers(value: &Value, path: &str, out: &mut Vec<String>) {
    if let Value::Object(map) = value {
        map.iter().for_each(|(k, v)| numbers(v, &format!("{path}/{k}"), out));
    } else if value.is_number() {
        out.push(path.to_owned());
    }
}

const HOSTILE: [u64; 14] = [0, 1, 2, 3, 16, 48, 100, 255, 256, 512, 4096, 1 << 20, 1 << 21, u64::MAX];

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Hostile geometry ends in an error that names a field, or in a plan that the checker accepts.
    #[test]
    fn hostile_geometry_never_panics(
        model in 0usize..2,
        changes in prop::collection::vec((0usize..64, 0usize..HOSTILE.len()), 1..4),
        class in 0usize..3,
        batch in prop::sample::select(vec![1usize, 1024]),
    ) {
        let (_, config, recipe) = Model::known()[model];
        let mut config: Value = serde_json::from_str(config).unwrap();
        let mut paths = Vec::new();
        numbers(&config, "", &mut paths);
        for (field, value) in changes {
            *config.pointer_mut(&paths[field % paths.len()]).unwrap() = json!(HOSTILE[value]);
        }
        let planned = Model::from_config(&config).map_err(|e| e.to_string()).and_then(|m| {
            let manifest = m.manifest(&Recipe::builtin(recipe).unwrap()).map_err(|e| e.to_string())?;
            let size = EngineSize { batch, context: 2048, threads: 1 };
            let plans = Plans::build(&m, &manifest, NumericClass::ALL[class], size).map_err(|e| e.to_string())?;
            Ok((m, plans))
        });
        match planned {
            Ok((m, plans)) => {
                for plan in [&plans.decode, &plans.prefill] {
                    let faults = check(plan, &m.summary().maximum_facts(&plan.bucket));
                    prop_assert!(faults.is_empty(), "{}", faults[0]);
                }
            }
            Err(what) => prop_assert!(!what.is_empty()),
        }
    }
}
