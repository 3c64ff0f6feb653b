//! State folders for the real binary: an empty one, and one that is qualified once for each build of it.
//!
//! A machine shared with other work fails timing clauses. The tests here are about the gate and the server, so
//! the receipts that `qualify` wrote are read back, every clause that is not about time must hold already, and
//! a copy with a quiet series is signed and appended. The product has no such path; this file is test code.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use harness::instruments::machine::Machine;
use receipts::{
    Canary, ClauseName, Closure, Entry, Measured, Policy, Receipt, Run, Signer, Stop, Store, Verdict,
};

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_sparkpipe");

/// Batches that [`Home::qualified`] has receipts for.
pub const BATCHES: [u32; 2] = [1, 8];

/// Clauses that a busy machine may fail. Every other one must hold as `qualify` wrote it.
const TIMING: [ClauseName; 5] = [
    ClauseName::Unexplained,
    ClauseName::Samples,
    ClauseName::StopCondition,
    ClauseName::Canary,
    ClauseName::FractionFloor,
];

/// What a finished command left.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// A throw-away state folder.
pub struct Home(tempfile::TempDir);

impl Home {
    pub fn empty() -> Self {
        Home(tempfile::tempdir().expect("a temporary folder"))
    }

    /// A copy of the folder that holds passing receipts of [`BATCHES`] for exactly this binary and machine.
    pub fn qualified() -> Self {
        Self::qualified_for("builtin", &[], &BATCHES)
    }

    /// The same for the model that `args` of `qualify` name; `key` names the folder.
    pub fn qualified_for(key: &str, args: &[&str], batches: &[u32]) -> Self {
        let home = Home::empty();
        copy(&qualified_once(key, args, batches), home.path());
        home
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn file(&self, name: &str) -> String {
        self.path().join(name).to_string_lossy().into_owned()
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        ran(command(BINARY, self.path()).args(args).output())
    }

    /// Runs what must be refused: exit code 1, one line that holds every word of `says`.
    pub fn refused(&self, args: &[&str], says: &[&str]) {
        self.refused_by(BINARY, args, says);
    }

    pub fn refused_by(&self, binary: &str, args: &[&str], says: &[&str]) {
        let ran = ran(command(binary, self.path()).args(args).output());
        let (out, err) = (&ran.out, &ran.err);
        assert_eq!(ran.code, Some(1), "{args:?}\n{out}\n{err}");
        assert!(!out.contains("listening"), "{args:?}: {out}");
        for word in says {
            assert!(err.contains(word), "{args:?}: `{word}` is not in: {err}");
        }
        assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    }
}

/// `binary` with its state in `home`.
pub fn command(binary: &str, home: &Path) -> Command {
    let mut command = Command::new(binary);
    command.env("SPARKPIPE_HOME", home).stdin(std::process::Stdio::null());
    command
}

fn ran(output: std::io::Result<Output>) -> Ran {
    let output = output.expect("the binary starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a new folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("a copy");
        }
    }
}

/// Made once for each build, also when every test is a process of its own.
fn qualified_once(key: &str, args: &[&str], batches: &[u32]) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let lock = File::create(root.join(format!("real-{key}.lock"))).expect("a lock file");
    lock.lock().expect("a lock");
    let machine = Machine::read();
    let build = receipts::hash_file(Path::new(BINARY)).expect("the binary is there");
    let hash = harness::pack::hash(format!("{build} {} {}", machine.cpu, machine.threads).as_bytes());
    let prefix = format!("real-{key}-");
    let home = root.join(format!("{prefix}{}", &hash[..16]));
    if home.join("ready").exists() {
        return home;
    }
    for entry in fs::read_dir(&root).expect("a folder").flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            fs::remove_dir_all(entry.path()).expect("an old build's folder goes");
        }
    }
    let asked = batches.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let have = qualify(&home, &[args, &["--batch", &asked]].concat());
    assert_eq!(have, batches.iter().copied().collect());
    fs::write(home.join("ready"), "").expect("writable");
    home
}

/// Qualifies, and returns the batches that now have a passing receipt.
fn qualify(home: &Path, args: &[&str]) -> BTreeSet<u32> {
    let ran = ran(command(BINARY, home).arg("qualify").args(args).output());
    assert!(matches!(ran.code, Some(0 | 1)), "{}\n{}", ran.out, ran.err);
    let mut store = Store::open(&home.join("receipts"));
    let signer = Signer::open_or_create(&home.join("keys")).expect("the key that qualify made");
    let written = steps(&store);
    for receipt in &written {
        store.append(Entry::Step(quieted(receipt.clone())), &signer).expect("appended");
    }
    written.iter().map(|r| r.tuple.batch).collect()
}

/// The step receipts of a store, in order.
pub fn steps(store: &Store) -> Vec<Receipt> {
    let records = store.list().expect("a sound store");
    records.iter().filter_map(|r| r.entry().step().cloned()).collect()
}

/// `receipt` with its timing, and nothing else, replaced by a quiet series at half the ceiling.
pub fn quieted(mut receipt: Receipt) -> Receipt {
    if let Some(Verdict::Fail { clauses }) = &receipt.verdict {
        let other: Vec<_> = clauses.iter().filter(|c| !TIMING.contains(&c.name)).collect();
        assert!(other.is_empty(), "a clause that no noise explains: {other:?}");
    }
    let was = receipt.measured.take().expect("a measured cell");
    let step = u64::try_from(
        u128::from(was.bytes_per_step) * 2_000_000_000 / u128::from(was.ceiling_bytes_per_second),
    )
    .expect("a step of less than 500 years");
    let run = Run {
        // A busy machine may have left fewer samples than a verdict needs.
        series_ns: vec![step; was.series_ns.len().max(10)],
        warmup_ns: was.warmup_ns,
        stop: Stop { met: true, reason: "replaced by a quiet series in a test".into() },
        discarded_samples: was.discarded_samples,
        batch: receipt.tuple.batch,
        launches: was.launches,
        graph_nodes: was.graph_nodes,
        bytes_per_step: was.bytes_per_step,
        working_set_bytes: was.working_set_bytes,
        ceiling_bytes_per_second: was.ceiling_bytes_per_second,
        residency: was.residency,
    };
    receipt.measured = Measured::from_run(run);
    let mut closure = receipt.closure.take().expect("a closed cell");
    let all: u64 = closure.lines.iter().map(|l| l.ns).sum::<u64>().max(1);
    for line in &mut closure.lines {
        line.ns = u64::try_from(u128::from(line.ns) * u128::from(step) / u128::from(all)).expect("a part");
    }
    receipt.closure = Closure::close(step, closure.lines, 0, 0);
    let canary = receipt.canary.expect("a canary").before_ns;
    receipt.canary = Canary::new(canary, canary);
    receipt.warnings.push("timing replaced by a test".into());
    let judged = receipt.judged(&Policy::embedded());
    assert_eq!(judged.verdict, Some(Verdict::Pass));
    judged
}
