//! The gate: the one way a server learns that it may start.
//!
//! It takes the whole store, the policy, the tuple wanted and the identity of the process that asks, and
//! answers with a receipt or with the one reason there is none. It has no override and reads no
//! environment. Stored verdicts are not trusted: the verdict is worked out again.

use crate::canon::short;
use crate::identity::{AdmissionIdentity, FieldDiff};
use crate::policy::Policy;
use crate::schema::{Kind, Limits, Receipt};
use crate::store::{Record, Store, StoreError};
use crate::tuple::{TupleError, TupleKey};
use crate::verdict::{Verdict, verdict};

/// What a receipt grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Id of the receipt that admits.
    pub receipt_id: String,
    /// What may run: never more than the tuple's own buckets.
    pub limits: Limits,
}

/// Why a tuple may not start.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The tuple itself is out of bounds.
    #[error("refused: {0}")]
    Tuple(#[from] TupleError),
    /// The store cannot be read or does not hold.
    #[error("refused: {0}")]
    Store(#[from] StoreError),
    /// Nobody measured this tuple.
    #[error("refused: no receipt for {tuple}; run `{command}`")]
    NoReceipt {
        /// The tuple wanted.
        tuple: Box<TupleKey>,
        /// The command that makes one.
        command: String,
    },
    /// The receipt was made with something else.
    #[error(
        "refused: receipt {} was made with {} = {}, now it is {}; run `{command}`",
        short(receipt_id), diff.field, diff.ours, diff.theirs
    )]
    Identity {
        /// The newest receipt of the tuple.
        receipt_id: String,
        /// The first field that differs: the receipt's value, then the value now.
        diff: Box<FieldDiff>,
        /// The command that makes one that matches.
        command: String,
    },
    /// The process names another policy than the one it judges by.
    #[error("refused: identity field `policy` is {stated}, but the policy in force is {actual}")]
    Policy {
        /// Hash in the identity.
        stated: String,
        /// Hash of the policy.
        actual: String,
    },
    /// The receipt's numbers were not measured.
    #[error("refused: receipt {} is {}, not measured; run `{command}`", short(receipt_id), kind.as_str())]
    NotMeasured {
        /// The newest matching receipt.
        receipt_id: String,
        /// Its kind.
        kind: Kind,
        /// The command that makes a measured one.
        command: String,
    },
    /// The receipt does not pass.
    #[error("refused: receipt {}: {verdict}; run `{command}`", short(receipt_id))]
    NotPassed {
        /// The newest matching receipt.
        receipt_id: String,
        /// Its verdict, worked out now.
        verdict: Verdict,
        /// The command that measures again.
        command: String,
    },
    /// The receipt has no limits to enforce, or limits that are not its tuple's.
    #[error("refused: receipt {}: limit `{field}` is {value}, its tuple says {tuple}", short(receipt_id))]
    Limits {
        /// The matching receipt.
        receipt_id: String,
        /// Which limit.
        field: &'static str,
        /// Its value.
        value: u64,
        /// The tuple's value.
        tuple: u64,
    },
    /// The receipt is by a key that is not trusted here.
    #[error("refused: receipt {} is signed by {signer}, which is not a trusted signer", short(receipt_id))]
    ForeignSigner {
        /// The matching receipt.
        receipt_id: String,
        /// Its public key.
        signer: String,
    },
}

impl Refusal {
    /// The same refusal with the command that helps here, where a caller knows more than the tuple says: the
    /// path of a checkpoint, a topology file, a number of threads.
    #[must_use]
    pub fn with_command(mut self, helps: &str) -> Self {
        match &mut self {
            Self::NoReceipt { command, .. }
            | Self::Identity { command, .. }
            | Self::NotMeasured { command, .. }
            | Self::NotPassed { command, .. } => helps.clone_into(command),
            Self::Tuple(_)
            | Self::Store(_)
            | Self::Policy { .. }
            | Self::Limits { .. }
            | Self::ForeignSigner { .. } => {}
        }
        self
    }
}

/// Whether `want` may start in a process whose identity is `now`, by receipts of any signer.
pub fn admit(
    store: &Store,
    policy: &Policy,
    want: &TupleKey,
    now: &AdmissionIdentity,
) -> Result<Admission, Refusal> {
    decide(store, policy, want, now, None)
}

/// As [`admit`], but only receipts by one of `signers` (public keys in hex) count.
pub fn admit_signed_by(
    store: &Store,
    policy: &Policy,
    want: &TupleKey,
    now: &AdmissionIdentity,
    signers: &[String],
) -> Result<Admission, Refusal> {
    decide(store, policy, want, now, Some(signers))
}

fn decide(
    store: &Store,
    policy: &Policy,
    want: &TupleKey,
    now: &AdmissionIdentity,
    signers: Option<&[String]>,
) -> Result<Admission, Refusal> {
    want.validate()?;
    let actual = policy.hash();
    if now.policy != actual {
        return Err(Refusal::Policy { stated: now.policy.clone(), actual });
    }
    let records = store.list()?;
    let command = want.qualify_command();
    let (record, receipt) = choose(&records, want, now, &command)?;
    let receipt_id = record.id.clone();
    let signer = &record.sealed.seal.signer;
    if signers.is_some_and(|trusted| !trusted.contains(signer)) {
        return Err(Refusal::ForeignSigner { receipt_id, signer: signer.clone() });
    }
    if receipt.kind != Kind::Measured {
        return Err(Refusal::NotMeasured { receipt_id, kind: receipt.kind, command });
    }
    let verdict = verdict(receipt, policy);
    if !verdict.admits() {
        return Err(Refusal::NotPassed { receipt_id, verdict, command });
    }
    let limits = grant(receipt, want, &receipt_id)?;
    Ok(Admission { receipt_id, limits })
}

/// The receipt that decides: the newest of this tuple and identity that was measured (a later paper run
/// takes nothing away), else the newest of any kind. The newest of another identity only explains.
fn choose<'a>(
    records: &'a [Record],
    want: &TupleKey,
    now: &AdmissionIdentity,
    command: &str,
) -> Result<(&'a Record, &'a Receipt), Refusal> {
    let of_tuple = |record: &'a Record| {
        let receipt = record.entry().step()?;
        (receipt.tuple == *want).then_some((record, receipt))
    };
    let same: Vec<(&Record, &Receipt)> = records.iter().rev().filter_map(of_tuple).collect();
    let matching = || same.iter().filter(|(_, r)| r.admission == *now);
    if let Some(found) = matching().find(|(_, r)| r.kind == Kind::Measured).or_else(|| matching().next()) {
        return Ok(*found);
    }
    let command = command.to_owned();
    let difference = same.first().and_then(|(record, receipt)| {
        Some((record.id.clone(), Box::new(receipt.admission.first_difference(now)?)))
    });
    match difference {
        Some((receipt_id, diff)) => Err(Refusal::Identity { receipt_id, diff, command }),
        None => Err(Refusal::NoReceipt { tuple: Box::new(want.clone()), command }),
    }
}

/// The receipt's limits, which must be its tuple's own.
fn grant(receipt: &Receipt, want: &TupleKey, receipt_id: &str) -> Result<Limits, Refusal> {
    let none = Limits { batch: 0, context: 0, sequence_bytes: 0, total_bytes: 0 };
    let limits = receipt.limits.unwrap_or(none); // the verdict has already failed a receipt without
    let refuse =
        |field, value, tuple| Err(Refusal::Limits { receipt_id: receipt_id.to_owned(), field, value, tuple });
    if limits.batch != want.batch {
        return refuse("batch", limits.batch.into(), want.batch.into());
    }
    if limits.context != want.context {
        return refuse("context", limits.context, want.context);
    }
    Ok(limits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Signer;
    use crate::schema::Entry;
    use crate::store::RECEIPTS_FILE;
    use crate::testkit;

    struct Kit {
        dir: tempfile::TempDir,
        signer: Signer,
        store: Store,
    }

    fn kit() -> Kit {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(dir.path()).unwrap();
        let store = Store::open(dir.path());
        Kit { dir, signer, store }
    }

    impl Kit {
        fn with(mut self, change: impl FnOnce(&mut Receipt)) -> Self {
            let mut receipt = testkit::good();
            change(&mut receipt);
            let entry = Entry::Step(receipt.judged(&Policy::embedded()));
            self.store.append(entry, &self.signer).unwrap();
            self
        }

        fn ask(&self, now: &AdmissionIdentity) -> Result<Admission, Refusal> {
            admit(&self.store, &Policy::embedded(), &testkit::good().tuple, now)
        }

        fn refusal(&self) -> Refusal {
            self.ask(&testkit::admission()).unwrap_err()
        }
    }

    #[test]
    fn the_identical_tuple_and_identity_are_admitted_within_limits() {
        let kit = kit().with(|_| ());
        let admission = kit.ask(&testkit::admission()).unwrap();
        assert_eq!(admission.receipt_id, kit.store.list().unwrap()[0].id);
        assert_eq!((admission.limits.batch, admission.limits.context), (8, 2048));
    }

    #[test]
    fn no_receipt_names_the_command() {
        let text = kit().with(|r| r.tuple.batch = 16).refusal().to_string();
        let command = "`sparkpipe qualify whatis-9m --recipe bf16 --class bf16 --context 2048 --batch 8`";
        assert!(text.contains("no receipt") && text.contains(command), "{text}");
        let kernel_only = kit();
        assert!(matches!(kernel_only.refusal(), Refusal::NoReceipt { .. }));
        let told = kernel_only.refusal().with_command("sparkpipe qualify ./x.pack").to_string();
        assert!(told.ends_with("run `sparkpipe qualify ./x.pack`"), "{told}");
    }

    /// Every identity field but the policy, changed now, refuses by name with both values.
    #[test]
    fn each_identity_field_refuses_by_name() {
        let kit = kit().with(|_| ());
        let base = serde_json::to_value(testkit::admission()).unwrap();
        for (field, value) in base.as_object().unwrap() {
            let mut now = base.clone();
            let changed = match field.as_str() {
                "policy" => continue,
                "switches" => serde_json::json!({}),
                _ => "changed".into(),
            };
            now[field] = changed;
            let err = kit.ask(&serde_json::from_value(now).unwrap()).unwrap_err();
            let Refusal::Identity { diff, .. } = &err else { panic!("{field}: {err}") };
            assert!(diff.field.starts_with(field.as_str()), "{}", diff.field);
            if let Some(ours) = value.as_str() {
                assert_eq!((diff.ours.as_str(), diff.theirs.as_str()), (ours, "changed"));
            }
        }
    }

    #[test]
    fn another_policy_never_admits() {
        let tuned = Policy { min_samples: 2, ..Policy::embedded() };
        let kit = kit().with(|_| ());
        let tuple = testkit::good().tuple;
        let stated = admit(&kit.store, &tuned, &tuple, &testkit::admission()).unwrap_err();
        assert!(matches!(stated, Refusal::Policy { .. }), "{stated}");
        let now = AdmissionIdentity { policy: tuned.hash(), ..testkit::admission() };
        let err = admit(&kit.store, &tuned, &tuple, &now).unwrap_err();
        assert!(matches!(&err, Refusal::Identity { diff, .. } if diff.field == "policy"), "{err}");
    }

    #[test]
    fn only_measured_receipts_admit() {
        for kind in [Kind::Synthetic, Kind::Simulated, Kind::Estimated] {
            let refusal = kit().with(|r| r.kind = kind).refusal();
            assert!(matches!(refusal, Refusal::NotMeasured { kind: k, .. } if k == kind), "{refusal}");
        }
        let later_paper_run = kit().with(|_| ()).with(|r| r.kind = Kind::Estimated);
        assert!(later_paper_run.ask(&testkit::admission()).is_ok());
    }

    #[test]
    fn a_stated_pass_is_worked_out_again() {
        let mut kit = kit();
        let mut receipt = testkit::good();
        receipt.measured.as_mut().unwrap().stop.met = false;
        receipt.verdict = Some(Verdict::Pass);
        kit.store.append(Entry::Step(receipt), &kit.signer).unwrap();
        let refusal = kit.refusal();
        assert!(refusal.to_string().contains("stop_condition"), "{refusal}");
    }

    #[test]
    fn the_newest_measurement_of_an_identity_decides() {
        let failed_later = kit().with(|_| ()).with(|r| r.measured.as_mut().unwrap().stop.met = false);
        assert!(matches!(failed_later.refusal(), Refusal::NotPassed { .. }));
        let passed_later = kit().with(|r| r.measured.as_mut().unwrap().stop.met = false).with(|_| ());
        assert!(passed_later.ask(&testkit::admission()).is_ok());
        let other_build_later = kit().with(|_| ()).with(|r| r.admission.executable = "ff".into());
        assert!(other_build_later.ask(&testkit::admission()).is_ok());
    }

    #[test]
    fn limits_wider_than_the_tuple_are_refused() {
        let refusal = kit().with(|r| r.limits.as_mut().unwrap().batch = 1024).refusal();
        assert!(
            matches!(refusal, Refusal::Limits { field: "batch", value: 1024, tuple: 8, .. }),
            "{refusal}"
        );
        let refusal = kit().with(|r| r.limits.as_mut().unwrap().context = 1 << 20).refusal();
        assert!(matches!(refusal, Refusal::Limits { field: "context", .. }), "{refusal}");
    }

    #[test]
    fn a_foreign_signer_is_refused_where_signers_are_named() {
        let kit = kit().with(|_| ());
        let ask = |signers: &[String]| {
            let tuple = testkit::good().tuple;
            admit_signed_by(&kit.store, &Policy::embedded(), &tuple, &testkit::admission(), signers)
        };
        assert!(ask(&[kit.signer.public()]).is_ok());
        assert!(matches!(ask(&["00".repeat(32)]), Err(Refusal::ForeignSigner { .. })));
        assert!(matches!(ask(&[]), Err(Refusal::ForeignSigner { .. })));
    }

    #[test]
    fn a_damaged_store_or_a_wild_tuple_admits_nothing() {
        let kit = kit().with(|_| ());
        let wild = TupleKey { batch: 3, ..testkit::good().tuple };
        let err = admit(&kit.store, &Policy::embedded(), &wild, &testkit::admission()).unwrap_err();
        assert!(matches!(err, Refusal::Tuple(_)), "{err}");
        let path = kit.dir.path().join(RECEIPTS_FILE);
        let text = std::fs::read_to_string(&path).unwrap().replace("\"batch\":8", "\"batch\":4");
        std::fs::write(&path, text).unwrap();
        let text = kit.refusal().to_string();
        assert!(text.contains("damaged: receipt 0") && text.contains("field `"), "{text}");
    }
}
