//! Step and chunked form against the f64 recurrence, and their bit equalities.
use super::*;
use crate::host::simd::Simd;
use crate::testing::{simd, uniform};

fn row(n: usize, seed: u64) -> Vec<f32> {
    uniform(n, seed, 3.0)
}

/// Inputs of one head over `n` tokens, laid out as rows of [q | k | v].
struct Case {
    n: usize,
    dk: usize,
    dv: usize,
    qkv: Vec<f32>,
    z: Vec<f32>,
    a: Vec<f32>,
    b: Vec<f32>,
    w: Vec<f32>,
    a_log: f32,
}

impl Case {
    fn new(n: usize, dk: usize, dv: usize, a_log: f32) -> Self {
        let (qkv, z) = (row(n * (2 * dk + dv), 1), row(n * dv, 2));
        Self { n, dk, dv, qkv, z, a: row(n, 3), b: row(n, 4), w: row(dv, 5), a_log }
    }
    fn head(&self) -> Head<'_> {
        let norm_w = Vector::F32(&self.w);
        let (dk, dv, a_log) = (self.dk, self.dv, self.a_log);
        Head { dk, dv, a_log, dt_bias: 0.25, norm_w, eps: 1e-6, round_normed: false }
    }
    fn segment(&self, from: usize, n: usize) -> Segment<'_> {
        let stride = 2 * self.dk + self.dv;
        let at = from * stride;
        Segment {
            n,
            q: &self.qkv[at..],
            k: &self.qkv[at + self.dk..],
            v: &self.qkv[at + 2 * self.dk..],
            qkv_stride: stride,
            z: &self.z[from * self.dv..],
            z_stride: self.dv,
            a: &self.a[from..],
            b: &self.b[from..],
            ab_stride: 1,
        }
    }
    fn steps(&self, simd: Simd, state: &mut [f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.dv];
        let mut scratch = vec![f32::NAN; step_scratch_len(self.dk, self.dv)];
        for t in 0..self.n {
            let s = self.segment(t, 1);
            let out = &mut out[t * self.dv..(t + 1) * self.dv];
            let (a, b) = (self.a[t], self.b[t]);
            step_head(simd, &self.head(), s.q, s.k, s.v, s.z, a, b, state, &mut scratch, out);
        }
        out
    }
    fn chunks(&self, simd: Simd, cut: usize, state: &mut [f32]) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.n * self.dv];
        let mut scratch = vec![f32::NAN; chunk_scratch_len(self.dk, self.dv)];
        let (first, second) = out.split_at_mut(cut * self.dv);
        let head = self.head();
        chunk_head(simd, &head, &self.segment(0, cut), state, &mut scratch, first, self.dv);
        let rest = self.segment(cut, self.n - cut);
        chunk_head(simd, &head, &rest, state, &mut scratch, second, self.dv);
        out
    }
    /// The recurrence by its equations, in f64.
    fn exact(&self, state: &mut [f64]) -> Vec<f64> {
        let (dk, dv) = (self.dk, self.dv);
        let f = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let unit = |x: Vec<f64>| {
            let norm = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
            x.iter().map(|x| x / norm).collect::<Vec<_>>()
        };
        let mut out = vec![];
        for t in 0..self.n {
            let s = self.segment(t, 1);
            let (q, k) = (unit(f(&s.q[..dk])), unit(f(&s.k[..dk])));
            let (v, z) = (f(&s.v[..dv]), f(&s.z[..dv]));
            let beta = 1.0 / (1.0 + (-f64::from(self.b[t])).exp());
            let softplus = (f64::from(self.a[t]) + 0.25).exp().ln_1p();
            let alpha = (-f64::from(self.a_log).exp() * softplus).exp();
            let mut y = vec![0.0; dv];
            for c in 0..dv {
                let m: f64 = (0..dk).map(|i| alpha * state[i * dv + c] * k[i]).sum();
                let delta = beta * (v[c] - m);
                for i in 0..dk {
                    state[i * dv + c] = alpha * state[i * dv + c] + k[i] * delta;
                    y[c] += state[i * dv + c] * q[i] / (dk as f64).sqrt();
                }
            }
            let rms = (y.iter().map(|y| y * y).sum::<f64>() / dv as f64 + 1e-6).sqrt();
            for c in 0..dv {
                out.push(y[c] / rms * f64::from(self.w[c]) * z[c] / (1.0 + (-z[c]).exp()));
            }
        }
        out
    }
}

/// Largest difference over the largest value.
fn relative(got: &[f32], want: &[f64]) -> f64 {
    let top = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
    got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs()).fold(0.0, f64::max) / top
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn steps_and_chunks_agree_with_the_f64_recurrence() {
    for (n, dk, dv) in [(1, 128, 128), (63, 16, 24), (64, 32, 32), (65, 13, 7), (200, 128, 128)] {
        // Weak, usual and very strong decay.
        for a_log in [-4.0, 0.0, 4.0] {
            let case = Case::new(n, dk, dv, a_log);
            let start = row(dk * dv, 6);
            let mut exact_state: Vec<f64> = start.iter().map(|x| f64::from(*x)).collect();
            let want = case.exact(&mut exact_state);
            for simd in Simd::available() {
                let (mut stepped, mut chunked) = (start.clone(), start.clone());
                let (by_step, by_chunk) =
                    (case.steps(simd, &mut stepped), case.chunks(simd, 0, &mut chunked));
                for (got, state) in [(by_step, stepped), (by_chunk, chunked)] {
                    let (o, s) = (relative(&got, &want), relative(&state, &exact_state));
                    assert!(o < 1e-5 && s < 1e-5, "{simd:?} n {n} dk {dk} dv {dv} a_log {a_log}: {o} {s}");
                }
            }
        }
    }
}

#[test]
fn both_builds_and_segments_cut_on_the_chunk_grid_give_the_same_bits() {
    for (n, dk, dv) in [(150, 32, 64), (130, 10, 33)] {
        let case = Case::new(n, dk, dv, 0.0);
        let run = |simd: Simd, cut: usize| {
            let mut state = row(dk * dv, 6);
            let out = case.chunks(simd, cut, &mut state);
            (bits(&out), bits(&state))
        };
        let whole = run(simd(), 0);
        assert_eq!(run(Simd::SCALAR, 0), whole);
        assert_eq!(run(simd(), CHUNK), whole);
        assert_eq!(run(simd(), 2 * CHUNK), whole);
        let (mut a, mut b) = (row(dk * dv, 6), row(dk * dv, 6));
        assert_eq!(bits(&case.steps(simd(), &mut a)), bits(&case.steps(Simd::SCALAR, &mut b)));
        assert_eq!(bits(&a), bits(&b));
    }
}

#[test]
fn extreme_decay_forgets_and_nothing_overflows() {
    let mut case = Case::new(100, 16, 32, 5.0);
    case.a.fill(80.0);
    let (mut stepped, mut chunked) = (row(512, 6), row(512, 6));
    let (s, c) = (case.steps(simd(), &mut stepped), case.chunks(simd(), 0, &mut chunked));
    assert!(s.iter().chain(&c).chain(&stepped).chain(&chunked).all(|x| x.is_finite()));
    let mut empty = vec![0.0; 512];
    assert_eq!(case.steps(simd(), &mut empty)[..32], s[..32]);
}

#[test]
fn a_nan_value_stays_in_its_state_column_and_a_nan_key_shows_everywhere() {
    let mut case = Case::new(1, 16, 32, 0.0);
    case.qkv[2 * 16 + 5] = f32::NAN;
    let mut state = row(512, 6);
    let out = case.steps(simd(), &mut state);
    assert!(out.iter().all(|x| x.is_nan()));
    assert!(state.iter().enumerate().all(|(i, s)| s.is_nan() == (i % 32 == 5)));
    let mut case = Case::new(1, 16, 32, 0.0);
    case.qkv[16] = f32::NAN;
    let mut state = row(512, 6);
    assert!(case.steps(simd(), &mut state).iter().chain(&state).all(|x| x.is_nan()));
}

#[test]
fn the_normed_output_can_be_rounded_before_its_weight() {
    let case = Case::new(1, 8, 16, 0.0);
    let s = case.segment(0, 1);
    let head = Head { norm_w: Vector::F32(&[1.0; 16]), round_normed: true, ..case.head() };
    let z = [f32::INFINITY; 16];
    let (mut state, mut scratch, mut out) = (vec![0.0; 128], vec![0.0; step_scratch_len(8, 16)], [0.0; 16]);
    step_head(simd(), &head, s.q, s.k, s.v, &z, 0.1, 0.2, &mut state, &mut scratch, &mut out);
    assert!(out.iter().all(|x| x.is_infinite()));
    let z = [20.0; 16];
    step_head(simd(), &head, s.q, s.k, s.v, &z, 0.1, 0.2, &mut state, &mut scratch, &mut out);
    let gate = silu(20.0);
    assert!(out.iter().all(|x| {
        let n = x / gate;
        (n - crate::values::round_bf16(n)).abs() <= 2e-7 * n.abs()
    }));
}
