//! temporary
#![allow(missing_docs, dead_code, clippy::all)]
pub mod sampler {
    #[derive(Debug, Clone)]
    pub struct SamplingParams {
        pub temperature: f32,
        pub top_p: f32,
        pub top_k: usize,
        pub min_p: f32,
        pub seed: u64,
        pub repetition_penalty: f32,
        pub presence_penalty: f32,
        pub frequency_penalty: f32,
    }
    impl Default for SamplingParams {
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
            }
        }
    }
    impl SamplingParams {
        pub fn validate(&self) -> Result<(), String> {
            Ok(())
        }
    }
    pub struct Sampler;
    impl Sampler {
        pub fn new(_p: SamplingParams) -> Result<Self, String> {
            Ok(Sampler)
        }
        pub fn sample(&mut self, l: &mut [f32], _h: &[u32]) -> Result<u32, String> {
            let mut best = None;
            let mut bv = f32::NEG_INFINITY;
            for (i, x) in l.iter().enumerate() {
                if *x > bv {
                    bv = *x;
                    best = Some(i as u32);
                }
            }
            best.ok_or("no finite logit".into())
        }
    }
}
pub mod decode {
    #[derive(Default)]
    pub struct StreamDecoder {
        buf: Vec<u8>,
    }
    impl StreamDecoder {
        pub fn new() -> Self {
            Self::default()
        }
        pub fn push(&mut self, b: &[u8]) -> String {
            self.buf.extend_from_slice(b);
            let mut out = String::new();
            loop {
                match std::str::from_utf8(&self.buf) {
                    Ok(s) => {
                        out.push_str(s);
                        self.buf.clear();
                        return out;
                    }
                    Err(e) => {
                        let v = e.valid_up_to();
                        out.push_str(&String::from_utf8_lossy(&self.buf[..v]));
                        match e.error_len() {
                            Some(n) => {
                                out.push('\u{fffd}');
                                self.buf.drain(..v + n);
                            }
                            None => {
                                self.buf.drain(..v);
                                return out;
                            }
                        }
                    }
                }
            }
        }
        pub fn finish(&mut self) -> String {
            let s = String::from_utf8_lossy(&self.buf).into_owned();
            self.buf.clear();
            s
        }
    }
    pub struct StopMatcher {
        stops: Vec<String>,
        held: String,
    }
    impl StopMatcher {
        pub fn new(s: &[String]) -> Self {
            StopMatcher { stops: s.to_vec(), held: String::new() }
        }
        pub fn push(&mut self, t: &str, out: &mut String) -> bool {
            self.held.push_str(t);
            if let Some(at) = self.stops.iter().filter_map(|s| self.held.find(s.as_str())).min() {
                out.push_str(&self.held[..at]);
                self.held.clear();
                return true;
            }
            let mut keep = 0;
            for s in &self.stops {
                for n in 1..s.len() {
                    if s.is_char_boundary(n) && self.held.ends_with(&s[..n]) {
                        keep = keep.max(n);
                    }
                }
            }
            let cut = self.held.len() - keep;
            out.push_str(&self.held[..cut]);
            self.held.drain(..cut);
            false
        }
        pub fn finish(&mut self, out: &mut String) {
            out.push_str(&self.held);
            self.held.clear();
        }
    }
}
