//! Plans: every shape, address and launch of a step, fixed once per bucket.
use crate::access::Access;
use crate::buffer::{Arena, BUFFER_ALIGN, BufId, Buffer};
use crate::io::Io;
use crate::launch::{Launch, Op};
use crate::numeric::NumericClass;
use ledger::{Account, Direction, Line, ReadFrom, TrafficClass};
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum sizes a plan is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Rows of a step.
    pub rows: usize,
    /// Sequences of a step.
    pub seqs: usize,
    /// Rows with logits.
    pub out_rows: usize,
    /// Longest sequence in tokens.
    pub context: usize,
    /// Pages of the KV arena.
    pub pages: usize,
    /// State slots.
    pub slots: usize,
    /// Whether each sequence has exactly one row.
    pub decode: bool,
}

/// A finished plan.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Numeric class.
    pub class: NumericClass,
    /// Bucket.
    pub bucket: Bucket,
    /// Buffers.
    pub buffers: Vec<Buffer>,
    /// Launches in order.
    pub launches: Vec<Launch>,
    /// Inputs and outputs.
    pub io: Io,
    /// Bytes of each arena, in the order of [`Arena::ALL`].
    pub arena_bytes: [u64; 4],
    /// Floats of scratch a host thread needs.
    pub thread_scratch: usize,
}

/// First and last launch that touches a scratch buffer.
pub(crate) type Lifetime = (usize, usize);

impl Plan {
    /// Graph nodes of the step.
    pub fn nodes(&self) -> u64 {
        self.launches.iter().map(|l| u64::from(l.nodes)).sum()
    }

    /// A buffer.
    pub fn buffer(&self, id: BufId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }

    /// Ledger lines of all launches, with the producer of every activation and scratch read.
    pub fn lines(&self) -> Vec<Line> {
        let mut last_writer: BTreeMap<BufId, usize> = BTreeMap::new();
        let mut lines = Vec::new();
        for (index, launch) in self.launches.iter().enumerate() {
            for part in &launch.parts {
                let mut account = Account::default();
                let mut reads_from = Vec::new();
                for access in &part.accesses {
                    let class = self.buffer(access.buf).class;
                    account.add(class, access.direction, access.amount.clone());
                    let flows = matches!(class, TrafficClass::Activation | TrafficClass::Scratch);
                    if let (Direction::Read, true, Some(&producer)) =
                        (access.direction, flows, last_writer.get(&access.buf))
                    {
                        reads_from.push(ReadFrom { class, producer, amount: access.amount.clone() });
                    }
                }
                lines.push(Line {
                    launch: index,
                    op: launch.op.name(),
                    name: part.name.clone(),
                    kind: launch.kind.into(),
                    layer: launch.layer,
                    account,
                    reads_from,
                });
            }
            for access in launch.parts.iter().flat_map(|p| &p.accesses) {
                if access.direction == Direction::Write {
                    last_writer.insert(access.buf, index);
                }
            }
        }
        lines
    }

    /// Lifetimes of the scratch buffers, from their accesses.
    pub(crate) fn lifetimes(&self) -> BTreeMap<BufId, Lifetime> {
        let mut out: BTreeMap<BufId, Lifetime> = BTreeMap::new();
        for (index, access) in self.accesses() {
            if self.buffer(access.buf).arena == Arena::Scratch {
                out.entry(access.buf).and_modify(|l| l.1 = index).or_insert((index, index));
            }
        }
        out
    }

    /// All accesses with the index of their launch.
    pub fn accesses(&self) -> impl Iterator<Item = (usize, &Access)> {
        self.launches
            .iter()
            .enumerate()
            .flat_map(|(i, l)| l.parts.iter().flat_map(move |p| p.accesses.iter().map(move |a| (i, a))))
    }
}

/// Builds a plan launch by launch.
pub struct PlanBuilder {
    class: NumericClass,
    bucket: Bucket,
    buffers: Vec<Buffer>,
    launches: Vec<Launch>,
    next: [u64; 4],
    kind: &'static str,
    layer: Option<u16>,
}

impl PlanBuilder {
    /// An empty plan for `bucket`.
    pub fn new(class: NumericClass, bucket: Bucket) -> Self {
        let (buffers, launches) = (Vec::new(), Vec::new());
        Self { class, bucket, buffers, launches, next: [0; 4], kind: "embed", layer: None }
    }

    /// The bucket.
    pub fn bucket(&self) -> &Bucket {
        &self.bucket
    }

    /// The numeric class.
    pub fn class(&self) -> NumericClass {
        self.class
    }

    /// Names the layer that the next launches belong to.
    pub fn layer(&mut self, kind: &'static str, layer: Option<u16>) {
        self.kind = kind;
        self.layer = layer;
    }

    /// A weight at a fixed offset of the pack's payload.
    pub fn weight(&mut self, name: &str, offset: u64, bytes: u64) -> BufId {
        self.next[Arena::Weights as usize] = self.next[Arena::Weights as usize].max(offset + bytes);
        self.push(name.into(), Arena::Weights, TrafficClass::Weight, bytes, offset)
    }

    /// A buffer of the cache arena; every plan of a process must ask for the same ones in the same order.
    pub fn cache(&mut self, name: String, class: TrafficClass, bytes: u64) -> BufId {
        self.placed(name, Arena::Cache, class, bytes)
    }

    /// A step input or output.
    pub fn io(&mut self, name: &str, bytes: u64) -> BufId {
        self.placed(name.into(), Arena::Io, TrafficClass::Activation, bytes)
    }

    /// A value inside the step; its address is chosen when the plan is finished.
    pub fn scratch(&mut self, name: &str, bytes: u64) -> BufId {
        self.push(name.into(), Arena::Scratch, TrafficClass::Activation, bytes, 0)
    }

    /// Adds a launch: the account is derived from the operation, there is no other way in.
    pub fn launch(&mut self, op: Op) {
        let parts = op.parts();
        self.launches.push(Launch { op, kind: self.kind, layer: self.layer, parts, nodes: 1 });
    }

    fn placed(&mut self, name: String, arena: Arena, class: TrafficClass, bytes: u64) -> BufId {
        let offset = self.next[arena as usize];
        // Saturates: a plan beyond 2^64 bytes is refused by its builder, which compares the arenas with a limit.
        self.next[arena as usize] =
            offset.saturating_add(bytes).min(u64::MAX - BUFFER_ALIGN).next_multiple_of(BUFFER_ALIGN);
        self.push(name, arena, class, bytes, offset)
    }

    fn push(&mut self, name: String, arena: Arena, class: TrafficClass, bytes: u64, offset: u64) -> BufId {
        let id = BufId(u32::try_from(self.buffers.len()).expect("a plan has far fewer than 2^32 buffers"));
        self.buffers.push(Buffer { name, arena, class, bytes, offset });
        id
    }

    /// Places the scratch buffers and closes the plan.
    pub fn finish(self, io: Io) -> Plan {
        let mut plan = Plan {
            class: self.class,
            bucket: self.bucket,
            buffers: self.buffers,
            launches: self.launches,
            io,
            arena_bytes: self.next,
            thread_scratch: 0,
        };
        plan.arena_bytes[Arena::Scratch as usize] = place_scratch(&mut plan);
        plan.thread_scratch = crate::host::thread_scratch(&plan);
        plan
    }
}

/// First-fit placement by lifetime, largest first: two buffers share bytes only if never alive together.
fn place_scratch(plan: &mut Plan) -> u64 {
    let lifetimes = plan.lifetimes();
    let mut order: Vec<(BufId, Lifetime)> = lifetimes.into_iter().collect();
    order.sort_by_key(|(id, life)| (std::cmp::Reverse(plan.buffer(*id).bytes), life.0, *id));
    let mut placed: Vec<(u64, u64, Lifetime)> = Vec::new();
    let mut total = 0;
    for (id, life) in order {
        let bytes = plan.buffer(id).bytes.next_multiple_of(BUFFER_ALIGN);
        let mut busy: Vec<(u64, u64)> = placed
            .iter()
            .filter(|(_, _, other)| life.0 <= other.1 && other.0 <= life.1)
            .map(|(start, end, _)| (*start, *end))
            .collect();
        busy.sort_unstable();
        let mut at = 0;
        for (start, end) in busy {
            if at + bytes <= start {
                break;
            }
            at = at.max(end);
        }
        plan.buffers[id.0 as usize].offset = at;
        placed.push((at, at + bytes, life));
        total = total.max(at + bytes);
    }
    total
}
