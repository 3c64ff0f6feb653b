//! A scripted engine and a byte tokenizer: the whole serving half without weights.
#![allow(dead_code)]

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};
use sparkpipe::scheduler::{
    ChatMessage, Config, EngineError, EngineLimits, Event, Finish, Generation, Request, SamplingParams,
    Scheduler, StepEngine, TextModel, Usage, spawn,
};

pub const EOS: u32 = 256;
/// Tokens from here on are the extra pieces of a `ByteText`.
pub const PIECES: u32 = 260;
pub const VOCAB: usize = 400;

/// Bytes are tokens, plus an end token and optional multi-byte pieces.
pub struct ByteText {
    bytes: Vec<Vec<u8>>,
}

impl ByteText {
    pub fn new(pieces: &[&[u8]]) -> Self {
        let mut bytes: Vec<Vec<u8>> = (0..=255u8).map(|b| vec![b]).collect();
        bytes.extend([b"<|end|>".to_vec(), b"<|a|>".to_vec(), b"<|b|>".to_vec(), b"<|c|>".to_vec()]);
        bytes.extend(pieces.iter().map(|piece| piece.to_vec()));
        ByteText { bytes }
    }
}

impl TextModel for ByteText {
    fn chat(&self, messages: &[ChatMessage], extra: &Map<String, Value>) -> Result<Vec<u32>, String> {
        let mut last = "";
        let mut tokens = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            if message.role == "system" && index > 0 {
                return Err("System message must be first.".into());
            }
            if message.role == last {
                return Err("Conversation roles must alternate user/assistant.".into());
            }
            last = &message.role;
            tokens.extend(message.content.bytes().map(u32::from));
        }
        if let Some(suffix) = extra.get("suffix").and_then(Value::as_str) {
            tokens.extend(suffix.bytes().map(u32::from));
        }
        Ok(tokens)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn token_bytes(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], Vec::as_slice)
    }

    fn stop_ids(&self) -> &[u32] {
        &[EOS]
    }

    fn is_special(&self, id: u32) -> bool {
        (EOS..PIECES).contains(&id)
    }
}

type Script = Arc<dyn Fn(&[u32], usize) -> Vec<(u32, f32)> + Send + Sync>;

/// What a test sees and steers while the engine runs on its thread.
#[derive(Clone)]
pub struct Knobs {
    pub free_slots: Arc<AtomicUsize>,
    pub free_pages: Arc<AtomicUsize>,
    pub steps: Arc<AtomicUsize>,
    pub peak: Arc<AtomicUsize>,
    /// Sequences of the engine, saved ones too (each admitted and not yet released).
    pub resident: Arc<AtomicUsize>,
    /// Order in which prompts finished prefill, by first token of the prompt.
    pub prefilled: Arc<Mutex<Vec<u32>>>,
    /// The longest run of prefill chunks between two steps while a row could decode.
    pub chunks_between: Arc<AtomicUsize>,
    pub fail_step: Arc<AtomicBool>,
    pub panic_step: Arc<AtomicBool>,
    pub hang: Arc<AtomicBool>,
    pub step_ms: Arc<AtomicUsize>,
    pub prefill_ms: Arc<AtomicUsize>,
    /// Sequences saved now, and the most there ever were.
    pub saved: Arc<AtomicUsize>,
    pub most_saved: Arc<AtomicUsize>,
    pub evictions: Arc<AtomicUsize>,
    pub fail_restore: Arc<AtomicBool>,
}

struct Seq {
    tokens: Vec<u32>,
    prompt: usize,
    filled: usize,
    pages: usize,
    row: Vec<f32>,
    saved: bool,
}

/// Deterministic engine: the logits of a sequence depend on its own tokens only.
pub struct Fake {
    limits: EngineLimits,
    seqs: HashMap<u64, Seq>,
    next: u64,
    script: Script,
    pub knobs: Knobs,
    chunks: usize,
}

pub fn limits(max_batch: usize) -> EngineLimits {
    EngineLimits {
        max_batch,
        max_context: 256,
        prefill_chunk: 16,
        vocab: VOCAB,
        pages: 16 * max_batch,
        page_tokens: 16,
        slots: max_batch,
    }
}

impl Fake {
    /// `script(prompt, i)` gives the non-masked logits of answer token `i`.
    pub fn new(
        limits: EngineLimits,
        script: impl Fn(&[u32], usize) -> Vec<(u32, f32)> + Send + Sync + 'static,
    ) -> Self {
        let knobs = Knobs {
            free_slots: Arc::new(limits.slots.into()),
            free_pages: Arc::new(limits.pages.into()),
            steps: Arc::default(),
            peak: Arc::default(),
            resident: Arc::default(),
            prefilled: Arc::default(),
            chunks_between: Arc::default(),
            fail_step: Arc::default(),
            panic_step: Arc::default(),
            hang: Arc::default(),
            step_ms: Arc::default(),
            prefill_ms: Arc::default(),
            saved: Arc::default(),
            most_saved: Arc::default(),
            evictions: Arc::default(),
            fail_restore: Arc::default(),
        };
        Fake { limits, seqs: HashMap::new(), next: 1, script: Arc::new(script), knobs, chunks: 0 }
    }

    /// Says the given tokens, then the end token, whatever the prompt.
    pub fn saying(limits: EngineLimits, tokens: Vec<u32>) -> Self {
        Fake::new(limits, move |_, i| vec![(tokens.get(i).copied().unwrap_or(EOS), 0.0)])
    }

    /// Says a letter that depends on every token before it, and never ends.
    pub fn hashing(limits: EngineLimits) -> Self {
        Fake::new(limits, |prompt, i| {
            let hash = prompt.iter().fold(i as u64 + 7, |h, t| {
                h.wrapping_mul(6364136223846793005).wrapping_add(u64::from(*t) + 1442695040888963407)
            });
            vec![(97 + ((hash >> 33) % 26) as u32, 1.0), (65, 0.0)]
        })
    }

    fn fill(&mut self, id: u64) {
        let Some(seq) = self.seqs.get_mut(&id) else { return };
        seq.row.fill(f32::NEG_INFINITY);
        for (token, logit) in (self.script)(&seq.tokens[..seq.prompt], seq.tokens.len() - seq.prompt) {
            seq.row[token as usize] = logit;
        }
    }

    fn take(&self, pages: usize) -> Result<(), EngineError> {
        let have = self.knobs.free_pages.load(SeqCst);
        if pages > have {
            return Err(EngineError::Exhausted { what: "pages", need: pages, have });
        }
        if self.knobs.free_slots.load(SeqCst) == 0 {
            return Err(EngineError::Exhausted { what: "slots", need: 1, have: 0 });
        }
        self.knobs.free_pages.fetch_sub(pages, SeqCst);
        self.knobs.free_slots.fetch_sub(1, SeqCst);
        Ok(())
    }

    fn give(&self, pages: usize) {
        self.knobs.free_pages.fetch_add(pages, SeqCst);
        self.knobs.free_slots.fetch_add(1, SeqCst);
    }

    fn wait(&self, ms: &AtomicUsize) {
        std::thread::sleep(Duration::from_millis(ms.load(SeqCst) as u64));
        while self.knobs.hang.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl StepEngine for Fake {
    type Seq = u64;

    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn admit(&mut self, prompt: &[u32], max_new_tokens: usize) -> Result<u64, EngineError> {
        let tokens = prompt.len() + max_new_tokens;
        if tokens > self.limits.max_context {
            return Err(EngineError::TooLong { tokens, limit: self.limits.max_context });
        }
        let pages = tokens.div_ceil(self.limits.page_tokens);
        self.take(pages)?;
        self.knobs.resident.fetch_add(1, SeqCst);
        let id = self.next;
        self.next += 1;
        let row = vec![0.0; self.limits.vocab];
        self.seqs.insert(
            id,
            Seq { tokens: prompt.to_vec(), prompt: prompt.len(), filled: 0, pages, row, saved: false },
        );
        Ok(id)
    }

    fn prefill(&mut self, id: u64) -> Result<bool, EngineError> {
        self.wait(&self.knobs.prefill_ms.clone());
        let decoding = self.seqs.values().any(|seq| seq.filled >= seq.prompt);
        self.chunks = if decoding { self.chunks + 1 } else { 0 };
        self.knobs.chunks_between.fetch_max(self.chunks, SeqCst);
        let seq = self.seqs.get_mut(&id).expect("prefill of a released sequence");
        assert!(!seq.saved, "prefill of a saved sequence");
        assert!(seq.filled < seq.prompt, "prefill after the prompt was done");
        seq.filled = (seq.filled + self.limits.prefill_chunk).min(seq.prompt);
        let done = seq.filled == seq.prompt;
        if done {
            self.knobs.prefilled.lock().expect("not poisoned").push(seq.tokens[0]);
            self.fill(id);
        }
        Ok(done)
    }

    fn step(&mut self, rows: &[(u64, u32)]) -> Result<(), EngineError> {
        self.chunks = 0;
        self.wait(&self.knobs.step_ms.clone());
        assert!(!self.knobs.panic_step.load(SeqCst), "scripted panic");
        if self.knobs.fail_step.load(SeqCst) {
            return Err(EngineError::Fatal("scripted device loss".into()));
        }
        assert!(!rows.is_empty() && rows.len() <= self.limits.max_batch, "step of {} rows", rows.len());
        self.knobs.steps.fetch_add(1, SeqCst);
        self.knobs.peak.fetch_max(rows.len(), SeqCst);
        for (id, token) in rows {
            let seq = self.seqs.get_mut(id).expect("step of a released sequence");
            assert_eq!(seq.filled, seq.prompt, "step of an unfinished prompt");
            assert!(!seq.saved, "step of a saved sequence");
            seq.tokens.push(*token);
            assert!(seq.tokens.len() <= self.limits.max_context, "step beyond the context limit");
            self.fill(*id);
        }
        Ok(())
    }

    fn logits(&mut self, id: u64) -> &mut [f32] {
        &mut self.seqs.get_mut(&id).expect("logits of a released sequence").row
    }

    fn release(&mut self, id: u64) {
        let seq = self.seqs.remove(&id).expect("released twice");
        if seq.saved {
            self.knobs.saved.fetch_sub(1, SeqCst);
        } else {
            self.give(seq.pages);
        }
        self.knobs.resident.fetch_sub(1, SeqCst);
    }

    fn evict(&mut self, id: u64) -> Result<(), EngineError> {
        let seq = self.seqs.get_mut(&id).expect("evicted after its release");
        assert!(!seq.saved, "saved twice");
        seq.saved = true;
        let pages = seq.pages;
        self.give(pages);
        self.knobs.evictions.fetch_add(1, SeqCst);
        let saved = self.knobs.saved.fetch_add(1, SeqCst) + 1;
        self.knobs.most_saved.fetch_max(saved, SeqCst);
        Ok(())
    }

    fn restore(&mut self, id: u64) -> Result<bool, EngineError> {
        let pages = self.seqs.get(&id).map(|s| (s.saved, s.pages));
        let Some((true, pages)) = pages else { panic!("restored what was not saved") };
        if self.knobs.fail_restore.load(SeqCst) {
            return Err(EngineError::TooLong { tokens: 1, limit: 0 });
        }
        if self.take(pages).is_err() {
            return Ok(false);
        }
        self.seqs.get_mut(&id).expect("looked up above").saved = false;
        self.knobs.saved.fetch_sub(1, SeqCst);
        Ok(true)
    }
}

pub fn config() -> Config {
    Config { queue: 64, call_limit: Duration::from_secs(20), ..Config::default() }
}

pub fn start(engine: Fake, config: Config) -> (Scheduler, Knobs) {
    start_text(engine, ByteText::new(&[]), config)
}

pub fn start_text(engine: Fake, text: ByteText, config: Config) -> (Scheduler, Knobs) {
    let knobs = engine.knobs.clone();
    (spawn(engine, Arc::new(text), config).expect("threads"), knobs)
}

pub fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..SamplingParams::default() }
}

pub fn request(prompt: &str, max_new_tokens: usize) -> Request {
    Request {
        prompt: prompt.bytes().map(u32::from).collect(),
        max_new_tokens,
        sampling: greedy(),
        stop: Vec::new(),
        logprobs: None,
        ignore_stop_ids: false,
        deadline: Duration::from_secs(30),
    }
}

pub async fn finish(
    mut generation: Generation,
) -> Result<(String, Finish, Usage), sparkpipe::scheduler::Failure> {
    let mut text = String::new();
    loop {
        match generation.next().await.expect("an outcome") {
            Event::Delta(delta) => text.push_str(&delta.text),
            Event::Done(finish, usage) => return Ok((text, finish, usage)),
            Event::Failed(failure) => return Err(failure),
        }
    }
}

/// Waits until `holds`, at most `limit`; says whether it came to hold.
pub async fn within(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > limit {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    true
}
