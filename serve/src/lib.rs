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

pub mod commands;
pub mod gateway;
pub mod host_engine;
pub mod pack_text;
pub mod routes;
pub mod scheduler;
