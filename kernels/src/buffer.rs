//! Buffers: every byte a plan touches belongs to a named buffer of one of four arenas.
use ledger::TrafficClass;
use serde::Serialize;

/// Index of a buffer in its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct BufId(pub u32);

/// The four allocations of a process. All plans share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Arena {
    /// The pack's payload, read only.
    Weights,
    /// KV pages and state slots; lives across steps.
    Cache,
    /// Values inside one step; offsets are packed by lifetime.
    Scratch,
    /// Step inputs and outputs: tokens, positions, tables, logits, chosen tokens, expert counts.
    Io,
}

impl Arena {
    /// All arenas.
    pub const ALL: [Self; 4] = [Self::Weights, Self::Cache, Self::Scratch, Self::Io];
}

/// A named range of an arena.
#[derive(Clone, Debug, Serialize)]
pub struct Buffer {
    /// Name, unique in the plan.
    pub name: String,
    /// Arena.
    pub arena: Arena,
    /// Traffic class of its bytes.
    pub class: TrafficClass,
    /// Size in bytes at the bucket's maximum.
    pub bytes: u64,
    /// Byte offset in the arena; for scratch assigned when the plan is finished.
    pub offset: u64,
}

/// Alignment of every buffer in bytes: a cache line, and more than any vector load needs.
pub const BUFFER_ALIGN: u64 = 128;
