//! Seeded values. One idea: counter-based, so there is no state to carry.
//!
//! A value is the sum of four 16-bit uniforms of one 64-bit hash, centred and scaled to the wanted standard deviation
//! (Irwin-Hall of order 4: bell-shaped, bounded by 3.46 standard deviations, no transcendental function, the same bits on
//! every machine).

/// What a tensor is filled with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fill {
    /// Bell-shaped around zero with this standard deviation.
    Normal(f32),
    /// Bell-shaped around a centre: norm weights are near one.
    Around {
        /// The centre.
        centre: f32,
        /// The standard deviation.
        deviation: f32,
    },
    /// One value everywhere.
    Constant(f32),
}

impl Fill {
    /// The usual choice for a shape: a vector is a norm weight near one; a matrix has deviation 1 / sqrt(fan-in), which
    /// keeps activations at unit scale. At fan-in 2048 that is 0.022.
    ///
    /// A router of this scale sees unit-variance inputs and gives unit-variance logits, independent between experts:
    /// each expert is the best equally often, so routing is not degenerate.
    #[must_use]
    pub fn for_shape(shape: &[u64]) -> Fill {
        match shape {
            [] | [_] => Fill::Around { centre: 1.0, deviation: 0.05 },
            [.., fan_in] => Fill::Normal((1.0 / (*fan_in).max(1) as f64).sqrt() as f32),
        }
    }
}

/// The key of a tensor's stream: FNV-1a over the name, mixed with the seed.
#[must_use]
pub fn stream_key(seed: u64, name: &str) -> u64 {
    let hash =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    mix(hash ^ mix(seed ^ 0x9e37_79b9_7f4a_7c15))
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// What gives a sum of four uniforms on 0..65535 unit deviation: their variance is 4 (2^32 - 1) / 12.
pub const UNIT: f32 = 1.0 / 37_837.23;

/// Value `index` of a stream: mean 0, variance 1.
#[must_use]
pub fn unit(key: u64, index: u64) -> f32 {
    let bits = mix(key.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    let sum = (bits & 0xffff) + ((bits >> 16) & 0xffff) + ((bits >> 32) & 0xffff) + (bits >> 48);
    // Four uniforms on 0..65535: mean 131070, deviation 37837.23.
    (sum as f32 - 131_070.0) * UNIT
}

/// Fills `out` with values `start..start + out.len()` of the tensor `name`, deviation `1 / sqrt(2048)`-ish: 0.02.
pub fn fill_f32(seed: u64, name: &str, start: u64, out: &mut [f32]) {
    fill(Fill::Normal(0.02), seed, name, start, out);
}

/// As [`fill_f32`] with a chosen distribution.
pub fn fill(how: Fill, seed: u64, name: &str, start: u64, out: &mut [f32]) {
    let key = stream_key(seed, name);
    let (centre, deviation) = match how {
        Fill::Normal(deviation) => (0.0, deviation),
        Fill::Around { centre, deviation } => (centre, deviation),
        Fill::Constant(value) => return out.fill(value),
    };
    for (value, index) in out.iter_mut().zip(start..) {
        *value = centre + deviation * unit(key, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_slice_is_the_same_alone_as_in_the_whole() {
        let mut whole = vec![0.0; 1000];
        fill_f32(3, "blk.0.w", 0, &mut whole);
        for (start, len) in [(0, 1), (17, 300), (999, 1)] {
            let mut part = vec![0.0; len];
            fill_f32(3, "blk.0.w", start as u64, &mut part);
            assert_eq!(part, whole[start..start + len]);
        }
        let mut other = vec![0.0; 1000];
        fill_f32(3, "blk.1.w", 0, &mut other);
        assert!(whole.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
        fill_f32(4, "blk.0.w", 0, &mut other);
        assert!(whole.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
    }

    #[test]
    fn moments_are_those_asked_for() {
        let mut values = vec![0.0; 200_000];
        fill(Fill::Around { centre: 1.0, deviation: 0.5 }, 1, "n", 0, &mut values);
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 2e5;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / 2e5;
        assert!((mean - 1.0).abs() < 0.006, "{mean}");
        assert!((variance - 0.25).abs() < 0.005, "{variance}");
        let neighbours: f64 =
            values.windows(2).map(|w| (f64::from(w[0]) - mean) * (f64::from(w[1]) - mean)).sum::<f64>() / 2e5;
        assert!(neighbours.abs() < 0.003, "neighbours correlate: {neighbours}");
    }

    #[test]
    fn routing_by_such_a_router_is_not_degenerate() {
        let (experts, hidden, rows, top) = (64usize, 256usize, 512usize, 8usize);
        let mut router = vec![0.0; experts * hidden];
        fill(Fill::for_shape(&[64, 256]), 9, "router", 0, &mut router);
        let mut used = vec![0u32; experts];
        for row in 0..rows {
            let mut x = vec![0.0; hidden];
            fill(Fill::Normal(1.0), 10, "x", (row * hidden) as u64, &mut x);
            let mut logits: Vec<(f32, usize)> =
                router.chunks(hidden).map(|w| w.iter().zip(&x).map(|(a, b)| a * b).sum()).zip(0..).collect();
            logits.sort_by(|a, b| b.0.total_cmp(&a.0));
            logits[..top].iter().for_each(|l| used[l.1] += 1);
        }
        // 64 uses each on average; a uniform router stays well within a factor of two.
        assert!(used.iter().all(|&n| (32..=128).contains(&n)), "{used:?}");
    }
}
