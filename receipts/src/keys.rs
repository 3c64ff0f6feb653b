//! The signing key: Ed25519, made on first use, readable by its owner alone.
//!
//! Two processes may make it at once. Each writes its own candidate and links it to the final name,
//! which fails if the name is taken; both then read the one file that won.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};

use crate::canon::{hex, unhex};

/// File name of the key in its directory.
pub const KEY_FILE: &str = "signing.key";

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file system said no.
    #[error("signing key {path:?}: {source}")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not 64 hex digits.
    #[error("signing key {path:?} is not 64 lower-case hex digits and a newline")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// Others may read the file.
    #[error("signing key {path:?} has mode {mode:03o}: must be 600")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system gave no random bytes.
    #[error("no random bytes for a signing key: {0}")]
    Random(getrandom::Error),
}

/// A key that signs receipts.
pub struct Signer {
    key: SigningKey,
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signer").field("public", &self.public()).finish_non_exhaustive()
    }
}

impl Signer {
    /// The key in `dir`, made if there is none.
    pub fn open_or_create(dir: &Path) -> Result<Self, KeyError> {
        let path = dir.join(KEY_FILE);
        if !path.exists() {
            fs::create_dir_all(dir).map_err(|source| KeyError::Io { path: dir.to_owned(), source })?;
            create(dir, &path)?;
        }
        read(&path)
    }

    /// Public key, in hex: the `signer` of every receipt it seals.
    pub fn public(&self) -> String {
        hex(self.key.verifying_key().as_bytes())
    }

    /// Signature over `message`, in hex.
    pub fn sign(&self, message: &[u8]) -> String {
        hex(&self.key.sign(message).to_bytes())
    }
}

/// Whether `signature` over `message` is by `public`, both in lower-case hex. Strict: one signature
/// has one encoding.
pub fn verify(public: &str, message: &[u8], signature: &str) -> bool {
    let key = unhex::<32>(public).and_then(|bytes| VerifyingKey::from_bytes(&bytes).ok());
    let signature = unhex::<64>(signature).map(|bytes| Signature::from_bytes(&bytes));
    match (key, signature) {
        (Some(key), Some(signature)) => key.verify_strict(message, &signature).is_ok(),
        _ => false,
    }
}

fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0u8; N];
    getrandom::fill(&mut bytes).map_err(KeyError::Random)?;
    Ok(bytes)
}

fn create(dir: &Path, path: &Path) -> Result<(), KeyError> {
    let candidate = dir.join(format!(".{KEY_FILE}.{}", hex(&random::<8>()?)));
    let secret = hex(&random::<32>()?);
    let write = || -> io::Result<()> {
        let mut file = private_file(&candidate)?;
        file.write_all(secret.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        match fs::hard_link(&candidate, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }?;
        File::open(dir)?.sync_all()
    };
    let written = write();
    // The candidate has served whether or not it won; a failed write is what is reported.
    let removed = fs::remove_file(&candidate);
    written.and(removed).map_err(|source| KeyError::Io { path: path.to_owned(), source })
}

#[cfg(unix)]
fn private_file(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

fn read(path: &Path) -> Result<Signer, KeyError> {
    let io = |source| KeyError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().map_err(io)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
    }
    let mut text = String::new();
    file.take(128).read_to_string(&mut text).map_err(io)?;
    let secret = text.strip_suffix('\n').and_then(unhex::<32>);
    let secret = secret.ok_or_else(|| KeyError::Malformed { path: path.to_owned() })?;
    Ok(Signer { key: SigningKey::from_bytes(&secret) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_private_and_signs() {
        let dir = tempfile::tempdir().unwrap();
        let first = Signer::open_or_create(dir.path()).unwrap();
        let again = Signer::open_or_create(dir.path()).unwrap();
        assert_eq!(first.public(), again.public());
        let signature = first.sign(b"message");
        assert!(verify(&again.public(), b"message", &signature));
        assert!(!verify(&again.public(), b"massage", &signature));
        assert!(!verify(&again.public(), b"message", &signature.to_uppercase()));
        assert!(!verify("", b"message", &signature));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no candidate is left behind");
    }

    #[test]
    fn racing_makers_end_with_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let keys: Vec<String> = std::thread::scope(|scope| {
            let make = || Signer::open_or_create(dir.path()).unwrap().public();
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|k| *k == keys[0]));
    }

    #[cfg(unix)]
    #[test]
    fn an_exposed_or_malformed_key_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        Signer::open_or_create(dir.path()).unwrap();
        let path = dir.path().join(KEY_FILE);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let err = Signer::open_or_create(dir.path()).unwrap_err().to_string();
        assert!(err.contains("mode 640"), "{err}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "short").unwrap();
        assert!(matches!(Signer::open_or_create(dir.path()), Err(KeyError::Malformed { .. })));
    }
}
