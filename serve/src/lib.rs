//! The serving room: what stands between a qualified engine and its clients.
//!
//! Promises: a batch never has more rows and a sequence never more tokens than
//! the receipt behind the engine allows; every queue, body, header and wait is
//! bounded; a client that leaves frees its slot within one step; a dead or
//! stuck engine is told to clients as such, never hidden behind a `200`.
//! Refuses: request fields whose meaning the engine cannot honour.
//!
//! Read first: `scheduler/core.rs` (the pump), `scheduler/engine.rs` (the
//! seams), `gateway/generate.rs` (one request from bytes to chunks).

use std::io::Write;

pub mod commands;
pub mod gateway;
pub mod host_engine;
pub mod pack_text;
pub mod routes;
pub mod scheduler;

/// One line on standard error. Where nobody can read it, it is lost: that ends no server and changes no exit code.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// A failure on standard error, each cause once: many errors already say what caused them.
pub fn complain_of(error: &anyhow::Error) {
    let mut said = String::new();
    for cause in error.chain().map(|c| c.to_string().replace('\n', " ")) {
        if said.is_empty() {
            said = cause;
        } else if !said.ends_with(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    complain(&format!("error: {said}"));
}
