//! The real binary from start to stop: qualify, the gate's refusals, and the server over HTTP.

mod home;
mod refusals;
mod routes;
mod server;
mod serving;
mod synthetic;
