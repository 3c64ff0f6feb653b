//! Accesses: what a launch reads and writes, per buffer. Accounts are derived from them, the plan checker
//! proves data flow with them, and the checked host mode compares them with the bytes really touched.
use crate::buffer::BufId;
use ledger::{Amount, Direction};
use serde::Serialize;

/// Distinct bytes of one buffer that a part of a launch reads or writes.
#[derive(Clone, Debug, Serialize)]
pub struct Access {
    /// Buffer.
    pub buf: BufId,
    /// Direction.
    pub direction: Direction,
    /// Distinct bytes as a function of the step's facts.
    pub amount: Amount,
}

/// One ledger line of a launch: a name and its accesses.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// What it computes, e.g. `mlp.down`.
    pub name: String,
    /// Accesses.
    pub accesses: Vec<Access>,
}

impl Part {
    /// A part without accesses yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), accesses: Vec::new() }
    }

    /// Adds a read.
    pub fn read(mut self, buf: BufId, amount: Amount) -> Self {
        self.accesses.push(Access { buf, direction: Direction::Read, amount });
        self
    }

    /// Adds a write.
    pub fn write(mut self, buf: BufId, amount: Amount) -> Self {
        self.accesses.push(Access { buf, direction: Direction::Write, amount });
        self
    }

    /// Adds a read and a write of the same bytes.
    pub fn update(self, buf: BufId, amount: Amount) -> Self {
        self.read(buf, amount.clone()).write(buf, amount)
    }
}
