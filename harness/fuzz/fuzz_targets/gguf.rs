//! Any bytes behind a GGUF magic: a checkpoint whose tensors lie inside the file, or a typed error.
#![no_main]

use harness::containers::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let bytes = [b"GGUF", data].concat();
    if let Ok(checkpoint) = Checkpoint::from_bytes(bytes) {
        for tensor in checkpoint.tensors() {
            let length = checkpoint.bytes_of(tensor).len() as u64;
            assert_eq!(Some(length), tensor.dtype.bytes_of(&tensor.shape));
        }
    }
});
