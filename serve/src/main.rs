//! The sparkpipe binary: one `match` over the commands.
use clap::{CommandFactory, Parser, Subcommand};
use sparkpipe::commands::{
    bench, compare, completions, doctor, ledger, models, oracle, pack, probe, qualify, receipts, serve,
    synth, topologies,
};
use std::process::ExitCode;

#[derive(Parser)]
#[command(
    name = "sparkpipe",
    version,
    about = "Qualifies and serves models where memory bandwidth is everything"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print what this machine has and name each predicate that fails.
    Doctor(doctor::DoctorArgs),
    /// List the built-in model, the known geometries and the recipes.
    Models(models::ModelsArgs),
    /// Write a checkpoint as a pack; show or verify a pack.
    Pack(pack::PackArgs),
    /// Write a checkpoint of a known geometry with made-up weights.
    Synth(synth::SynthArgs),
    /// Print the bytes of a decode step from geometry and recipe, without weights.
    Ledger(ledger::LedgerArgs),
    /// Measure what this machine's memory and a launch can do.
    Probe(probe::ProbeArgs),
    /// Run an oracle folder against the answers of its reference.
    Oracle(oracle::OracleArgs),
    /// Run each kernel of the plans alone: time, ceiling and error against f64.
    Bench(bench::Bench),
    /// Time our decode step beside another engine's, interleaved on one file.
    Compare(compare::Compare),
    /// Measure a model at every batch bucket and write receipts.
    Qualify(qualify::Qualify),
    /// List, show, verify, export and compare receipts.
    Receipts(receipts::ReceiptsArgs),
    /// List, show and validate fabric files.
    Topologies(topologies::TopologiesArgs),
    /// Serve a tuple that has a passing receipt.
    Serve(serve::Serve),
    /// Print the completion script of a shell.
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Doctor(args) => doctor::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Pack(args) => pack::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Ledger(args) => ledger::run(&args),
        Command::Probe(args) => probe::run(&args),
        Command::Oracle(args) => oracle::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Qualify(args) => qualify::run(&args),
        Command::Receipts(args) => receipts::run(&args),
        Command::Topologies(args) => topologies::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Completions(args) => completions::run(&args, Cli::command()),
    };
    match done {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            sparkpipe::complain_of(&error);
            ExitCode::from(2)
        }
    }
}
