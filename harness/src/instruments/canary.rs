//! The canary: one fixed matrix product before and after every block. If it moved, the block was not measured
//! in one state of the machine.
use kernels::formats::Format;
use kernels::host::HostDevice;
use kernels::linear::host::{Act, RowSel, scratch_len, tile};
use std::sync::Mutex;
use std::time::Instant;

const K: usize = 1024;
const ROWS: usize = 4096;
const TILE: usize = 16;
const PASSES: usize = 15;

/// A seeded BF16 matrix of 8 MiB, one activation row, and how far the time may move.
pub struct Canary {
    weights: Vec<u8>,
    x: Vec<u16>,
    limit_ppm: u64,
}

impl Canary {
    /// A canary that has moved when its time changed by more than `limit_ppm`.
    pub fn new(limit_ppm: u64) -> Self {
        // BF16 values of 1 + i/128: finite, so that no slow path of the processor is measured.
        let value = |i: usize| 0x3f80u16 + (i.wrapping_mul(2_654_435_761) >> 7) as u16 % 128;
        let weights = (0..K * ROWS).flat_map(|i| value(i).to_le_bytes()).collect();
        Self { weights, x: (0..K).map(value).collect(), limit_ppm }
    }

    /// Whether the time moved from `before` to `after` beyond the limit.
    pub fn moved(&self, before: u64, after: u64) -> bool {
        receipts::Canary::new(before, after).is_none_or(|c| c.moved_ppm > self.limit_ppm)
    }

    /// Time of the fastest pass in nanoseconds: a slow state of the machine slows every pass, a neighbour on a
    /// shared processor only some of them.
    pub fn run(&self, device: &mut HostDevice) -> u64 {
        let simd = device.simd();
        let pool = device.pool();
        let bytes = 2 * K * TILE;
        let items = ROWS / TILE;
        let scratch: Vec<Mutex<(Vec<f32>, [f32; TILE])>> =
            (0..pool.threads()).map(|_| Mutex::new((vec![0.0; scratch_len(K, TILE)], [0.0; TILE]))).collect();
        let times = (0..PASSES)
            .map(|_| {
                let start = Instant::now();
                pool.run(scratch.len(), &|thread, _| {
                    let Ok(mut own) = scratch[thread].lock() else { return };
                    let (decoded, out) = &mut *own;
                    for item in (thread..items).step_by(scratch.len()) {
                        let w = &self.weights[item * bytes..(item + 1) * bytes];
                        let rows = RowSel::Range { start: 0, end: 1 };
                        let done =
                            tile(simd, Format::Bf16, w, TILE, K, &Act::Bf16(&self.x), rows, decoded, out);
                        debug_assert!(done.is_ok());
                    }
                });
                start.elapsed().as_nanos() as u64
            })
            .min();
        times.unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::host::simd::Simd;

    #[test]
    fn it_takes_time_and_moves_only_beyond_its_limit() {
        let canary = Canary::new(100_000);
        let mut device = HostDevice::new(2, Simd::SCALAR, 0);
        assert!(canary.run(&mut device) > 10_000, "8 MiB cannot be read in 10 us");
        assert!(!canary.moved(1000, 1100) && canary.moved(1000, 1101));
        assert!(canary.moved(0, 5), "a canary without a time is no canary");
    }
}
