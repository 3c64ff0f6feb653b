//! The two seams of the room: what a step engine and a text model must offer.
//!
//! Both are resolved statically, so the step path holds no `dyn`.

use std::fmt::Debug;
use std::hash::Hash;

use serde_json::{Map, Value};

/// What the receipt and the memory plan allow; the scheduler never exceeds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLimits {
    /// Rows of the largest qualified step.
    pub max_batch: usize,
    /// Tokens of the longest qualified sequence, prompt and answer together.
    pub max_context: usize,
    /// Tokens of one prefill chunk of the fixed position grid.
    pub prefill_chunk: usize,
    /// Entries of a logits row.
    pub vocab: usize,
    /// KV pages of the arena.
    pub pages: usize,
    /// Tokens that one page holds.
    pub page_tokens: usize,
    /// Recurrent-state slots of the pool.
    pub slots: usize,
}

impl EngineLimits {
    /// Rows that may be resident at once: qualified rows or slots, the smaller.
    pub fn rows(&self) -> usize {
        self.max_batch.min(self.slots)
    }

    /// The longest sequence that an otherwise empty engine can hold, in tokens.
    pub fn longest(&self) -> usize {
        self.max_context.min(self.pages.saturating_mul(self.page_tokens))
    }
}

/// Why an engine call did not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Not enough of a pooled resource now; may succeed after a release.
    #[error("{what} exhausted: {need} needed, {have} free")]
    Exhausted {
        /// The resource.
        what: &'static str,
        /// Units asked for.
        need: usize,
        /// Units free.
        have: usize,
    },
    /// The sequence can never fit.
    #[error("sequence of {tokens} tokens exceeds the limit of {limit}")]
    TooLong {
        /// Prompt and answer tokens together.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// The engine cannot continue; it is dropped and never called again.
    #[error("engine failed: {0}")]
    Fatal(String),
}

/// A batched decoder owned by one thread.
pub trait StepEngine: Send + 'static {
    /// Generation-counted identity of a resident sequence.
    type Seq: Copy + Eq + Hash + Send + Debug;

    /// Fixed limits of this engine.
    fn limits(&self) -> EngineLimits;

    /// Reserves a slot and the pages for prompt and answer together, so that an
    /// admitted sequence can always run to its end.
    ///
    /// # Errors
    /// `Exhausted` when it does not fit now, `TooLong` when it never will.
    fn admit(&mut self, prompt: &[u32], max_new_tokens: usize) -> Result<Self::Seq, EngineError>;

    /// Runs one grid chunk of the prompt; `true` when the prompt is done and its
    /// last logits are ready.
    ///
    /// # Errors
    /// Any error but `Fatal` fails this sequence alone.
    fn prefill(&mut self, seq: Self::Seq) -> Result<bool, EngineError>;

    /// Feeds one token to each row and computes their next logits.
    ///
    /// # Errors
    /// Every error is fatal: rows may be half advanced.
    fn step(&mut self, rows: &[(Self::Seq, u32)]) -> Result<(), EngineError>;

    /// The last logits of a sequence, valid until its next prefill or step.
    fn logits(&mut self, seq: Self::Seq) -> &mut [f32];

    /// Returns slot and pages of a sequence in any state.
    fn release(&mut self, seq: Self::Seq);

    /// Saves a sequence out of its slot.
    ///
    /// # Errors
    /// When it cannot be saved.
    fn evict(&mut self, seq: Self::Seq) -> Result<(), EngineError>;

    /// Brings an evicted sequence back; `false` when there is no room yet.
    ///
    /// # Errors
    /// When the saved state is unusable.
    fn restore(&mut self, seq: Self::Seq) -> Result<bool, EngineError>;
}

/// One turn of a conversation, as the template sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, `tool` or `developer`.
    pub role: String,
    /// The text of the turn, its parts joined.
    pub content: String,
    /// Other fields of the message (`name`, `tool_call_id`, ...), verbatim.
    pub fields: Map<String, Value>,
}

/// Tokenizer and chat template of the served model.
pub trait TextModel: Send + Sync + 'static {
    /// Renders the chat template and tokenises the result.
    ///
    /// # Errors
    /// The template's own message.
    fn chat(&self, messages: &[ChatMessage], extra: &Map<String, Value>) -> Result<Vec<u32>, String>;

    /// Tokenises plain text; special-token text is encoded as text.
    ///
    /// # Errors
    /// The tokenizer's message.
    fn encode(&self, text: &str) -> Result<Vec<u32>, String>;

    /// Bytes of one token; empty for an unknown id.
    fn token_bytes(&self, id: u32) -> &[u8];

    /// Tokens that end an answer.
    fn stop_ids(&self) -> &[u32];

    /// Whether a token is a control token that is never shown.
    fn is_special(&self, id: u32) -> bool;
}
