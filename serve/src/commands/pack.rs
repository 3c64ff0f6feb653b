//! `pack`: a checkpoint's bytes in consumption order; and the check of a pack that exists.
use super::state::{self, Named};
use super::{Exit, print, print_json};
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use harness::builtin;
use harness::pack::{Pack, PackError};
use ledger::grouped;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Writes a checkpoint as a pack; shows or verifies one.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct PackArgs {
    /// Show or verify a pack in place of writing one.
    #[command(subcommand)]
    pub action: Option<Action>,
    /// A checkpoint folder, a safetensors or GGUF file, or the built-in model.
    #[arg(required = true)]
    pub checkpoint: Option<String>,
    /// Recipe; the checkpoint's own where none is given.
    #[arg(long)]
    pub recipe: Option<String>,
    /// Name of the model; the file's or folder's where none is given.
    #[arg(long)]
    pub name: Option<String>,
    /// File to write.
    #[arg(short, long, required = true)]
    pub output: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// What to do with a pack that exists.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Its name, family, recipe, tensors and side files.
    Show {
        /// The pack.
        file: PathBuf,
        /// Prints JSON, every tensor included.
        #[arg(long)]
        json: bool,
    },
    /// Hashes every tensor and side file again.
    Verify {
        /// The pack.
        file: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

fn show(pack: &Pack, json: bool) -> Result<()> {
    let h = &pack.header;
    if json {
        return print_json(&json!({"id": pack.id, "header": h}));
    }
    let bytes = h.manifest.tensor_bytes();
    let mut out = format!("{} ({}) in {}\nid {}\n", h.name, h.model.family(), h.recipe.name, pack.id);
    out += &format!("{} tensors, {} B\n", h.manifest.entries.len(), grouped(bytes));
    let mut formats: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for entry in &h.manifest.entries {
        let sum = formats.entry(&entry.format).or_default();
        *sum = (sum.0 + 1, sum.1 + entry.bytes);
    }
    for (format, (count, bytes)) in formats {
        out += &format!("  {format:<8} {count} tensors, {} B\n", grouped(bytes));
    }
    for file in &h.files {
        out += &format!("  {} {} B\n", file.name, grouped(file.bytes));
    }
    print(&out)
}

fn verify(file: &std::path::Path, json: bool) -> Result<Exit> {
    let pack = Pack::open(file)?;
    let fault = match pack.verify() {
        Ok(()) => None,
        Err(PackError::Invalid { field, what, .. }) => Some((field, what)),
        Err(other) => return Err(other.into()),
    };
    if json {
        let fault = fault.as_ref().map(|(field, what)| json!({"field": field, "what": what}));
        print_json(&json!({"id": pack.id, "sound": fault.is_none(), "fault": fault}))?;
    } else {
        print(&match &fault {
            None => format!("{}: every tensor and side file holds\n", pack.id),
            Some((field, what)) => format!("{}: '{field}': {what}\n", file.display()),
        })?;
    }
    Ok(Exit::holds(fault.is_none()))
}

fn write(args: &PackArgs) -> Result<Pack> {
    let asked = args.checkpoint.as_deref().context("name a checkpoint")?;
    let output = args.output.as_deref().context("name the file to write: -o FILE")?;
    let (checkpoint, name) = match state::resolve(asked)? {
        Named::Builtin => (builtin::checkpoint()?, builtin::NAME.to_owned()),
        Named::Checkpoint(path) => (harness::containers::open(&path)?, state::checkpoint_name(&path)),
        Named::Pack(path) => bail!("{}: this is a pack already", path.display()),
        Named::Known(k) => bail!("{} is a geometry without weights", k.name),
    };
    let recipe = state::recipe(args.recipe.as_deref().unwrap_or(state::own_recipe(&checkpoint)))?;
    Ok(Pack::write(&checkpoint, args.name.as_deref().unwrap_or(&name), &recipe, output)?)
}

/// Runs the command.
pub fn run(args: &PackArgs) -> Result<Exit> {
    match &args.action {
        Some(Action::Show { file, json }) => show(&Pack::open(file)?, *json)?,
        Some(Action::Verify { file, json }) => return verify(file, *json),
        None => show(&write(args)?, args.json)?,
    }
    Ok(Exit::Done)
}
