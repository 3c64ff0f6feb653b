//! What a step receipt rests on: the kernel receipts of the launches it timed.
//!
//! One idea: a rule that needs no judgement. For each distinct launch of the decode plan the newest measured kernel
//! receipt counts whose operation, shape, format, numeric class, rows, device class and evidence identity are all
//! equal to the step's. Where there is none, the launch is listed as absent: that is a fact, not an error.

use crate::identity::EvidenceIdentity;
use crate::schema::{Kind, Receipt};
use crate::store::Record;
use std::fmt;

/// A launch of a step, as a kernel receipt names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelNeed {
    /// Operation name.
    pub op: String,
    /// Shape.
    pub shape: String,
    /// Weight format.
    pub format: String,
    /// Numeric class.
    pub numeric_class: String,
    /// Rows.
    pub batch: u32,
}

impl fmt::Display for KernelNeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, shape, format, numeric_class, batch } = self;
        write!(f, "{op} {shape} {format} {numeric_class} batch {batch}")
    }
}

/// The id of the newest receipt in `records` for `need`.
fn newest<'r>(
    records: &'r [Record],
    need: &KernelNeed,
    device_class: &str,
    evidence: &EvidenceIdentity,
) -> Option<&'r str> {
    let fits = |record: &&Record| {
        record.entry().kernel().is_some_and(|k| {
            k.kind == Kind::Measured
                && (&k.op, &k.shape, &k.format) == (&need.op, &need.shape, &need.format)
                && (&k.numeric_class, k.batch) == (&need.numeric_class, need.batch)
                && k.device_class == device_class
                && k.evidence == *evidence
        })
    };
    records.iter().rev().find(fits).map(|record| record.id.as_str())
}

impl Receipt {
    /// Writes down what the receipt rests on and what it lacks, by the rule above; `records` are oldest first.
    pub fn rest_on(&mut self, records: &[Record], needs: &[KernelNeed]) {
        (self.rests_on, self.rests_on_absent) = (Vec::new(), Vec::new());
        for need in needs {
            match newest(records, need, &self.admission.device_class, &self.evidence) {
                Some(id) => self.rests_on.push(id.to_owned()),
                None => self.rests_on_absent.push(need.to_string()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Signer;
    use crate::schema::{Entry, KernelReceipt};
    use crate::store::Store;
    use crate::testkit;

    fn need(kernel: &KernelReceipt) -> KernelNeed {
        KernelNeed {
            op: kernel.op.clone(),
            shape: kernel.shape.clone(),
            format: kernel.format.clone(),
            numeric_class: kernel.numeric_class.clone(),
            batch: kernel.batch,
        }
    }

    fn records(kernels: Vec<KernelReceipt>) -> Vec<Record> {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(&dir.path().join("keys")).unwrap();
        let mut store = Store::open(&dir.path().join("store"));
        kernels.into_iter().for_each(|k| drop(store.append(Entry::Kernel(k), &signer).unwrap()));
        store.list().unwrap()
    }

    #[test]
    fn the_newest_fitting_receipt_counts_and_an_absent_one_is_listed() {
        let old = testkit::kernel();
        let new = KernelReceipt { created: "2026-12-01T08:00:00Z".into(), ..old.clone() };
        let all = records(vec![old.clone(), new]);
        let other = KernelNeed { op: "attend/kv16".into(), ..need(&old) };
        let mut step = testkit::good();
        step.rest_on(&all, &[need(&old), other.clone()]);
        assert_eq!(step.rests_on, [all[1].id.clone()]);
        assert_eq!(step.rests_on_absent, [other.to_string()]);
        let json = serde_json::to_value(&step).unwrap();
        assert_eq!(serde_json::from_value::<Receipt>(json).unwrap(), step);
    }

    #[test]
    fn a_receipt_that_differs_in_any_one_field_does_not_count() {
        let good = testkit::kernel();
        let k = || good.clone();
        let mut evidence = good.evidence.clone();
        evidence.sources = "77".repeat(32);
        let near = vec![
            KernelReceipt { kind: Kind::Synthetic, ..k() },
            KernelReceipt { op: "norm".into(), ..k() },
            KernelReceipt { shape: "k 256 n 1".into(), ..k() },
            KernelReceipt { format: "q4_k".into(), ..k() },
            KernelReceipt { numeric_class: "f32".into(), ..k() },
            KernelReceipt { batch: 4, ..k() },
            KernelReceipt { device_class: "h200".into(), ..k() },
            KernelReceipt { evidence, ..k() },
        ];
        let mut step = testkit::good();
        step.rest_on(&records(near), &[need(&good)]);
        assert_eq!((step.rests_on.len(), step.rests_on_absent.len()), (0, 1));
    }

    #[test]
    fn receipts_made_before_the_list_of_absent_ones_keep_their_spelling() {
        let step = testkit::good();
        assert!(step.rests_on_absent.is_empty());
        assert!(serde_json::to_value(&step).unwrap().get("rests_on_absent").is_none());
    }
}
