//! Canonical JSON (RFC 8785) and the digests taken over it.
//!
//! RFC 8785 prints every number as an IEEE double, so a float or an integer beyond 2^53 is a value
//! two implementations may print differently. Nothing that is hashed or signed here may hold one:
//! [`canonical`] refuses it, naming the path of the offending field.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Largest integer magnitude a canonical document may hold: 2^53 - 1 (bytes: 9 PB; nanoseconds: 104 days).
pub const MAX_EXACT_INTEGER: u64 = (1 << 53) - 1;

/// Why a value has no canonical form.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CanonError {
    /// A number is a float, or an integer a double cannot hold exactly.
    #[error("field `{path}` holds {value}, which is not an integer of magnitude at most {MAX_EXACT_INTEGER}")]
    InexactNumber {
        /// Dotted path of the field.
        path: String,
        /// The number as JSON prints it.
        value: String,
    },
    /// The value is not representable as JSON at all.
    #[error("value has no JSON form: {0}")]
    NotJson(String),
}

/// Canonical JSON bytes of `value`.
pub fn canonical<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, CanonError> {
    let value = serde_json::to_value(value).map_err(|e| CanonError::NotJson(e.to_string()))?;
    canonical_value(&value)
}

/// Canonical JSON bytes of a JSON value.
pub fn canonical_value(value: &Value) -> Result<Vec<u8>, CanonError> {
    check_exact(value, &mut String::new())?;
    serde_json_canonicalizer::to_vec(value).map_err(|e| CanonError::NotJson(e.to_string()))
}

/// SHA-256 of the canonical JSON of `value`, in lower-case hex.
pub fn digest<T: Serialize + ?Sized>(value: &T) -> Result<String, CanonError> {
    Ok(sha256_hex(&canonical(value)?))
}

/// SHA-256 of `bytes`, in lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// `bytes` in lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        out.push(char::from(DIGITS[usize::from(b >> 4)]));
        out.push(char::from(DIGITS[usize::from(b & 15)]));
    }
    out
}

/// Exactly `N` bytes from lower-case hex; `None` for any other text, upper case included, so that
/// every value has one spelling.
pub fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != N * 2 {
        return None;
    }
    let nibble = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut out = [0u8; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = (nibble(pair[0])? << 4) | nibble(pair[1])?;
    }
    Some(out)
}

/// The first 16 characters of an id: what is shown to people.
pub fn short(id: &str) -> &str {
    id.get(..16).unwrap_or(id)
}

fn check_exact(value: &Value, path: &mut String) -> Result<(), CanonError> {
    match value {
        Value::Number(n) => {
            let exact = n.as_u64().is_some_and(|v| v <= MAX_EXACT_INTEGER)
                || n.as_i64().is_some_and(|v| v.unsigned_abs() <= MAX_EXACT_INTEGER);
            if exact {
                return Ok(());
            }
            Err(CanonError::InexactNumber { path: path.clone(), value: n.to_string() })
        }
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(i, item)| descend(item, path, &i.to_string()))
        }
        Value::Object(map) => map.iter().try_for_each(|(key, item)| descend(item, path, key)),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

fn descend(value: &Value, path: &mut String, key: &str) -> Result<(), CanonError> {
    let kept = path.len();
    if kept > 0 {
        path.push('.');
    }
    path.push_str(key);
    check_exact(value, path)?;
    path.truncate(kept);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_and_no_space_is_written() {
        let bytes = canonical(&json!({"b": [1, 2], "a": {"z": null, "y": true}})).unwrap();
        assert_eq!(bytes, br#"{"a":{"y":true,"z":null},"b":[1,2]}"#);
    }

    #[test]
    fn floats_and_wide_integers_are_refused_by_path() {
        for bad in [json!(0.5), json!(1u64 << 53), json!(-(1i64 << 53)), json!(u64::MAX)] {
            let err = canonical(&json!({"a": {"b": [0, bad]}})).unwrap_err();
            assert!(matches!(&err, CanonError::InexactNumber { path, .. } if path == "a.b.1"), "{err}");
        }
        assert!(canonical(&json!([MAX_EXACT_INTEGER, -(MAX_EXACT_INTEGER as i64)])).is_ok());
    }

    #[test]
    fn sha256_of_abc_is_the_published_one() {
        assert_eq!(sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn hex_has_one_spelling() {
        assert_eq!(unhex::<2>("0aff"), Some([0x0a, 0xff]));
        assert_eq!(unhex::<2>("0aFF"), None);
        assert_eq!(unhex::<2>("0af"), None);
        assert_eq!(unhex::<2>("é\u{0}f"), None);
    }
}
