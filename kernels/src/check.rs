//! The plan checker: proves on the CPU, without weights, that a plan's data flow is sound.
use crate::buffer::{Arena, BufId};
use crate::plan::Plan;
use ledger::{Direction, StepFacts};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// A fault in a plan. Names the launch and the buffers.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PlanFault {
    /// A value is read before any launch wrote it.
    #[error("launch {launch} ({op}) reads buffer '{buffer}' that no earlier launch wrote")]
    ReadBeforeWrite {
        /// Launch.
        launch: usize,
        /// Its operation.
        op: String,
        /// Buffer.
        buffer: String,
    },
    /// Two buffers that are alive together share bytes.
    #[error("buffers '{a}' and '{b}' share bytes of {arena:?} and are both alive at launch {launch}")]
    Alias {
        /// First buffer.
        a: String,
        /// Second buffer.
        b: String,
        /// Arena.
        arena: Arena,
        /// A launch at which both are alive.
        launch: usize,
    },
    /// A buffer leaves its arena.
    #[error("buffer '{buffer}' ends at byte {end}, its arena {arena:?} at {limit}")]
    OutOfArena {
        /// Buffer.
        buffer: String,
        /// Arena.
        arena: Arena,
        /// End of the buffer.
        end: u64,
        /// End of the arena.
        limit: u64,
    },
    /// An account exceeds its buffer at the bucket's maximum.
    #[error("launch {launch} ({op}) accounts {bytes} B of buffer '{buffer}', which holds {limit} B")]
    AccountTooLarge {
        /// Launch.
        launch: usize,
        /// Its operation.
        op: String,
        /// Buffer.
        buffer: String,
        /// Accounted bytes.
        bytes: u64,
        /// Bytes of the buffer.
        limit: u64,
    },
    /// A value is written and never read, and is not an output.
    #[error("launch {launch} writes scratch buffer '{buffer}' that nothing reads")]
    DeadWrite {
        /// Launch.
        launch: usize,
        /// Buffer.
        buffer: String,
    },
}

/// Checks `plan` at `max`, the facts of a step that fills its bucket. Returns every fault.
pub fn check(plan: &Plan, max: &StepFacts) -> Vec<PlanFault> {
    let mut faults = Vec::new();
    bounds(plan, &mut faults);
    flow(plan, max, &mut faults);
    aliases(plan, &mut faults);
    faults
}

fn bounds(plan: &Plan, faults: &mut Vec<PlanFault>) {
    for b in &plan.buffers {
        let limit = plan.arena_bytes[b.arena as usize];
        let end = b.offset.saturating_add(b.bytes);
        if end > limit {
            faults.push(PlanFault::OutOfArena { buffer: b.name.clone(), arena: b.arena, end, limit });
        }
    }
}

fn flow(plan: &Plan, max: &StepFacts, faults: &mut Vec<PlanFault>) {
    let mut written: BTreeSet<BufId> = BTreeSet::new();
    let mut unread: BTreeMap<BufId, usize> = BTreeMap::new();
    for (index, launch) in plan.launches.iter().enumerate() {
        let accesses = || launch.parts.iter().flat_map(|p| &p.accesses);
        // Routing has two phases: its rows write the choices, then one item groups them. It alone may read what
        // it wrote itself; any other update needs an earlier writer and a later reader.
        let own = |buf: BufId, d: Direction| accesses().any(|o| o.buf == buf && o.direction == d);
        let routes = matches!(launch.op, crate::launch::Op::Route(_));
        for a in accesses().filter(|a| a.direction == Direction::Read) {
            let b = plan.buffer(a.buf);
            let two_phase = routes && own(a.buf, Direction::Write);
            if b.arena == Arena::Scratch && !written.contains(&a.buf) && !two_phase {
                faults.push(PlanFault::ReadBeforeWrite {
                    launch: index,
                    op: launch.op.name(),
                    buffer: b.name.clone(),
                });
            }
            unread.remove(&a.buf);
        }
        for a in accesses() {
            let b = plan.buffer(a.buf);
            let bytes = a.amount.at(max).0;
            if bytes > b.bytes {
                let (op, buffer) = (launch.op.name(), b.name.clone());
                faults.push(PlanFault::AccountTooLarge { launch: index, op, buffer, bytes, limit: b.bytes });
            }
            if a.direction == Direction::Write {
                written.insert(a.buf);
                if b.arena == Arena::Scratch && !(routes && own(a.buf, Direction::Read)) {
                    unread.insert(a.buf, index);
                }
            }
        }
    }
    for (buf, launch) in unread {
        // The residual's last accumulate is read by the final norm, so nothing legitimate stays unread.
        faults.push(PlanFault::DeadWrite { launch, buffer: plan.buffer(buf).name.clone() });
    }
}

fn aliases(plan: &Plan, faults: &mut Vec<PlanFault>) {
    let lifetimes = plan.lifetimes();
    let whole = (0, plan.launches.len().saturating_sub(1));
    for arena in Arena::ALL {
        let mut ids: Vec<BufId> = (0..plan.buffers.len() as u32)
            .map(BufId)
            .filter(|id| plan.buffer(*id).arena == arena && plan.buffer(*id).bytes > 0)
            .filter(|id| arena != Arena::Scratch || lifetimes.contains_key(id))
            .collect();
        ids.sort_by_key(|id| plan.buffer(*id).offset);
        for (i, a) in ids.iter().enumerate() {
            let (ba, la) = (plan.buffer(*a), lifetimes.get(a).copied().unwrap_or(whole));
            for b in &ids[i + 1..] {
                let (bb, lb) = (plan.buffer(*b), lifetimes.get(b).copied().unwrap_or(whole));
                if bb.offset >= ba.offset + ba.bytes {
                    break;
                }
                let same_weight = arena == Arena::Weights && ba.offset == bb.offset && ba.bytes == bb.bytes;
                if la.0 <= lb.1 && lb.0 <= la.1 && !same_weight {
                    let (a, b) = (ba.name.clone(), bb.name.clone());
                    faults.push(PlanFault::Alias { a, b, arena, launch: la.0.max(lb.0) });
                }
            }
        }
    }
}
