//! The step ledger: the lines of a plan, evaluated at facts, with touched and dram bytes apart.
use crate::account::{Account, Direction, Traffic, TrafficClass};
use crate::facts::StepFacts;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// One line of the ledger: an operation (or one fused part of it) of one launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Index of the launch in the plan.
    pub launch: usize,
    /// Operation, with numeric class and format, e.g. `linear/bf16xbf16`.
    pub op: String,
    /// What the line computes, e.g. `mlp.down`.
    pub name: String,
    /// Kind of layer it belongs to, e.g. `delta`, `attention`, `mlp`, `head`.
    pub kind: String,
    /// Layer index; absent for embedding and head.
    pub layer: Option<u16>,
    /// Bytes as a function of the facts.
    pub account: Account,
    /// For each activation or scratch read: the launch that wrote it last in the same step.
    pub reads_from: Vec<ReadFrom>,
}

/// A read of a value that an earlier launch of the same step wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadFrom {
    /// Class of the buffer.
    pub class: TrafficClass,
    /// Launch that wrote it.
    pub producer: usize,
    /// Bytes read.
    pub amount: crate::account::Amount,
}

/// A line evaluated at facts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluatedLine {
    /// Launch index.
    pub launch: usize,
    /// Operation.
    pub op: String,
    /// Name.
    pub name: String,
    /// Layer kind.
    pub kind: String,
    /// Layer.
    pub layer: Option<u16>,
    /// Distinct bytes the line touches.
    pub touched: Traffic,
    /// Bytes of those expected to move on the memory bus.
    pub dram: Traffic,
}

/// All lines of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepLedger {
    /// What was evaluated.
    pub facts: StepFacts,
    /// Last-level cache the dram rule used.
    pub last_cache: Bytes,
    /// Launches in the plan.
    pub launches: usize,
    /// Lines in launch order.
    pub lines: Vec<EvaluatedLine>,
}

impl StepLedger {
    /// Evaluates `lines` at `facts` for a device whose last cache holds `last_cache` bytes.
    ///
    /// Weights, KV and state always count as dram. An activation or scratch value counts as dram, for its
    /// reader and its writer, when more than half the last cache moved between the two (by touched bytes).
    pub fn evaluate(lines: &[Line], launches: usize, facts: &StepFacts, last_cache: Bytes) -> Self {
        let touched: Vec<Traffic> = lines.iter().map(|l| l.account.at(facts)).collect();
        let mut moved_before = vec![0u64; launches + 1];
        for (line, traffic) in lines.iter().zip(&touched) {
            moved_before[line.launch + 1] += traffic.total().0;
        }
        for i in 0..launches {
            moved_before[i + 1] += moved_before[i];
        }
        let mut dram: Vec<Traffic> = touched.iter().map(always_dram).collect();
        for (i, line) in lines.iter().enumerate() {
            for read in &line.reads_from {
                let between = moved_before[line.launch].saturating_sub(moved_before[read.producer + 1]);
                if between > last_cache.0 / 2 {
                    let bytes = read.amount.at(facts);
                    dram[i].add(read.class, Direction::Read, bytes);
                    if let Some(writer) = lines.iter().position(|l| l.launch == read.producer) {
                        let have = dram[writer].get(read.class, Direction::Write);
                        let cap = touched[writer].get(read.class, Direction::Write);
                        let more = Bytes(bytes.0.min(cap.0 - have.0.min(cap.0)));
                        dram[writer].add(read.class, Direction::Write, more);
                    }
                }
            }
        }
        let lines = lines
            .iter()
            .zip(touched.into_iter().zip(dram))
            .map(|(l, (touched, dram))| EvaluatedLine {
                launch: l.launch,
                op: l.op.clone(),
                name: l.name.clone(),
                kind: l.kind.clone(),
                layer: l.layer,
                touched,
                dram,
            })
            .collect();
        Self { facts: facts.clone(), last_cache, launches, lines }
    }

    /// Touched bytes of the step.
    pub fn touched(&self) -> Traffic {
        self.sum(|l| &l.touched)
    }

    /// Memory-bus bytes of the step.
    pub fn dram(&self) -> Traffic {
        self.sum(|l| &l.dram)
    }

    fn sum(&self, of: impl Fn(&EvaluatedLine) -> &Traffic) -> Traffic {
        self.lines.iter().fold(Traffic::default(), |mut t, l| {
            t.merge(of(l));
            t
        })
    }
}

fn always_dram(touched: &Traffic) -> Traffic {
    let mut dram = Traffic::default();
    for class in TrafficClass::ALL.into_iter().filter(|c| c.always_dram()) {
        dram.read[class as usize] = touched.read[class as usize];
        dram.write[class as usize] = touched.write[class as usize];
    }
    dram
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::Amount;

    fn line(launch: usize, entries: &[(TrafficClass, Direction, u64)]) -> Line {
        let mut account = Account::default();
        for (c, d, b) in entries {
            account.add(*c, *d, Amount::fixed(*b));
        }
        Line {
            launch,
            op: "op".into(),
            name: "n".into(),
            kind: "k".into(),
            layer: None,
            account,
            reads_from: vec![],
        }
    }

    #[test]
    fn activations_count_as_dram_only_beyond_half_the_last_cache() {
        use Direction::*;
        use TrafficClass::*;
        let producer = line(0, &[(Activation, Write, 10)]);
        let between = line(1, &[(Weight, Read, 1000)]);
        let mut consumer = line(2, &[(Activation, Read, 10)]);
        consumer.reads_from = vec![ReadFrom { class: Activation, producer: 0, amount: Amount::fixed(10) }];
        let lines = [producer, between, consumer];
        let facts = StepFacts::default();
        let warm = StepLedger::evaluate(&lines, 3, &facts, Bytes(2000));
        assert_eq!(warm.dram().total(), Bytes(1000));
        let cold = StepLedger::evaluate(&lines, 3, &facts, Bytes(1998));
        assert_eq!(cold.dram().total(), Bytes(1020));
        assert_eq!(cold.touched().total(), Bytes(1020));
    }
}
