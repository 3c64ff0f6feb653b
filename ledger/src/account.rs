//! Accounts: the bytes of one launch as a function of the step's facts, per traffic class and direction.
use crate::facts::{Feature, StepFacts};
use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a byte is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficClass {
    /// Model weights, scales included.
    Weight,
    /// Attention cache.
    Kv,
    /// Recurrent state (delta rule state, convolution windows).
    State,
    /// Values that flow from launch to launch, and step inputs and outputs.
    Activation,
    /// Values that only one operation sees.
    Scratch,
    /// Bytes that cross a link between ranks.
    Collective,
}

impl TrafficClass {
    /// All classes in ledger order.
    pub const ALL: [Self; 6] =
        [Self::Weight, Self::Kv, Self::State, Self::Activation, Self::Scratch, Self::Collective];

    /// Whether bytes of this class always come from memory, never from a cache left warm by a producer.
    pub fn always_dram(self) -> bool {
        matches!(self, Self::Weight | Self::Kv | Self::State)
    }

    /// Column name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weight => "weight",
            Self::Kv => "kv",
            Self::State => "state",
            Self::Activation => "activation",
            Self::Scratch => "scratch",
            Self::Collective => "collective",
        }
    }
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Direction of traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// Read.
    Read,
    /// Written.
    Write,
}

/// A byte count that is linear in the step's facts: the sum of coefficient x feature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount(Vec<(Feature, u64)>);

impl Amount {
    /// `bytes` whatever the step holds.
    pub fn fixed(bytes: u64) -> Self {
        Self::per(Feature::One, bytes)
    }

    /// `bytes` for each unit of `feature`.
    pub fn per(feature: Feature, bytes: u64) -> Self {
        Self(if bytes == 0 { Vec::new() } else { vec![(feature, bytes)] })
    }

    /// The sum of two amounts.
    pub fn plus(mut self, other: Self) -> Self {
        for (feature, bytes) in other.0 {
            match self.0.iter_mut().find(|(f, _)| *f == feature) {
                Some((_, have)) => *have += bytes,
                None => self.0.push((feature, bytes)),
            }
        }
        self
    }

    /// Terms in the order they were added.
    pub fn terms(&self) -> &[(Feature, u64)] {
        &self.0
    }

    /// Bytes at `facts`, rounded to the nearest byte (only expectations are fractional).
    pub fn at(&self, facts: &StepFacts) -> Bytes {
        Bytes(self.0.iter().map(|(f, c)| *c as f64 * facts.value(*f)).sum::<f64>().round() as u64)
    }
}

/// One entry of an account: a class, a direction, an amount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Class.
    pub class: TrafficClass,
    /// Direction.
    pub direction: Direction,
    /// Bytes touched (each distinct byte once).
    pub amount: Amount,
}

/// The account of one launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account(pub Vec<Entry>);

impl Account {
    /// Adds `amount` to the entry of (`class`, `direction`).
    pub fn add(&mut self, class: TrafficClass, direction: Direction, amount: Amount) {
        match self.0.iter_mut().find(|e| e.class == class && e.direction == direction) {
            Some(entry) => entry.amount = std::mem::take(&mut entry.amount).plus(amount),
            None => self.0.push(Entry { class, direction, amount }),
        }
    }

    /// Evaluates the account.
    pub fn at(&self, facts: &StepFacts) -> Traffic {
        let mut traffic = Traffic::default();
        for entry in &self.0 {
            traffic.add(entry.class, entry.direction, entry.amount.at(facts));
        }
        traffic
    }
}

/// Evaluated bytes per class, read and write apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Read bytes by class, in the order of [`TrafficClass::ALL`].
    pub read: [Bytes; 6],
    /// Written bytes by class, in the same order.
    pub write: [Bytes; 6],
}

impl Traffic {
    /// Adds bytes to one cell.
    pub fn add(&mut self, class: TrafficClass, direction: Direction, bytes: Bytes) {
        match direction {
            Direction::Read => self.read[class as usize] += bytes,
            Direction::Write => self.write[class as usize] += bytes,
        }
    }

    /// Bytes of one cell.
    pub fn get(&self, class: TrafficClass, direction: Direction) -> Bytes {
        match direction {
            Direction::Read => self.read[class as usize],
            Direction::Write => self.write[class as usize],
        }
    }

    /// Bytes of a class, both directions.
    pub fn class(&self, class: TrafficClass) -> Bytes {
        self.read[class as usize] + self.write[class as usize]
    }

    /// All read bytes.
    pub fn reads(&self) -> Bytes {
        self.read.iter().copied().sum()
    }

    /// All written bytes.
    pub fn writes(&self) -> Bytes {
        self.write.iter().copied().sum()
    }

    /// All bytes.
    pub fn total(&self) -> Bytes {
        self.reads() + self.writes()
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &Self) {
        for i in 0..6 {
            self.read[i] += other.read[i];
            self.write[i] += other.write[i];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_linear_in_its_facts() {
        let mut account = Account::default();
        account.add(TrafficClass::Weight, Direction::Read, Amount::fixed(100));
        account.add(TrafficClass::Weight, Direction::Read, Amount::per(Feature::Experts(1), 10));
        account.add(TrafficClass::Activation, Direction::Write, Amount::per(Feature::Rows, 4));
        let facts = StepFacts { rows: 3, experts: vec![1.0, 2.5], ..StepFacts::default() };
        let traffic = account.at(&facts);
        assert_eq!(traffic.get(TrafficClass::Weight, Direction::Read), Bytes(125));
        assert_eq!(traffic.writes(), Bytes(12));
        assert_eq!(traffic.total(), Bytes(137));
        assert_eq!(account.0.len(), 2, "same class and direction share an entry");
    }
}
