//! `topologies`: the fabric files this build ships, and the check of any other.
use super::{Exit, print, print_json, state};
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use topologies::{BUILTIN_NAMES, Topology};

/// Lists, shows and validates fabric files.
#[derive(Args, Debug)]
pub struct TopologiesArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with fabric files.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// The built-in fabrics.
    List {
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// One built-in fabric: its file and the totals computed from it.
    Show {
        /// Name.
        name: String,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
    /// Checks a fabric file.
    Validate {
        /// File, or the name of a built-in fabric.
        file: PathBuf,
        /// Number of nodes it must hold for; all its range where none is given.
        #[arg(long)]
        nodes: Option<u32>,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
    },
}

fn facts(t: &Topology, nodes: u32) -> Result<Value> {
    let (min, max) = t.node_range();
    let totals = match t.node() {
        Some(_) => {
            let a = t.aggregates(nodes)?;
            json!({
                "nodes": a.nodes,
                "memory_bytes": a.memory_bytes,
                "bandwidth_bytes_per_second": a.bandwidth_bytes_per_second,
                "network_bits_per_second": a.network_bits_per_second,
            })
        }
        None => Value::Null,
    };
    Ok(json!({
        "name": t.name(),
        "summary": t.summary(),
        "transport": t.transport().as_str(),
        "hash": t.hash(),
        "nodes": {"min": min, "max": max},
        "totals": totals,
        "runnable": t.runnable().is_ok(),
        "refusal": t.runnable().err().map(|r| r.to_string()),
    }))
}

fn text(t: &Topology, nodes: u32) -> Result<String> {
    let (min, max) = t.node_range();
    let mut out = format!("{}: {}\n", t.name(), t.summary());
    out += &format!("  transport {}, {min} to {max} nodes, hash {}\n", t.transport().as_str(), t.hash());
    if t.node().is_some() {
        let a = t.aggregates(nodes)?;
        out += &format!(
            "  {} nodes: {:.3} TB of memory, {:.3} TB/s, {} Gb/s of network\n",
            a.nodes,
            a.memory_bytes as f64 / 1e12,
            a.bandwidth_bytes_per_second as f64 / 1e12,
            a.network_bits_per_second / 1_000_000_000
        );
    }
    out += &match t.runnable() {
        Ok(()) => "  runnable\n".into(),
        Err(refusal) => format!("  refused: {refusal}\n"),
    };
    Ok(out)
}

fn list(json: bool) -> Result<Exit> {
    let all = BUILTIN_NAMES.iter().map(|n| Topology::builtin(n)).collect::<Result<Vec<_>, _>>()?;
    if json {
        let facts = all.iter().map(|t| facts(t, t.node_range().1)).collect::<Result<Vec<_>>>()?;
        print_json(&facts)?;
    } else {
        let texts = all.iter().map(|t| text(t, t.node_range().1)).collect::<Result<String>>()?;
        print(&texts)?;
    }
    Ok(Exit::Done)
}

fn read(file: &Path) -> Result<Topology> {
    let label = file.to_string_lossy();
    if BUILTIN_NAMES.contains(&label.as_ref()) {
        return Ok(Topology::builtin(&label)?);
    }
    let text = state::read_text(file, topologies::fabric::MAX_FILE as u64)?;
    let stem = file.file_stem().context("the fabric file has no name")?;
    Ok(Topology::parse(&stem.to_string_lossy(), &text)?)
}

/// Runs the command.
pub fn run(args: &TopologiesArgs) -> Result<Exit> {
    match &args.action {
        Action::List { json } => list(*json),
        Action::Show { name, json } => {
            let t = Topology::builtin(name)?;
            let most = t.node_range().1;
            if *json {
                print_json(&facts(&t, most)?)?;
            } else {
                let file = Topology::builtin_text(name).unwrap_or_default();
                print(&format!("{}\n{file}", text(&t, most)?))?;
            }
            Ok(Exit::Done)
        }
        Action::Validate { file, nodes, json } => {
            let t = read(file)?;
            let nodes = nodes.unwrap_or(t.node_range().1);
            t.validate(nodes)?;
            if *json {
                print_json(&facts(&t, nodes)?)?;
            } else {
                print(&format!("valid for {nodes} nodes\n{}", text(&t, nodes)?))?;
            }
            Ok(Exit::Done)
        }
    }
}
