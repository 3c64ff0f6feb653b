//! The sparkpipe binary.
fn main() {}
