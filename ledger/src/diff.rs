//! Ledger diff: what changed between two steps, by (kind, name, op).
use crate::groups::{Group, LineKey};
use crate::step::StepLedger;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// One key that differs. At least one side is present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffEntry {
    /// What the lines are.
    pub key: LineKey,
    /// The lines before; `None` when the key was added.
    pub before: Option<Group>,
    /// The lines after; `None` when the key was removed.
    pub after: Option<Group>,
}

/// How a key changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Only the second ledger has it.
    Added,
    /// Only the first ledger has it.
    Removed,
    /// Both have it, with other counts.
    Changed,
}

/// What differs between two ledgers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LedgerDiff {
    /// Keys that differ, sorted.
    pub entries: Vec<DiffEntry>,
    /// Launches of the step, before and after.
    pub launches: (usize, usize),
    /// Touched bytes of the step, before and after.
    pub touched: (u64, u64),
    /// Memory-bus bytes of the step, before and after.
    pub dram: (u64, u64),
}

impl DiffEntry {
    /// How it changed.
    pub fn change(&self) -> Change {
        match (&self.before, &self.after) {
            (None, _) => Change::Added,
            (_, None) => Change::Removed,
            _ => Change::Changed,
        }
    }
}

impl LedgerDiff {
    /// Compares two ledgers. Keys with equal line and launch counts and equal bytes are left out.
    pub fn new(before: &StepLedger, after: &StepLedger) -> Self {
        let mut sides: BTreeMap<LineKey, (Option<Group>, Option<Group>)> = BTreeMap::new();
        for group in before.groups() {
            let side = sides.entry(group.key.clone()).or_default();
            side.0 = Some(group);
        }
        for group in after.groups() {
            let side = sides.entry(group.key.clone()).or_default();
            side.1 = Some(group);
        }
        let differing = sides.into_iter().filter(|(_, (b, a))| b != a);
        Self {
            entries: differing.map(|(key, (before, after))| DiffEntry { key, before, after }).collect(),
            launches: (before.launches, after.launches),
            touched: (before.touched().total().0, after.touched().total().0),
            dram: (before.dram().total().0, after.dram().total().0),
        }
    }

    /// Whether nothing differs, launches included.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.launches.0 == self.launches.1
    }
}

fn change(label: &str, before: u64, after: u64) -> String {
    format!("{label} {before} -> {after} ({:+})", i128::from(after) - i128::from(before))
}

impl fmt::Display for LedgerDiff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for entry in &self.entries {
            let sign = match entry.change() {
                Change::Added => '+',
                Change::Removed => '-',
                Change::Changed => '~',
            };
            let side = |g: &Option<Group>| {
                g.as_ref().map_or((0, 0, 0), |g| (g.launches, g.touched.total().0, g.dram.total().0))
            };
            let (b, a) = (side(&entry.before), side(&entry.after));
            let LineKey { kind, name, op } = &entry.key;
            let parts = [change("launches", b.0, a.0), change("touched", b.1, a.1), change("dram", b.2, a.2)];
            writeln!(f, "{sign} {kind} {name} {op}: {}", parts.join(", "))?;
        }
        let launches = change("launches", self.launches.0 as u64, self.launches.1 as u64);
        let touched = change("touched", self.touched.0, self.touched.1);
        writeln!(f, "= step: {launches}, {touched}, {}", change("dram", self.dram.0, self.dram.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::{Account, Amount, Direction, TrafficClass};
    use crate::facts::StepFacts;
    use crate::step::Line;
    use crate::units::Bytes;

    fn ledger(lines: &[(&str, u64)]) -> StepLedger {
        let line = |(launch, (name, bytes)): (usize, &(&str, u64))| {
            let mut account = Account::default();
            account.add(TrafficClass::Weight, Direction::Read, Amount::fixed(*bytes));
            let (op, kind) = ("linear".into(), "mlp".into());
            Line { launch, op, name: (*name).into(), kind, layer: None, account, reads_from: vec![] }
        };
        let lines: Vec<Line> = lines.iter().enumerate().map(line).collect();
        StepLedger::evaluate(&lines, lines.len(), &StepFacts::default(), Bytes(0))
    }

    #[test]
    fn added_removed_and_changed_lines_are_told_apart() {
        let before = ledger(&[("same", 5), ("gone", 7), ("more", 10), ("more", 10)]);
        let after = ledger(&[("same", 5), ("more", 30), ("new", 1)]);
        let diff = LedgerDiff::new(&before, &after);
        let changes: Vec<(&str, Change)> =
            diff.entries.iter().map(|e| (e.key.name.as_str(), e.change())).collect();
        assert_eq!(changes, [("gone", Change::Removed), ("more", Change::Changed), ("new", Change::Added)]);
        assert_eq!((diff.launches, diff.touched), ((4, 3), (32, 36)));
        let text = diff.to_string();
        assert!(text.contains("~ mlp more linear: launches 2 -> 1 (-1), touched 20 -> 30 (+10)"), "{text}");
        assert!(LedgerDiff::new(&before, &before).is_empty());
    }
}
