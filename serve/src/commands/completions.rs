//! `completions`: the shell's completion script, generated from the commands themselves.
use super::{Exit, print};
use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

/// Prints the completion script of a shell.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// Runs the command for the whole of `cli`.
pub fn run(args: &CompletionsArgs, mut cli: Command) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli, "sparkpipe", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
