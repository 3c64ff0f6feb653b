//! Every kernel of every plan binds and compiles for three targets; registers and shared memory are a golden file.
//!
//! Binding needs nothing. Compiling needs NVRTC 13.0 (`SPARKPIPE_NVRTC` names its folder; `.ci/run nvrtc` installs
//! it); where it is absent the test says SKIP and how many kernels it left uncompiled. `SPARKPIPE_BLESS=1` renews
//! what moved in the golden file; `CI_FULL=1` compiles everything in place of what moved and an eighth chosen by the
//! commit.
mod common;

use common::{BUILTIN, HYBRID, MOE, pack};
use harness::engine::{EngineSize, Plans};
use harness::families::Model;
use harness::manifest::Manifest;
use harness::recipe::Recipe;
use kernels::cuda::bound::Bound;
use kernels::cuda::call::Target;
use kernels::cuda::nvrtc::Nvrtc;
use kernels::cuda::unit::{Unit, UnitKey, units};
use kernels::numeric::NumericClass;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The compiler that the golden file was made with.
const COMPILER: (u32, u32) = (13, 0);
const HEAD: &str = "target,source,defines,entry,hash,registers,shared,spills";

fn golden_path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/cubins.csv")
}

/// Full geometries with the contexts that are measured, tiny ones with one.
fn models() -> Vec<(String, Model, Manifest, &'static [usize])> {
    let mut out = Vec::new();
    for dir in [HYBRID, MOE, BUILTIN] {
        let (pack, _guard) = pack(dir);
        out.push((dir.to_owned(), pack.header.model, pack.header.manifest, &[512][..]));
    }
    for (name, config, recipe) in Model::known() {
        let model = Model::from_config(&serde_json::from_str(config).unwrap()).unwrap();
        let manifest = model.manifest_with_draft(&Recipe::builtin(recipe).unwrap()).unwrap();
        out.push((name.to_owned(), model, manifest, &[2048, 16_384, 65_536]));
    }
    out
}

/// Binds every plan for `target`. Returns the distinct units, and what did not bind.
fn bound(target: &Target, errors: &mut Vec<String>) -> Vec<Unit> {
    let mut found: BTreeMap<UnitKey, Unit> = BTreeMap::new();
    let mut take = |plan: &mut kernels::plan::Plan, what: &str| {
        let made = match Bound::of(plan, target) {
            Ok(made) => made,
            Err(error) => return errors.push(format!("{what} on {}: {error}", target.sm)),
        };
        assert_eq!(plan.nodes(), made.calls.len() as u64, "{what}: nodes are the calls");
        for unit in units(made.calls.iter().map(|(_, call)| call)) {
            found.entry(unit.key()).or_insert(unit);
        }
    };
    for (name, model, manifest, contexts) in models() {
        for context in contexts {
            for batch in (0..=10).map(|b| 1usize << b) {
                let size = EngineSize { batch, context: *context, threads: 1 };
                let what = format!("{name} B{batch} context {context}");
                let mut plans = Plans::build(&model, &manifest, NumericClass::Bf16, size).unwrap();
                take(&mut plans.decode, &format!("{what} decode"));
                take(&mut plans.prefill, &format!("{what} prefill"));
                if !model.draft_tensors().is_empty() && batch <= 8 {
                    let mut plans = Plans::drafting(&model, &manifest, NumericClass::Bf16, size).unwrap();
                    take(&mut plans.decode, &format!("{what} drafting decode"));
                    take(&mut plans.prefill, &format!("{what} drafting prefill"));
                }
            }
        }
    }
    found.into_values().collect()
}

/// One compile: a unit for a target, its hash, and the lines the golden file holds for it.
struct Job {
    unit: Unit,
    sm: &'static str,
    hash: String,
}

impl Job {
    fn key(&self) -> String {
        // A list among the defines has commas of its own.
        let defines = self.unit.defines_text().replace(',', ";");
        format!("{},{},{defines}", self.sm, self.unit.source.name)
    }

    fn compile(&self, nvrtc: Nvrtc) -> Result<Vec<String>, String> {
        let compiled = nvrtc.compile(&self.unit, self.sm).map_err(|e| e.to_string())?;
        if compiled.cubin.is_empty() || compiled.report.is_empty() {
            return Err(format!("{}: no cubin or no entry", self.key()));
        }
        if let Some(e) = compiled.report.iter().find(|e| e.spills > 0 || e.stack > 0) {
            return Err(format!("{} {}: {} B stack, {} B spilled", self.key(), e.entry, e.stack, e.spills));
        }
        let line = |e: &kernels::cuda::nvrtc::EntryReport| {
            let (key, hash) = (self.key(), &self.hash);
            format!("{key},{},{hash},{},{},{}", e.entry, e.registers, e.shared, e.spills)
        };
        Ok(compiled.report.iter().map(line).collect())
    }
}

/// The golden lines by key `target,source,defines`.
fn golden() -> BTreeMap<String, Vec<String>> {
    let mut out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let text = std::fs::read_to_string(golden_path()).unwrap_or_default();
    for line in text.lines().skip(1) {
        let key = line.splitn(4, ',').take(3).collect::<Vec<_>>().join(",");
        out.entry(key).or_default().push(line.to_owned());
    }
    out
}

fn jobs(errors: &mut Vec<String>) -> Vec<Job> {
    let name = format!("NVRTC {}.{}", COMPILER.0, COMPILER.1);
    let mut out = Vec::new();
    for target in Target::ALL {
        for unit in bound(&target, errors) {
            let hash = unit.hash(target.sm, &name);
            out.push(Job { unit, sm: target.sm, hash });
        }
    }
    out
}

/// Compiles `jobs` on all processors; results in their order.
fn compile_all(nvrtc: Nvrtc, jobs: &[&Job]) -> Vec<Result<Vec<String>, String>> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(i) else { break };
                    let result = job.compile(nvrtc);
                    done.lock().unwrap().insert(i, result);
                }
            });
        }
    });
    done.into_inner().unwrap().into_values().collect()
}

/// Whether the commit's eighth holds this hash.
fn in_the_eighth(hash: &str) -> bool {
    let seed = std::env::var("CI_COMMIT").unwrap_or_default();
    let sum =
        hash.bytes().chain(seed.bytes()).fold(7u32, |h, b| h.wrapping_mul(31).wrapping_add(u32::from(b)));
    sum % 8 == 0
}

#[test]
fn every_kernel_of_every_plan_compiles_for_three_targets_within_its_resources() {
    let mut unbound = Vec::new();
    let jobs = jobs(&mut unbound);
    let golden = golden();
    let on = |name: &str| std::env::var(name).is_ok_and(|v| v == "1");
    let (bless, full) = (on("SPARKPIPE_BLESS"), on("CI_FULL"));
    let Ok(nvrtc) = Nvrtc::load() else {
        assert!(unbound.is_empty(), "{} plans did not bind: {:#?}", unbound.len(), &unbound[..1]);
        assert!(!bless, "blessing needs NVRTC");
        println!("SKIP: NVRTC is absent, {} kernel units were bound and left uncompiled", jobs.len());
        return;
    };
    if nvrtc.version != COMPILER {
        println!("SKIP: {} is not the compiler of the golden file, {} units left", nvrtc.name(), jobs.len());
        return;
    }
    let moved =
        |job: &Job| golden.get(&job.key()).is_none_or(|lines| lines.iter().any(|l| !l.contains(&job.hash)));
    let wanted: Vec<&Job> =
        jobs.iter().filter(|j| full || moved(j) || (!bless && in_the_eighth(&j.hash))).collect();
    let results = compile_all(nvrtc, &wanted);
    let errors: Vec<&String> = results.iter().filter_map(|r| r.as_ref().err()).collect();
    println!("{} of {} units failed", errors.len(), wanted.len());
    assert!(errors.is_empty(), "{} of {} units:\n{:#?}", errors.len(), wanted.len(), errors);
    assert!(unbound.is_empty(), "{} plans did not bind, the first: {}", unbound.len(), unbound[0]);
    println!("{} of {} units compiled for {} targets", wanted.len(), jobs.len(), Target::ALL.len());
    if bless {
        let made: std::collections::BTreeSet<String> = wanted.iter().map(|j| j.key()).collect();
        let kept = jobs.iter().map(Job::key).filter(|key| !made.contains(key));
        let mut lines: Vec<String> = kept.flat_map(|key| golden[&key].clone()).collect();
        lines.extend(results.into_iter().flat_map(Result::unwrap));
        lines.sort();
        std::fs::write(golden_path(), format!("{HEAD}\n{}\n", lines.join("\n"))).unwrap();
        return;
    }
    let keys: std::collections::BTreeSet<String> = jobs.iter().map(Job::key).collect();
    let stale: Vec<&String> = golden.keys().filter(|k| !keys.contains(*k)).collect();
    assert!(stale.is_empty(), "golden lines of no unit: {stale:#?}; SPARKPIPE_BLESS=1 rewrites them");
    for (job, lines) in wanted.iter().zip(results) {
        let (mut have, mut want) = (lines.unwrap(), golden.get(&job.key()).cloned().unwrap_or_default());
        have.sort();
        want.sort();
        assert_eq!(have, want, "{}: SPARKPIPE_BLESS=1 rewrites the golden file", job.key());
    }
}
