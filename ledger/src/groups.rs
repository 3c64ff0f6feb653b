//! Groups: the lines of a step ledger summed by what they are, whatever layer they belong to.
use crate::account::Traffic;
use crate::step::StepLedger;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a line is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LineKey {
    /// Layer kind.
    pub kind: String,
    /// What it computes.
    pub name: String,
    /// Operation with numeric class and format.
    pub op: String,
}

/// The sum of all lines of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Key of the lines.
    pub key: LineKey,
    /// Lines.
    pub lines: u64,
    /// Distinct launches that own them.
    pub launches: u64,
    /// Bytes touched.
    pub touched: Traffic,
    /// Bytes expected on the memory bus.
    pub dram: Traffic,
}

/// The bytes of one layer kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindSum {
    /// Layer kind.
    pub kind: String,
    /// Distinct launches with a line of this kind.
    pub launches: u64,
    /// Bytes touched.
    pub touched: Traffic,
    /// Bytes expected on the memory bus.
    pub dram: Traffic,
}

impl StepLedger {
    /// Lines summed by (kind, name, op), sorted by that key.
    pub fn groups(&self) -> Vec<Group> {
        let mut sums = std::collections::BTreeMap::new();
        for line in &self.lines {
            let key = LineKey { kind: line.kind.clone(), name: line.name.clone(), op: line.op.clone() };
            let sum: &mut Sum = sums.entry(key).or_default();
            sum.add(line.launch, &line.touched, &line.dram);
        }
        let group = |(key, s): (LineKey, Sum)| Group {
            key,
            lines: s.lines,
            launches: s.launches.len() as u64,
            touched: s.touched,
            dram: s.dram,
        };
        sums.into_iter().map(group).collect()
    }

    /// Lines summed by layer kind, in the order the kinds first appear in the step.
    pub fn kinds(&self) -> Vec<KindSum> {
        let mut sums: Vec<(&str, Sum)> = Vec::new();
        for line in &self.lines {
            let at = sums.iter().position(|(kind, _)| *kind == line.kind).unwrap_or_else(|| {
                sums.push((&line.kind, Sum::default()));
                sums.len() - 1
            });
            sums[at].1.add(line.launch, &line.touched, &line.dram);
        }
        let kind = |(kind, s): (&str, Sum)| KindSum {
            kind: kind.into(),
            launches: s.launches.len() as u64,
            touched: s.touched,
            dram: s.dram,
        };
        sums.into_iter().map(kind).collect()
    }
}

#[derive(Default)]
struct Sum {
    lines: u64,
    launches: BTreeSet<usize>,
    touched: Traffic,
    dram: Traffic,
}

impl Sum {
    fn add(&mut self, launch: usize, touched: &Traffic, dram: &Traffic) {
        self.lines += 1;
        self.launches.insert(launch);
        self.touched.merge(touched);
        self.dram.merge(dram);
    }
}
