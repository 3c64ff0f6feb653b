//! Closure: independently measured parts against the measured step, with the remainder in the open.
//!
//! `sum(lines) + gaps - overlap + unexplained = step`. Lines, gaps, overlap and step are measurements; only
//! `unexplained` is computed, and it is signed, so that no other part can absorb an error.
use crate::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One measured line: an operation of a layer kind, all its launches of the step together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClosureLine {
    /// What it computes.
    pub name: String,
    /// Kind of layer.
    pub kind: String,
    /// Launches in the step.
    pub count: u64,
    /// Time of all of them, measured alone and net of the cost of an empty node.
    pub time: Nanos,
    /// Bytes all of them move.
    pub bytes: Bytes,
}

/// Why measured parts cannot be closed.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ClosureError {
    /// The step took no time.
    #[error("step time is zero")]
    NoStep,
    /// A time does not fit in the signed range.
    #[error("{field}: total time exceeds {} ns", i64::MAX)]
    TooLong {
        /// Which part.
        field: &'static str,
    },
    /// A stored remainder is not the one that its parts give.
    #[error("unexplained is {stored} ns, but the parts leave {computed} ns")]
    Inconsistent {
        /// What was stored.
        stored: i64,
        /// What the parts leave.
        computed: i64,
    },
    /// The remainder exceeds the budget.
    #[error("unexplained {unexplained} ns is {:.2} % of the step, budget {:.2} %", fraction * 100.0, budget * 100.0)]
    OverBudget {
        /// The remainder.
        unexplained: i64,
        /// Its share of the step, signed.
        fraction: f64,
        /// The share allowed, either sign.
        budget: f64,
    },
}

/// A closed step. Made only from measurements, so the remainder always agrees with the parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawClosure")]
pub struct Closure {
    lines: Vec<ClosureLine>,
    gaps: Nanos,
    overlap: Nanos,
    step: Nanos,
    unexplained: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClosure {
    lines: Vec<ClosureLine>,
    gaps: Nanos,
    overlap: Nanos,
    step: Nanos,
    unexplained: i64,
}

impl TryFrom<RawClosure> for Closure {
    type Error = ClosureError;
    fn try_from(raw: RawClosure) -> Result<Self, ClosureError> {
        let closure = Self::new(raw.lines, raw.gaps, raw.overlap, raw.step)?;
        if closure.unexplained == raw.unexplained {
            Ok(closure)
        } else {
            Err(ClosureError::Inconsistent { stored: raw.unexplained, computed: closure.unexplained })
        }
    }
}

impl Closure {
    /// Closes a step of `step` from parts that were each measured on their own.
    ///
    /// `gaps` is nodes times the measured cost of an empty node; `overlap` is the step with programmatic
    /// launch off minus on (zero where it is off in `step` itself).
    pub fn new(
        lines: Vec<ClosureLine>,
        gaps: Nanos,
        overlap: Nanos,
        step: Nanos,
    ) -> Result<Self, ClosureError> {
        if step == Nanos(0) {
            return Err(ClosureError::NoStep);
        }
        let sum = lines.iter().try_fold(0u64, |sum, l| sum.checked_add(l.time.0));
        let signed = |field, n: Option<u64>| {
            n.and_then(|n| i64::try_from(n).ok()).ok_or(ClosureError::TooLong { field })
        };
        let explained = signed("lines", sum)?
            .checked_add(signed("gaps", Some(gaps.0))?)
            .ok_or(ClosureError::TooLong { field: "lines and gaps" })?
            - signed("overlap", Some(overlap.0))?;
        let unexplained = signed("step", Some(step.0))?
            .checked_sub(explained)
            .ok_or(ClosureError::TooLong { field: "unexplained" })?;
        Ok(Self { lines, gaps, overlap, step, unexplained })
    }

    /// Measured lines.
    pub fn lines(&self) -> &[ClosureLine] {
        &self.lines
    }

    /// Sum of the lines' times.
    pub fn line_time(&self) -> Nanos {
        self.lines.iter().map(|l| l.time).sum()
    }

    /// Cost of the nodes themselves.
    pub fn gaps(&self) -> Nanos {
        self.gaps
    }

    /// Time that launches ran at once.
    pub fn overlap(&self) -> Nanos {
        self.overlap
    }

    /// The measured step.
    pub fn step(&self) -> Nanos {
        self.step
    }

    /// Nanoseconds that the parts leave; negative when they exceed the step.
    pub fn unexplained(&self) -> i64 {
        self.unexplained
    }

    /// The remainder as a signed share of the step.
    pub fn unexplained_fraction(&self) -> f64 {
        self.unexplained as f64 / self.step.0 as f64
    }

    /// Whether the remainder, either sign, is at most `budget` of the step.
    pub fn within(&self, budget: f64) -> bool {
        self.unexplained_fraction().abs() <= budget
    }

    /// [`Self::within`] as a result that says by how much it failed.
    pub fn check(&self, budget: f64) -> Result<(), ClosureError> {
        if self.within(budget) {
            return Ok(());
        }
        let fraction = self.unexplained_fraction();
        Err(ClosureError::OverBudget { unexplained: self.unexplained, fraction, budget })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(time: u64) -> ClosureLine {
        ClosureLine { name: "n".into(), kind: "k".into(), count: 1, time: Nanos(time), bytes: Bytes(1) }
    }

    #[test]
    fn the_remainder_is_signed_and_budgeted() {
        let close = |gaps| Closure::new(vec![line(70), line(20)], Nanos(gaps), Nanos(5), Nanos(100));
        let short = close(10).expect("closes");
        assert_eq!(short.unexplained(), 5);
        assert!(short.within(0.05) && !short.within(0.049));
        let over = close(30).expect("closes");
        assert_eq!(over.unexplained(), -15);
        assert!(!over.within(0.1), "an excess counts like a lack");
        assert!(matches!(over.check(0.1), Err(ClosureError::OverBudget { unexplained: -15, .. })));
        assert_eq!(over.check(0.15), Ok(()));
    }

    #[test]
    fn impossible_parts_are_refused() {
        assert_eq!(Closure::new(vec![], Nanos(0), Nanos(0), Nanos(0)), Err(ClosureError::NoStep));
        let huge = vec![line(u64::MAX), line(1)];
        assert_eq!(
            Closure::new(huge, Nanos(0), Nanos(0), Nanos(1)),
            Err(ClosureError::TooLong { field: "lines" })
        );
        let json = r#"{"lines":[],"gaps":1,"overlap":0,"step":10,"unexplained":0}"#;
        let error = serde_json::from_str::<Closure>(json).expect_err("9 ns are missing");
        assert!(error.to_string().contains("the parts leave 9 ns"), "{error}");
    }

    proptest! {
        #[test]
        fn a_closure_always_adds_up(
            times in proptest::collection::vec(0u64..1 << 40, 0..20),
            gaps in 0u64..1 << 40, overlap in 0u64..1 << 40, step in 1u64..1 << 40,
        ) {
            let lines = times.iter().map(|t| line(*t)).collect();
            let c = Closure::new(lines, Nanos(gaps), Nanos(overlap), Nanos(step)).expect("in range");
            let sum = c.line_time().0 as i64 + gaps as i64 - overlap as i64 + c.unexplained();
            prop_assert_eq!(sum, step as i64);
            let json = serde_json::to_string(&c).expect("serialises");
            prop_assert_eq!(serde_json::from_str::<Closure>(&json).expect("reads back"), c);
        }
    }
}
