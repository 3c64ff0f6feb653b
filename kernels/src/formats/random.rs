//! Seeded random weights and activations for tests.

use super::Format;

/// A small generator (splitmix64): the same seed gives the same test on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.bits().to_le_bytes()[7]).collect()
    }

    /// Uniform in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }

    /// Random rows with finite, moderate scales: any codes, d and dmin within ±2^-6.
    pub(crate) fn weights(&mut self, format: Format, n: usize, k: usize) -> Vec<u8> {
        let plain =
            |f: &dyn Fn(f32) -> Vec<u8>, r: &mut Self| r.units(n * k).into_iter().flat_map(f).collect();
        let scales: &[usize] = match format {
            Format::F32 => return plain(&|v| v.to_le_bytes().to_vec(), self),
            Format::F16 => return plain(&|v| half::f16::from_f32(v).to_le_bytes().to_vec(), self),
            Format::Bf16 => return plain(&|v| half::bf16::from_f32(v).to_le_bytes().to_vec(), self),
            Format::Q8_0 => &[0],
            Format::Q4_K | Format::Q5_K => &[0, 2],
            Format::Q6_K => &[208],
            Format::Q2_K => &[80, 82],
        };
        let mut bytes = self.bytes(n * k / format.block_values() * format.block_bytes());
        for block in bytes.chunks_exact_mut(format.block_bytes()) {
            for &at in scales {
                let d = half::f16::from_f32(self.unit() / 64.0);
                block[at..at + 2].copy_from_slice(&d.to_le_bytes());
            }
        }
        bytes
    }
}
