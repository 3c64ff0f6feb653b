//! Any index text over one embedded shard: accepted only if it maps exactly that shard's tensor.
#![no_main]

use harness::containers::Checkpoint;
use libfuzzer_sys::fuzz_target;

const SHARD: &[u8] = b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}   x";

fuzz_target!(|index: &str| {
    if let Ok(checkpoint) = Checkpoint::from_embedded(&[("a.safetensors", SHARD)], Some(index)) {
        assert_eq!(checkpoint.bytes("a").ok(), Some(&b"x"[..]));
    }
});
