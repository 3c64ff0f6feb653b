//! The step's inputs and outputs: buffers the engine fills before a step and reads after it.
use crate::buffer::BufId;
use serde::Serialize;

/// Buffers of the Io arena. All integers are u32.
#[derive(Clone, Debug, Serialize)]
pub struct Io {
    /// `[rows]` token ids.
    pub tokens: BufId,
    /// `[rows]` absolute position of each row in its sequence.
    pub pos: BufId,
    /// `[rows]` index of each row's sequence in this step.
    pub seg: BufId,
    /// `[rows]` cache slot of each row: page x page tokens + position in the page.
    pub kv_slot: BufId,
    /// `[seqs + 1]` first row of each sequence.
    pub seg_start: BufId,
    /// `[seqs]` state slot of each sequence.
    pub slot: BufId,
    /// `[seqs][max_pages]` pages of each sequence.
    pub table: BufId,
    /// `[out_rows]` rows whose logits are wanted.
    pub out_index: BufId,
    /// `[out_rows][vocab]` f32.
    pub logits: BufId,
    /// `[out_rows]` argmax of the logits.
    pub chosen: BufId,
    /// For each MoE layer, `[experts]` rows routed to each expert.
    pub expert_counts: Vec<BufId>,
    /// For each MoE layer, `[rows, top_k]` chosen experts: an output, so that routes can be recorded.
    pub expert_ids: Vec<BufId>,
    /// Row length of `table`.
    pub max_pages: usize,
    /// The draft head's own, where the plan ends in one.
    pub draft: Option<DraftIo>,
}

/// Inputs and outputs of a draft head: from a row's last hidden value and the token that follows the row, the
/// token after that one.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DraftIo {
    /// `[rows]` the token that follows each row. A decode step takes its own greedy choice: this is `chosen`.
    pub next: BufId,
    /// `[out_rows][vocab]` f32.
    pub logits: BufId,
    /// `[out_rows]` argmax of the logits.
    pub chosen: BufId,
}
