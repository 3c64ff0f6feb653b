//! Made-up weights: the bytes that the device makes are those of the host's encoders, by hash. The hashes of
//! `synth.csv` are the host's; a test of `harness::synth::payload` compares them with its encoders.
use crate::emulator::{Addresses, emulator};
use kernels::cuda::synth::{MAP, OUT, Stream, call, map_bytes};
use kernels::cuda::weights::Stack;
use kernels::formats::Format;

/// The factor of `harness::synth::values::UNIT`.
const UNIT: f32 = 1.0 / 37_837.23;
const HASHES: &str = include_str!("synth.csv");

#[test]
fn made_up_weights_are_the_hosts_in_every_format() {
    let Some(emulator) = emulator() else { return };
    for format in Format::ALL {
        let line = HASHES.lines().find_map(|l| l.strip_prefix(&format!("{},", format.name())));
        let (key, hash) = line.and_then(|l| l.split_once(',')).expect("a line for every format");
        // Two matrices of 20 rows: the second tile of each is short.
        let stack = Stack { format, n: 20, k: 512, count: 2 };
        let stream = Stream { key: key.parse().unwrap(), centre: 0.0, deviation: 0.03, unit: UNIT };
        let mut out = vec![0xaau8; stack.bytes() as usize * stack.count];
        let map = map_bytes(format);
        let at = |id| if id == OUT { out.as_mut_ptr() as u64 } else { map.as_ptr() as u64 };
        assert_ne!(OUT, MAP);
        let buffers = std::cell::RefCell::new(at);
        let addresses = Addresses { buffers: &|id| (buffers.borrow_mut())(id), shape: 0, work: 0 };
        emulator.run(&call(&stack, &stream, 7), &addresses, 0);
        let have = blake3::hash(&out).to_hex();
        assert_eq!(&have[..32], hash, "{}", format.name());
    }
}
