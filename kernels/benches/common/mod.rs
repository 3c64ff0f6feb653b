//! What the benches of matrix products share.
use kernels::formats::Format;

/// `n` rows of `k` finite weights: codes from a fixed byte pattern, every f16 scale 2^-7.
pub fn weights(format: Format, n: usize, k: usize) -> Vec<u8> {
    let bytes = usize::try_from(format.matrix_bytes(n, k).expect("k is whole blocks")).expect("fits");
    let mut w: Vec<u8> = (0..bytes).map(|i| (i as u64).wrapping_mul(0x9e37_79b9) as u8).collect();
    let scales: &[usize] = match format {
        Format::Q8_0 => &[0],
        Format::Q4_K | Format::Q5_K => &[0, 2],
        Format::Q6_K => &[208],
        Format::Q2_K => &[80, 82],
        _ => &[],
    };
    for block in w.chunks_exact_mut(format.block_bytes()) {
        for &at in scales {
            block[at..at + 2].copy_from_slice(&0x2000u16.to_le_bytes());
        }
        match format {
            Format::F32 => block.copy_from_slice(&0.37f32.to_le_bytes()),
            Format::F16 | Format::Bf16 => block.copy_from_slice(&0x3ab0u16.to_le_bytes()),
            _ => {}
        }
    }
    w
}
