//! The commands of the binary, one file each; `main.rs` is the one `match` over them.
//!
//! Each command is a clap `Args` struct with a `run` that returns an [`Exit`]. Facts go to standard output, one
//! clear error line to standard error.
pub mod bench;
pub mod compare;
pub mod completions;
pub mod device;
pub mod doctor;
pub mod host;
pub mod identity;
pub mod ledger;
pub mod measure;
pub mod models;
pub mod oracle;
pub mod pack;
pub mod probe;
pub mod probe_cuda;
pub mod qualify;
pub mod qualify_cuda;
pub mod receipts;
pub mod serve;
pub mod state;
pub mod synth;
pub mod topologies;

use anyhow::Result;
use std::io::Write;

/// How a command ends when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done, and what was asked about holds.
    Done,
    /// Done, and what was asked about does not hold: not qualified, refused, not verified.
    Refused,
}

impl Exit {
    /// The process's exit code; errors are 2.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
        }
    }

    /// [`Exit::Done`] where `holds`.
    pub fn holds(holds: bool) -> Self {
        if holds { Self::Done } else { Self::Refused }
    }
}

/// Writes `text` to standard output. A reader that went away (`| head`) is no failure.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

/// Writes `value` as indented JSON and a newline.
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
