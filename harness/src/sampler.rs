//! From logits to a token. One idea: the draw is a pure function of (logits, history, parameters, seed, position): the
//! generator is a counter, so a row's sample depends neither on its neighbours nor on how often it was replayed.
//!
//! Order: bias, repetition, presence and frequency penalties, temperature, `top_k`, `top_p` over what `top_k` left, `min_p`
//! relative to the best, then one draw. Ties go to the lower id everywhere.

use thiserror::Error;

/// Lowest log-probability that is reported: JSON has no infinity.
pub const LOGPROB_FLOOR: f32 = -9999.0;

/// How to pick a token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy; up to 100.
    pub temperature: f32,
    /// Nucleus mass in (0, 1]; 1 is off.
    pub top_p: f32,
    /// Candidates kept; 0 is off.
    pub top_k: u32,
    /// Least probability relative to the best, in [0, 1]; 0 is off.
    pub min_p: f32,
    /// Seed of the counter-based generator.
    pub seed: u64,
    /// Divides positive and multiplies negative logits of tokens in prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens of the answer; -2..=2.
    pub presence_penalty: f32,
    /// Subtracted for each occurrence in the answer; -2..=2.
    pub frequency_penalty: f32,
    /// Added to single logits; -100..=100 each.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplingParams {
    /// Greedy, everything else off.
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}

/// Why no token can be picked.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum SamplerError {
    /// A parameter is outside its range.
    #[error("`{param}` is {value}; allowed: {limit}")]
    Param {
        /// The parameter's name as requests spell it.
        param: &'static str,
        /// The value.
        value: f64,
        /// What is allowed.
        limit: &'static str,
    },
    /// A logit is NaN or plus infinity.
    #[error("the logit of token {id} is {value}")]
    BadLogit {
        /// The token.
        id: usize,
        /// The value.
        value: f32,
    },
    /// All tokens are masked.
    #[error("all {vocabulary} tokens are masked")]
    AllMasked {
        /// Length of the logits.
        vocabulary: usize,
    },
    /// Logits of another length than the sampler was made for.
    #[error("{found} logits, but the sampler was made for {expected}")]
    Length {
        /// Logits given.
        found: usize,
        /// Logits expected.
        expected: usize,
    },
}

impl SamplingParams {
    /// Checks all ranges; the error names the parameter.
    pub fn validate(&self) -> Result<(), SamplerError> {
        let check = |param, value: f32, fine: bool, limit| {
            if fine { Ok(()) } else { Err(SamplerError::Param { param, value: f64::from(value), limit }) }
        };
        let (t, p, m, r) = (self.temperature, self.top_p, self.min_p, self.repetition_penalty);
        check("temperature", t, (0.0..=100.0).contains(&t), "0..=100")?;
        check("top_p", p, p > 0.0 && p <= 1.0, "above 0, up to 1")?;
        check("min_p", m, (0.0..=1.0).contains(&m), "0..=1")?;
        check("repetition_penalty", r, r > 0.0 && r <= 100.0, "above 0, up to 100")?;
        for (param, value) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            check(param, value, (-2.0..=2.0).contains(&value), "-2..=2")?;
        }
        for &(_, bias) in &self.logit_bias {
            check("logit_bias", bias, (-100.0..=100.0).contains(&bias), "-100..=100")?;
        }
        Ok(())
    }
}

/// What a row has seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct History<'a> {
    /// The prompt's ids.
    pub prompt: &'a [u32],
    /// The answer's ids up to now.
    pub generated: &'a [u32],
}

impl History<'_> {
    /// Absolute position of the token that is picked next; the generator's counter.
    #[must_use]
    pub fn position(&self) -> u64 {
        (self.prompt.len() + self.generated.len()) as u64
    }
}

/// A uniform number in [0, 1) from a counter: two rounds of the splitmix64 finaliser over seed and position.
#[must_use]
pub fn uniform(seed: u64, position: u64) -> f64 {
    let bits =
        mix(mix(seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_add(position.wrapping_mul(0xd134_2543_de82_ef95)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A row's sampler; allocates only when made.
#[derive(Debug)]
pub struct Sampler {
    params: SamplingParams,
    counts: Vec<u32>,
    candidates: Vec<(u32, f64)>,
}

impl Sampler {
    /// A sampler for `vocabulary` logits.
    pub fn new(params: SamplingParams, vocabulary: usize) -> Result<Sampler, SamplerError> {
        params.validate()?;
        Ok(Sampler { params, counts: vec![0; vocabulary], candidates: Vec::with_capacity(vocabulary) })
    }

    /// The parameters.
    #[must_use]
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Picks the next token. `logits` are changed by bias and penalties.
    pub fn sample(&mut self, logits: &mut [f32], history: History<'_>) -> Result<u32, SamplerError> {
        self.adjust(logits, history)?;
        let best = argmax(logits)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        self.distribute(logits, best);
        let target = uniform(self.params.seed, history.position());
        let mut mass = 0.0;
        for &(id, p) in &self.candidates {
            mass += p;
            if target < mass {
                return Ok(id);
            }
        }
        // Rounding may leave the sum a hair below one: the last candidate with any mass takes the rest.
        Ok(self.candidates.iter().rev().find(|c| c.1 > 0.0).map_or(best, |c| c.0))
    }

    /// Applies bias and penalties in place.
    pub fn adjust(&mut self, logits: &mut [f32], history: History<'_>) -> Result<(), SamplerError> {
        if logits.len() != self.counts.len() {
            return Err(SamplerError::Length { found: logits.len(), expected: self.counts.len() });
        }
        for &(id, bias) in &self.params.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        let SamplingParams { repetition_penalty: r, presence_penalty, frequency_penalty, .. } = self.params;
        if r == 1.0 && presence_penalty == 0.0 && frequency_penalty == 0.0 {
            return Ok(());
        }
        for &id in history.generated {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count = count.saturating_add(1);
            }
        }
        // The top bit marks a token of the prompt; each token is handled once, then its count is cleared.
        const PROMPT: u32 = 1 << 31;
        for &id in history.prompt {
            if let Some(count) = self.counts.get_mut(id as usize) {
                *count |= PROMPT;
            }
        }
        for &id in history.prompt.iter().chain(history.generated) {
            let Some(count) = self.counts.get_mut(id as usize).filter(|c| **c != 0) else { continue };
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / r } else { *logit * r };
            let times = *count & !PROMPT;
            if times > 0 {
                *logit -= presence_penalty + frequency_penalty * times as f32;
            }
            *count = 0;
        }
        Ok(())
    }

    /// Fills `candidates` with (id, probability), renormalised, in the order in which the draw walks them.
    fn distribute(&mut self, logits: &[f32], best: u32) {
        let scale = 1.0 / f64::from(self.params.temperature);
        let top = f64::from(logits[best as usize]);
        let list = &mut self.candidates;
        list.clear();
        let weight = |&logit: &f32| ((f64::from(logit) - top) * scale).exp();
        list.extend((0u32..).zip(logits.iter().map(weight)));
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let k = self.params.top_k as usize;
        if k > 0 && k < list.len() {
            list.select_nth_unstable_by(k - 1, order);
            list.truncate(k);
            list.sort_unstable_by(order);
        }
        if self.params.top_p < 1.0 {
            let p = f64::from(self.params.top_p);
            let total: f64 = list.iter().map(|c| c.1).sum();
            // Tokens below this cannot be in the nucleus: all of them together weigh less than half of 1 - p.
            let cut = 0.5 * (1.0 - p) * total / list.len() as f64;
            list.retain(|c| c.1 >= cut);
            list.sort_unstable_by(order);
            let mut mass = 0.0;
            let kept = list.iter().position(|c| {
                mass += c.1;
                mass >= p * total
            });
            list.truncate(kept.map_or(list.len(), |at| at + 1));
        }
        if self.params.min_p > 0.0 {
            let least = f64::from(self.params.min_p); // the best weighs exactly 1
            list.retain(|c| c.1 >= least);
        }
        let total: f64 = list.iter().map(|c| c.1).sum();
        list.iter_mut().for_each(|c| c.1 /= total);
    }
}

/// The highest logit, the lowest id among equals.
pub fn argmax(logits: &[f32]) -> Result<u32, SamplerError> {
    let (mut best, mut value) = (0, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit.is_nan() || logit == f32::INFINITY {
            return Err(SamplerError::BadLogit { id, value: logit });
        }
        if logit > value {
            (best, value) = (id, logit);
        }
    }
    if value == f32::NEG_INFINITY {
        return Err(SamplerError::AllMasked { vocabulary: logits.len() });
    }
    Ok(best as u32)
}

/// The log-probability of `id`; the `n` best with theirs go into `out`, best first, ties to the lower id. Values are
/// finite: at least [`LOGPROB_FLOOR`].
pub fn top_logprobs(
    logits: &[f32],
    id: u32,
    n: usize,
    out: &mut Vec<(u32, f32)>,
) -> Result<f32, SamplerError> {
    let best = argmax(logits)?;
    let top = f64::from(logits[best as usize]);
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
    let norm = top + total.ln();
    let logprob = |l: f32| ((f64::from(l) - norm) as f32).max(LOGPROB_FLOOR);
    out.clear();
    for (at, &logit) in logits.iter().enumerate() {
        if out.len() == n && out.last().is_none_or(|last| logit <= last.1) {
            continue;
        }
        let place = out.partition_point(|entry| entry.1 >= logit);
        if out.len() == n {
            out.pop();
        }
        out.insert(place, (at as u32, logit));
    }
    out.iter_mut().for_each(|entry| entry.1 = logprob(entry.1));
    let own =
        logits.get(id as usize).ok_or(SamplerError::Length { found: id as usize, expected: logits.len() })?;
    Ok(logprob(*own))
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
