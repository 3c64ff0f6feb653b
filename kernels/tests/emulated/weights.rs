//! Random weights of every format with moderate scales, as a pack holds them.
use kernels::formats::Format;

/// A generator of its own, so that a row or a matrix has the same values in every case it appears in.
pub struct Random(u64);

impl Random {
    /// A generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 32) ^ (self.0 >> 45)) as u32
    }

    /// Uniform in ±1.
    pub fn unit(&mut self) -> f32 {
        self.bits() as f32 / 2_147_483_648.0 - 1.0
    }

    /// Values in ±1.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// A binary16 of magnitude 2^(e-15) to 2^(e-14) with a random sign where `signed`.
fn f16(r: &mut Random, e: u16, signed: bool) -> [u8; 2] {
    let sign = if signed { (r.bits() & 1) as u16 } else { 0 };
    (sign << 15 | e << 10 | (r.bits() & 0x3ff) as u16).to_le_bytes()
}

/// `n` rows of `k` values of magnitude up to about one.
pub fn weights(format: Format, n: usize, k: usize, seed: u64) -> Vec<u8> {
    let mut r = Random::new(seed);
    match format {
        Format::F32 => return r.units(n * k).iter().flat_map(|v| v.to_le_bytes()).collect(),
        Format::Bf16 => {
            let halves = r.units(n * k).into_iter().map(kernels::values::bf16_from_f32);
            return halves.flat_map(u16::to_le_bytes).collect();
        }
        Format::F16 => return (0..n * k).flat_map(|_| f16(&mut r, 12 + (seed % 2) as u16, true)).collect(),
        _ => {}
    }
    // (offset of a binary16, its exponent): largest weights of about one.
    let scales: &[(usize, u16)] = match format {
        Format::Q8_0 => &[(0, 8)],
        Format::Q4_K => &[(0, 5), (2, 9)],
        Format::Q5_K => &[(0, 4), (2, 9)],
        Format::Q6_K => &[(208, 3)],
        _ => &[(80, 9), (82, 11)],
    };
    let mut out: Vec<u8> =
        (0..n * k / format.block_values() * format.block_bytes()).map(|_| (r.bits() >> 7) as u8).collect();
    for block in out.chunks_exact_mut(format.block_bytes()) {
        for &(at, e) in scales {
            block[at..at + 2].copy_from_slice(&f16(&mut r, e, true));
        }
    }
    out
}
