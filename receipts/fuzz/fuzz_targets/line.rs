//! Any bytes as a line of the receipt store: a parsed line or a typed error, never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Err(error) = receipts::seal::parse_line(data) {
        assert!(!error.to_string().is_empty());
    }
});
