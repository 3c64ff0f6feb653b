//! The sparkpipe binary: one `match` over the commands.
use clap::{Parser, Subcommand};
use sparkpipe::commands::{qualify, serve};
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
    /// Measure a model at every batch bucket and write receipts.
    Qualify(qualify::Qualify),
    /// Serve a tuple that has a passing receipt.
    Serve(serve::Serve),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Qualify(args) => qualify::run(&args),
        Command::Serve(args) => serve::run(&args),
    };
    match done {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}
