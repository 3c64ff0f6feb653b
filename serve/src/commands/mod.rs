//! The commands of the binary, one file each; `main.rs` is the one `match` over them.
//!
//! Each command is a clap `Args` struct with a `run` that returns an [`Exit`]. Facts go to standard output, one
//! clear error line to standard error.
pub mod identity;
pub mod qualify;
pub mod routes;
pub mod serve;
pub mod state;

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
