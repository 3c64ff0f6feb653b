//! `synth`: a checkpoint of a known geometry with made-up weights, at any scale.
use super::state::{self, Named};
use super::{Exit, print, print_json};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use harness::builtin;
use harness::families::Model;
use harness::synth::model::{Container, write_model};
use harness::synth::scale::Scale;
use ledger::grouped;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Writes a checkpoint of a known geometry with seeded, made-up weights.
#[derive(Args, Debug)]
pub struct SynthArgs {
    /// A known geometry, or the built-in model's.
    pub model: String,
    /// Part of the layers and experts to keep, above 0 and up to 1. Widths stay.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Layers.
    #[arg(long)]
    pub layers: Option<usize>,
    /// Routed experts of a layer.
    #[arg(long)]
    pub experts: Option<usize>,
    /// Width of the residual stream.
    #[arg(long)]
    pub hidden: Option<usize>,
    /// Width of the MLP, or of an expert.
    #[arg(long)]
    pub width: Option<usize>,
    /// Vocabulary.
    #[arg(long)]
    pub vocab: Option<usize>,
    /// Recipe; the model's own where none is given.
    #[arg(long)]
    pub recipe: Option<String>,
    /// Container; by the file's extension where none is given.
    #[arg(long)]
    pub format: Option<ContainerName>,
    /// Seed of the weights.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// File to write.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Prints JSON.
    #[arg(long)]
    pub json: bool,
}

/// A container on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ContainerName {
    /// safetensors, with config.json beside it.
    Safetensors,
    /// GGUF.
    Gguf,
}

fn container(args: &SynthArgs) -> Result<Container> {
    Ok(match (args.format, args.output.extension().and_then(|e| e.to_str())) {
        (Some(ContainerName::Safetensors), _) | (None, Some("safetensors")) => Container::Safetensors,
        (Some(ContainerName::Gguf), _) | (None, Some("gguf")) => Container::Gguf,
        _ => bail!("{}: name it .safetensors or .gguf, or say --format", args.output.display()),
    })
}

fn config(args: &SynthArgs) -> Result<(Value, &'static str)> {
    let (text, own) = match state::resolve(&args.model)? {
        Named::Builtin => (builtin::CONFIG, builtin::RECIPE),
        Named::Known(k) => (k.config, k.recipe),
        Named::Pack(path) | Named::Checkpoint(path) => {
            bail!("{}: synth takes a known geometry's name", path.display())
        }
    };
    if !(args.scale > 0.0 && args.scale <= 1.0) {
        bail!("--scale is {}, the limit is above 0 and up to 1", args.scale);
    }
    let (layers, experts) = (args.layers, args.experts);
    let (hidden, width, vocab) = (args.hidden, args.width, args.vocab);
    let full: Value = serde_json::from_str(text)?;
    let scale = Scale { layers, experts, hidden, width, vocab }.or(Scale::fraction(&full, args.scale));
    Ok((scale.apply(&full)?, own))
}

/// The config.json to write beside a safetensors file; `None` where it lies there already. Another model's is not
/// replaced.
fn config_beside(beside: &Path, config: &Value) -> Result<Option<(PathBuf, String)>> {
    let path = beside.with_file_name("config.json");
    let mut config = config.clone();
    // The mark travels into the pack: receipts of made-up weights never admit.
    config[harness::pack::SYNTHETIC_KEY] = Value::Bool(true);
    let text = format!("{}\n", serde_json::to_string_pretty(&config)?);
    match std::fs::read_to_string(&path) {
        Ok(have) if have == text => Ok(None),
        Ok(_) => bail!("{}: a config.json of another model lies there", path.display()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Some((path, text))),
        Err(e) => Err(e).with_context(|| path.display().to_string()),
    }
}

/// Runs the command.
pub fn run(args: &SynthArgs) -> Result<Exit> {
    let container = container(args)?;
    let (config, own) = config(args)?;
    let model = Model::from_config(&config)?;
    let recipe = state::recipe(args.recipe.as_deref().unwrap_or(own))?;
    if args.output.exists() {
        bail!("{}: exists already, synth replaces nothing", args.output.display());
    }
    let beside = match container {
        Container::Safetensors => config_beside(&args.output, &config)?,
        Container::Gguf => None,
    };
    write_model(&args.output, &model, &recipe, container, args.seed, |_, _| {})?;
    if let Some((path, text)) = beside {
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    let bytes = std::fs::metadata(&args.output).with_context(|| args.output.display().to_string())?.len();
    let tensors = model.manifest_with_draft(&recipe)?.tensor_bytes();
    if args.json {
        let (file, recipe, seed) = (args.output.display().to_string(), &recipe.name, args.seed);
        let summary = model.summary();
        print_json(&json!({
            "file": file, "bytes": bytes, "tensor_bytes": tensors, "recipe": recipe, "seed": seed,
            "summary": summary, "kind": "synthetic",
        }))?;
    } else {
        let (file, size) = (args.output.display(), grouped(bytes));
        print(&format!("{file}: {size} B, {} B of tensors in {}\n", grouped(tensors), recipe.name))?;
    }
    Ok(Exit::Done)
}
