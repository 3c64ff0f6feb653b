//! Identities: what a receipt was made *with*. A receipt dies when one of these changes, never by age.
//!
//! [`AdmissionIdentity`] decides whether `serve` may start; [`EvidenceIdentity`] decides whether a
//! retained receipt is still current evidence for the sources at HEAD.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The value of an identity field that does not apply (say `cubins` on the host device).
pub const NONE: &str = "none";

/// What must be equal, field by field, between the run that measured and the process that serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdmissionIdentity {
    /// BLAKE3 of the running executable, in hex.
    pub executable: String,
    /// BLAKE3 over the device code really loaded, in hex; `none` on the host device.
    pub cubins: String,
    /// Driver version; `none` on the host device.
    pub driver: String,
    /// Device class: the key into the policy (`host`, ...). One class never admits another.
    pub device_class: String,
    /// Device name as the system reports it.
    pub device_name: String,
    /// Pack id: hash of the pack's manifest.
    pub pack: String,
    /// Hash of the precision recipe.
    pub recipe: String,
    /// Hash of the topology file's bytes.
    pub topology: String,
    /// Hash of the verdict policy.
    pub policy: String,
    /// Every `SPARKPIPE_DISABLE_*` switch and its state, by name.
    pub switches: BTreeMap<String, String>,
}

/// What the evidence rests on: sources and tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EvidenceIdentity {
    /// Hash over kernel, ledger, engine, plan and instrument sources, in hex.
    pub sources: String,
    /// Hash of `Cargo.lock`, in hex.
    pub lockfile: String,
    /// Compiler versions, as they print themselves.
    pub compiler: String,
}

/// One field that differs between two identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldDiff {
    /// Field name; a switch reads `switches.NAME`.
    pub field: String,
    /// The value in `self`; `absent` where it has none.
    pub ours: String,
    /// The value in the other; `absent` where it has none.
    pub theirs: String,
}

impl AdmissionIdentity {
    /// The first field, in declaration order, in which two identities differ.
    pub fn first_difference(&self, other: &Self) -> Option<FieldDiff> {
        first_pair(self.fields(), other.fields()).or_else(|| self.switch_difference(other))
    }

    /// Names of the fields that are empty, which no identity may have.
    pub fn empty_fields(&self) -> Vec<&'static str> {
        empty(self.fields())
    }

    fn fields(&self) -> [(&'static str, &str); 9] {
        // Destructured so that a new field cannot be forgotten here.
        let Self {
            executable,
            cubins,
            driver,
            device_class,
            device_name,
            pack,
            recipe,
            topology,
            policy,
            switches: _,
        } = self;
        [
            ("executable", executable),
            ("cubins", cubins),
            ("driver", driver),
            ("device_class", device_class),
            ("device_name", device_name),
            ("pack", pack),
            ("recipe", recipe),
            ("topology", topology),
            ("policy", policy),
        ]
    }

    fn switch_difference(&self, other: &Self) -> Option<FieldDiff> {
        let state = |side: &Self, name: &String| {
            side.switches.get(name).cloned().unwrap_or_else(|| "absent".to_owned())
        };
        let names = self.switches.keys().chain(other.switches.keys());
        names.filter(|name| self.switches.get(*name) != other.switches.get(*name)).min().map(|name| {
            FieldDiff {
                field: format!("switches.{name}"),
                ours: state(self, name),
                theirs: state(other, name),
            }
        })
    }
}

impl EvidenceIdentity {
    /// The first field, in declaration order, in which two identities differ.
    pub fn first_difference(&self, other: &Self) -> Option<FieldDiff> {
        first_pair(self.fields(), other.fields())
    }

    /// Names of the fields that are empty, which no identity may have.
    pub fn empty_fields(&self) -> Vec<&'static str> {
        empty(self.fields())
    }

    fn fields(&self) -> [(&'static str, &str); 3] {
        let Self { sources, lockfile, compiler } = self;
        [("sources", sources), ("lockfile", lockfile), ("compiler", compiler)]
    }
}

fn first_pair<const N: usize>(ours: [(&str, &str); N], theirs: [(&str, &str); N]) -> Option<FieldDiff> {
    ours.iter().zip(&theirs).find(|(a, b)| a.1 != b.1).map(|(a, b)| FieldDiff {
        field: a.0.to_owned(),
        ours: a.1.to_owned(),
        theirs: b.1.to_owned(),
    })
}

fn empty<const N: usize>(fields: [(&'static str, &str); N]) -> Vec<&'static str> {
    fields.iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| *name).collect()
}

/// A file could not be hashed.
#[derive(Debug, thiserror::Error)]
#[error("cannot hash {path:?}: {source}")]
pub struct HashError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// BLAKE3 of a file's bytes, in hex.
pub fn hash_file(path: &Path) -> Result<String, HashError> {
    let hash = || -> io::Result<String> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(File::open(path)?)?;
        Ok(hasher.finalize().to_hex().to_string())
    };
    hash().map_err(|source| HashError { path: path.to_owned(), source })
}

/// BLAKE3 of the executable this process runs, in hex.
///
/// On Linux the kernel's own handle is read, so a binary replaced on disk while it runs is still
/// hashed as what it is, not as what took its name.
pub fn hash_running_executable() -> Result<String, HashError> {
    let handle = Path::new("/proc/self/exe");
    if handle.exists() {
        return hash_file(handle);
    }
    let path = std::env::current_exe()
        .map_err(|source| HashError { path: PathBuf::from("the running executable"), source })?;
    hash_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    #[test]
    fn equal_identities_have_no_difference() {
        assert_eq!(testkit::admission().first_difference(&testkit::admission()), None);
        assert_eq!(testkit::evidence().first_difference(&testkit::evidence()), None);
    }

    /// Each scalar field, changed alone, is the one named.
    #[test]
    fn each_field_changed_alone_is_named() {
        let base = serde_json::to_value(testkit::admission()).unwrap();
        for field in base.as_object().unwrap().keys().filter(|f| *f != "switches") {
            let mut changed = base.clone();
            changed[field] = "changed".into();
            let changed: AdmissionIdentity = serde_json::from_value(changed).unwrap();
            let diff = testkit::admission().first_difference(&changed).unwrap();
            assert_eq!((diff.field.as_str(), diff.theirs.as_str()), (field.as_str(), "changed"));
        }
    }

    #[test]
    fn a_switch_is_named_with_both_states() {
        let mut other = testkit::admission();
        other.switches.insert("SPARKPIPE_DISABLE_AVX512".into(), "1".into());
        let diff = testkit::admission().first_difference(&other).unwrap();
        assert_eq!(diff.field, "switches.SPARKPIPE_DISABLE_AVX512");
        assert_eq!((diff.ours.as_str(), diff.theirs.as_str()), ("absent", "1"));
    }

    #[test]
    fn appending_one_byte_changes_the_file_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"abc").unwrap();
        let before = hash_file(&path).unwrap();
        assert_eq!(before, blake3::hash(b"abc").to_hex().to_string());
        std::fs::write(&path, b"abcd").unwrap();
        assert_ne!(hash_file(&path).unwrap(), before);
        assert!(hash_file(&dir.path().join("none")).unwrap_err().to_string().contains("none"));
    }

    #[test]
    fn the_running_executable_hashes_as_its_file() {
        let file = hash_file(&std::env::current_exe().unwrap()).unwrap();
        assert_eq!(hash_running_executable().unwrap(), file);
    }
}
