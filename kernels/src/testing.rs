//! What the tests of several operations share: the vector level of this machine and seeded rows.
use crate::host::simd::Simd;

/// The best vector level of this machine.
pub(crate) fn simd() -> Simd {
    Simd::detect(&Default::default())
}

/// `n` words of a linear congruential sequence; another one for each seed.
pub(crate) fn words(n: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut s = seed.wrapping_mul(2) | 1;
    (0..n).map(move |_| {
        s = s.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        s
    })
}

/// `n` values, uniform in an interval of this width around zero.
pub(crate) fn uniform(n: usize, seed: u64, width: f32) -> Vec<f32> {
    words(n, seed).map(|s| ((s >> 40) as f32 / 16_777_216.0 - 0.5) * width).collect()
}
