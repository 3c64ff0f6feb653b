//! Any header text with the right length in front: a checkpoint whose tensors lie inside the file, or a typed error.
#![no_main]

use harness::containers::Checkpoint;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: (&str, u8)| {
    let (header, extra) = data;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + usize::from(extra), 0);
    if let Ok(checkpoint) = Checkpoint::from_bytes(bytes) {
        for tensor in checkpoint.tensors() {
            let length = checkpoint.bytes_of(tensor).len() as u64;
            assert_eq!(Some(length), tensor.dtype.bytes_of(&tensor.shape));
        }
    }
});
