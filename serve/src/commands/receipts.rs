//! `receipts`: reads the store; nothing here writes to it.
use super::state::StateDir;
use super::{Exit, print, print_json};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use receipts::{Entry, EvidenceIdentity, Record, Store, diff, json_schema, write_csv};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Lists, shows, verifies, exports and compares receipts.
#[derive(Args, Debug)]
pub struct ReceiptsArgs {
    /// Folder of the store; the state folder's where none is given.
    #[arg(long, global = true)]
    pub store: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with receipts.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// All receipts, oldest first, each current for this build's sources or stale by the field named.
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// One receipt in full, as JSON.
    Show {
        /// Its id, or the start of it.
        id: String,
        /// Output is JSON either way.
        #[arg(long)]
        json: bool,
    },
    /// Checks every line, link, digest and signature.
    Verify {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Writes the step receipts as a table.
    Export {
        /// As CSV: the one form there is.
        #[arg(long)]
        csv: bool,
        /// Writes to a file in place of standard output.
        #[arg(short, long)]
        output: Option<PathBuf>,
    },
    /// Every field in which two receipts differ; exit code 1 where there is one.
    Diff {
        /// First id, or the start of it.
        a: String,
        /// Second id, or the start of it.
        b: String,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// The JSON Schema of a receipt.
    Schema,
}

/// Whether a receipt's evidence is that of this build: its kernels, ledger, harness, dependencies and compiler.
fn age(record: &Record, build: &EvidenceIdentity) -> String {
    let evidence = match record.entry() {
        Entry::Step(r) => &r.evidence,
        Entry::Kernel(k) => &k.evidence,
    };
    evidence.first_difference(build).map_or_else(|| "current".into(), |d| format!("stale ({})", d.field))
}

/// What a list shows of a receipt.
fn facts(record: &Record) -> Value {
    let evidence = age(record, &harness::qualify::evidence());
    let created = record.entry().created();
    let common = json!({"id": record.id, "index": record.index, "created": created, "evidence": evidence});
    let own = match record.entry() {
        Entry::Step(r) => json!({
            "entry": "step",
            "kind": r.kind.as_str(),
            "verdict": r.verdict.as_ref().map(|v| v.word()),
            "tuple": r.tuple,
            "tuple_id": r.tuple.id(),
            "device_class": r.admission.device_class,
        }),
        Entry::Kernel(k) => json!({"entry": "kernel", "receipt": k}),
    };
    let mut all = common;
    if let (Some(all), Some(own)) = (all.as_object_mut(), own.as_object()) {
        all.extend(own.clone());
    }
    all
}

fn line(record: &Record) -> String {
    let (id, created) = (record.short_id(), record.entry().created());
    let age = age(record, &harness::qualify::evidence());
    match record.entry() {
        Entry::Step(r) => {
            let t = &r.tuple;
            let verdict = r.verdict.as_ref().map_or("-", |v| v.word());
            format!(
                "{id}  {created}  {verdict:<10} {} {} {} context {} batch {} {} on {}, {age}\n",
                t.model, t.recipe, t.numeric_class, t.context, t.batch, t.transport, r.admission.device_class
            )
        }
        Entry::Kernel(_) => format!("{id}  {created}  kernel, {age}\n"),
    }
}

fn verify(store: &Store, json: bool) -> Result<Exit> {
    let report = store.verify()?;
    if json {
        let findings: Vec<Value> = report
            .findings
            .iter()
            .map(|f| json!({"index": f.index, "id": f.id, "field": f.field, "what": f.what}))
            .collect();
        let (sound, receipts, torn) = (report.is_sound(), report.receipts, report.torn_bytes);
        print_json(&json!({"sound": sound, "receipts": receipts, "torn_bytes": torn, "findings": findings}))?;
    } else {
        let mut out: String = report.findings.iter().map(|f| format!("{f}\n")).collect();
        out += &match report.is_sound() {
            true => format!("{} receipts, all hold\n", report.receipts),
            false => format!("{} receipts, {} findings\n", report.receipts, report.findings.len()),
        };
        if report.torn_bytes > 0 {
            out += &format!("{} bytes of an append that was never acknowledged\n", report.torn_bytes);
        }
        print(&out)?;
    }
    Ok(Exit::holds(report.is_sound()))
}

fn compare(store: &Store, a: &str, b: &str, json: bool) -> Result<Exit> {
    let (a, b) = (store.find(a)?, store.find(b)?);
    let differences = diff(a.entry(), b.entry())?;
    if json {
        let all: Vec<Value> =
            differences.iter().map(|d| json!({"field": d.field, "left": d.left, "right": d.right})).collect();
        print_json(&json!({"left": a.id, "right": b.id, "differences": all}))?;
    } else {
        let side = |v: &Option<String>| v.clone().unwrap_or_else(|| "absent".into());
        let rows: String = differences
            .iter()
            .map(|d| format!("{}: {} -> {}\n", d.field, side(&d.left), side(&d.right)))
            .collect();
        print(&if rows.is_empty() { "no difference\n".into() } else { rows })?;
    }
    Ok(Exit::holds(differences.is_empty()))
}

/// Runs the command.
pub fn run(args: &ReceiptsArgs) -> Result<Exit> {
    let dir = match &args.store {
        Some(dir) if !dir.is_dir() => bail!("{}: no such folder", dir.display()),
        Some(dir) => dir.clone(),
        None => StateDir::from_env()?.receipts(),
    };
    let store = Store::open(&dir);
    match &args.action {
        Action::List { json: true } => print_json(&store.list()?.iter().map(facts).collect::<Vec<_>>())?,
        Action::List { json: false } => {
            let lines: String = store.list()?.iter().map(line).collect();
            print(&if lines.is_empty() { format!("no receipts in {}\n", dir.display()) } else { lines })?;
        }
        Action::Show { id, .. } => {
            let r = store.find(id)?;
            print_json(&json!({"id": r.id, "index": r.index, "entry": r.entry(), "seal": r.sealed.seal}))?;
        }
        Action::Verify { json } => return verify(&store, *json),
        Action::Export { output, .. } => {
            let mut csv = Vec::new();
            write_csv(&store.list()?, &mut csv)?;
            match output {
                Some(path) => std::fs::write(path, csv).with_context(|| path.display().to_string())?,
                None => print(&String::from_utf8(csv)?)?,
            }
        }
        Action::Diff { a, b, json } => return compare(&store, a, b, *json),
        Action::Schema => print_json(&json_schema())?,
    }
    Ok(Exit::Done)
}
