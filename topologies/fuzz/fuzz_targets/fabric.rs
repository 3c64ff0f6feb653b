//! Any text as a topology file: a validated fabric or a typed error that names something, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Err(error) = topologies::Topology::parse("fuzz.toml", text) {
        assert!(!error.to_string().is_empty());
    }
});
