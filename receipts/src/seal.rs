//! The sealed line: an entry, the digest of each of its fields, the link to the line before, a signature.
//!
//! A hash over the whole says only *that* something changed. The digest of each field says *what*.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canon::{self, CanonError};
use crate::keys::{self, Signer};
use crate::locate::path_at;
use crate::schema::{Entry, SCHEMA_VERSION};

/// The `prev` of the first line: 64 zeros.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Longest line read, in bytes; a step receipt is 5 to 20 kB.
pub const MAX_LINE: usize = 4 << 20;

/// What binds an entry to its place and its signer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Seal {
    /// Id of the line before; 64 zeros for the first.
    pub prev: String,
    /// SHA-256 of each field's canonical JSON, in hex.
    pub digests: BTreeMap<String, String>,
    /// Ed25519 public key, in hex.
    pub signer: String,
    /// Ed25519 signature over the canonical JSON of the line without this field, in hex.
    pub signature: String,
}

/// One line of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sealed {
    /// The receipt.
    pub entry: Entry,
    /// What binds it.
    pub seal: Seal,
}

/// A sealed line and its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// SHA-256 of the line's bytes, in hex: the receipt's id.
    pub id: String,
    /// What the line holds.
    pub sealed: Sealed,
}

/// Why bytes are not a line of a store.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// More bytes than any receipt has.
    #[error("line of {len} bytes: at most {MAX_LINE}")]
    TooLong {
        /// Bytes found.
        len: usize,
    },
    /// Not JSON, or not this schema.
    #[error("field `{field}`, byte {at}: {what}")]
    Unparseable {
        /// Dotted path being read.
        field: String,
        /// Offset in the line.
        at: usize,
        /// What the parser said.
        what: String,
    },
    /// JSON of this schema, but not in its one canonical spelling.
    #[error("field `{field}`, byte {at}: not canonical JSON")]
    NotCanonical {
        /// Dotted path of the first byte that differs.
        field: String,
        /// Offset in the line.
        at: usize,
    },
    /// Another schema version.
    #[error("field `schema_version` is {found}: this build reads {SCHEMA_VERSION}")]
    Version {
        /// Version found.
        found: u32,
    },
    /// A value outside its limit.
    #[error("field `{field}`: {what}")]
    Value {
        /// Dotted path.
        field: String,
        /// Value and limit.
        what: String,
    },
}

impl LineError {
    /// The field to name to a person.
    pub fn field(&self) -> &str {
        match self {
            Self::TooLong { .. } => "(line)",
            Self::Version { .. } => "schema_version",
            Self::Unparseable { field, .. }
            | Self::NotCanonical { field, .. }
            | Self::Value { field, .. } => field,
        }
    }
}

/// Reads one line, without its newline. Total: any bytes give a line or an error, never a panic.
/// Seals are not checked here; see [`Sealed::faults`].
pub fn parse_line(bytes: &[u8]) -> Result<Line, LineError> {
    if bytes.len() > MAX_LINE {
        return Err(LineError::TooLong { len: bytes.len() });
    }
    let sealed: Sealed = serde_json::from_slice(bytes).map_err(|e| {
        // A sealed line holds no newline, so the column is an offset; if it does, the end is as good a guess.
        let at = if e.line() == 1 { e.column().saturating_sub(1) } else { bytes.len() };
        LineError::Unparseable { field: path_at(bytes, at), at, what: e.to_string() }
    })?;
    let again = sealed.line().map_err(|e| match e {
        CanonError::InexactNumber { path, value } => {
            LineError::Value { field: path, what: format!("{value} is no exact integer") }
        }
        CanonError::NotJson(what) => LineError::Value { field: "(line)".to_owned(), what },
    })?;
    if again != bytes {
        let same = again.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        return Err(LineError::NotCanonical { field: path_at(bytes, same), at: same });
    }
    if sealed.entry.schema_version() != SCHEMA_VERSION {
        return Err(LineError::Version { found: sealed.entry.schema_version() });
    }
    if let Some(Err(e)) = sealed.entry.step().map(|r| r.tuple.validate()) {
        return Err(LineError::Value { field: "entry.step.tuple".to_owned(), what: e.to_string() });
    }
    Ok(Line { id: canon::sha256_hex(bytes), sealed })
}

/// A field whose digest, signature or link does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Top-level field, or `seal.` and the part of the seal.
    pub field: String,
    /// What does not hold.
    pub what: String,
}

impl Sealed {
    /// Seals `entry` behind the line whose id is `prev`.
    pub fn new(entry: Entry, prev: &str, signer: &Signer) -> Result<Self, CanonError> {
        let seal = Seal {
            prev: prev.to_owned(),
            digests: BTreeMap::new(),
            signer: signer.public(),
            signature: String::new(),
        };
        let mut sealed = Self { entry, seal };
        sealed.line()?; // first as a whole, so that what has no canonical form is named by its full path
        sealed.seal.digests = sealed.digests()?;
        sealed.seal.signature = signer.sign(&sealed.message(&sealed.seal.digests)?);
        Ok(sealed)
    }

    /// Canonical JSON of the line, without a newline.
    pub fn line(&self) -> Result<Vec<u8>, CanonError> {
        canon::canonical(self)
    }

    /// Everything about this line alone that does not hold; the chain is the store's to check.
    pub fn faults(&self) -> Result<Vec<Fault>, CanonError> {
        let digests = self.digests()?;
        let stated = &self.seal.digests;
        let names = digests.keys().chain(stated.keys().filter(|k| !digests.contains_key(*k)));
        let wrong: Vec<&String> = names.filter(|k| digests.get(*k) != stated.get(*k)).collect();
        let signed = |digests| -> Result<bool, CanonError> {
            Ok(keys::verify(&self.seal.signer, &self.message(digests)?, &self.seal.signature))
        };
        if wrong.is_empty() {
            let fault = Fault {
                field: "seal.signature".to_owned(),
                what: "the signature is not by the signer over these contents".to_owned(),
            };
            return Ok(if signed(stated)? { Vec::new() } else { vec![fault] });
        }
        // If the signature holds over the true digests, the contents are as signed and the digest was changed.
        let contents_intact = signed(&digests)?;
        let fault = |name: &String| {
            if contents_intact {
                return Fault {
                    field: format!("seal.digests.{}", crate::locate::printable(name)),
                    what: "the digest was changed; the contents are as signed".to_owned(),
                };
            }
            let field = match name.as_str() {
                "prev" | "signer" => format!("seal.{name}"),
                other => crate::locate::printable(other),
            };
            Fault { field, what: "the contents do not have the digest that was signed".to_owned() }
        };
        Ok(wrong.into_iter().map(fault).collect())
    }

    /// Digest of each field of the entry, of the entry's tag, of `prev` and of `signer`.
    fn digests(&self) -> Result<BTreeMap<String, String>, CanonError> {
        let value = serde_json::to_value(&self.entry).map_err(|e| CanonError::NotJson(e.to_string()))?;
        let mut out = BTreeMap::new();
        for (tag, body) in value.as_object().into_iter().flatten() {
            out.insert("entry".to_owned(), canon::digest(tag)?);
            for (field, value) in body.as_object().into_iter().flatten() {
                out.insert(field.clone(), canon::digest(value)?);
            }
        }
        out.insert("prev".to_owned(), canon::digest(&self.seal.prev)?);
        out.insert("signer".to_owned(), canon::digest(&self.seal.signer)?);
        Ok(out)
    }

    /// The bytes that are signed, with `digests` in the place of the stated ones.
    fn message(&self, digests: &BTreeMap<String, String>) -> Result<Vec<u8>, CanonError> {
        let not_json = |e: serde_json::Error| CanonError::NotJson(e.to_string());
        let mut value = serde_json::to_value(self).map_err(not_json)?;
        if let Some(seal) = value.get_mut("seal").and_then(Value::as_object_mut) {
            seal.remove("signature");
            seal.insert("digests".to_owned(), serde_json::to_value(digests).map_err(not_json)?);
        }
        canon::canonical_value(&value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    type Change = fn(&mut crate::Receipt);

    fn sealed() -> (tempfile::TempDir, Sealed) {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(dir.path()).unwrap();
        (dir, Sealed::new(Entry::Step(testkit::good()), GENESIS, &signer).unwrap())
    }

    #[test]
    fn a_sealed_line_reads_back_without_fault() {
        let (_dir, sealed) = sealed();
        let line = sealed.line().unwrap();
        let back = parse_line(&line).unwrap();
        assert_eq!(back.sealed, sealed);
        assert_eq!(back.id, canon::sha256_hex(&line));
        assert_eq!(back.sealed.faults().unwrap(), []);
    }

    /// Each top-level field of a receipt, changed, is the one named.
    #[test]
    fn each_changed_field_is_named() {
        let (_dir, sealed) = sealed();
        let changes: [(&str, Change); 7] = [
            ("kind", |r| r.kind = crate::Kind::Synthetic),
            ("tuple", |r| r.tuple.batch = 16),
            ("admission", |r| r.admission.pack = "00".into()),
            ("measured", |r| r.measured.as_mut().unwrap().series_ns[3] -= 1),
            ("limits", |r| r.limits.as_mut().unwrap().batch = 1024),
            ("verdict", |r| r.verdict = Some(crate::Verdict::Pass)),
            ("created", |r| r.created.push('x')),
        ];
        for (field, change) in changes {
            let mut forged = sealed.clone();
            let Entry::Step(receipt) = &mut forged.entry else { panic!("step") };
            change(receipt);
            let names: Vec<String> = forged.faults().unwrap().into_iter().map(|f| f.field).collect();
            assert_eq!(names, [field]);
        }
    }

    #[test]
    fn each_part_of_the_seal_is_named() {
        let (_dir, sealed) = sealed();
        let mut forged = sealed.clone();
        forged.seal.prev.replace_range(0..1, "1");
        assert_eq!(forged.faults().unwrap()[0].field, "seal.prev");
        let mut forged = sealed.clone();
        forged.seal.signature.replace_range(0..1, "x");
        assert_eq!(forged.faults().unwrap()[0].field, "seal.signature");
        let mut forged = sealed.clone();
        forged.seal.digests.insert("limits".into(), "00".into());
        assert_eq!(forged.faults().unwrap()[0].field, "seal.digests.limits");
        let mut forged = sealed;
        // Contents and digest re-made together: only the signature can tell.
        forged.entry = Entry::Step(crate::Receipt { warnings: vec!["x".into()], ..testkit::good() });
        forged.seal.digests = forged.digests().unwrap();
        assert_eq!(forged.faults().unwrap()[0].field, "seal.signature");
    }

    #[test]
    fn other_versions_and_wild_tuples_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let signer = Signer::open_or_create(dir.path()).unwrap();
        let line = |change: Change| {
            let mut receipt = testkit::good();
            change(&mut receipt);
            let sealed = Sealed::new(Entry::Step(receipt), GENESIS, &signer).unwrap();
            parse_line(&sealed.line().unwrap()).unwrap_err()
        };
        assert_eq!(line(|r| r.schema_version = 9), LineError::Version { found: 9 });
        assert!(line(|r| r.tuple.batch = 9).to_string().contains("`batch` is 9"));
    }
}
