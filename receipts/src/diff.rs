//! Field-by-field difference of two receipts.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::canon::CanonError;
use crate::schema::Entry;

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Dotted path.
    pub field: String,
    /// JSON of the value in the first; `None` where it has no such field.
    pub left: Option<String>,
    /// JSON of the value in the second; `None` where it has no such field.
    pub right: Option<String>,
}

/// Every leaf in which two receipts differ, by path. Arrays of numbers (series) count as one leaf.
pub fn diff(left: &Entry, right: &Entry) -> Result<Vec<Difference>, CanonError> {
    let (left, right) = (leaves(left)?, leaves(right)?);
    let mut paths: Vec<&String> = left.keys().chain(right.keys()).collect();
    paths.sort();
    paths.dedup();
    let changed = paths.into_iter().filter(|path| left.get(*path) != right.get(*path));
    Ok(changed
        .map(|path| Difference {
            field: path.clone(),
            left: left.get(path).cloned(),
            right: right.get(path).cloned(),
        })
        .collect())
}

fn leaves(entry: &Entry) -> Result<BTreeMap<String, String>, CanonError> {
    let value = serde_json::to_value(entry).map_err(|e| CanonError::NotJson(e.to_string()))?;
    let mut out = BTreeMap::new();
    // The tag (`step`, `kernel`) is not part of a field's path: both kinds share many fields.
    for (tag, body) in value.as_object().into_iter().flatten() {
        out.insert("entry".to_owned(), format!("\"{tag}\""));
        flatten(body, String::new(), &mut out);
    }
    Ok(out)
}

fn flatten(value: &Value, path: String, out: &mut BTreeMap<String, String>) {
    let join = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(map) if !map.is_empty() => {
            map.iter().for_each(|(name, item)| flatten(item, join(name), out));
        }
        Value::Array(items) if items.iter().any(|i| i.is_object() || i.is_array()) => {
            items.iter().enumerate().for_each(|(i, item)| flatten(item, join(&i.to_string()), out));
        }
        leaf => {
            out.insert(path, leaf.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit;

    #[test]
    fn equal_receipts_do_not_differ() {
        assert_eq!(diff(&Entry::Step(testkit::good()), &Entry::Step(testkit::good())).unwrap(), []);
    }

    #[test]
    fn each_changed_leaf_is_named_once_with_both_values() {
        let mut other = testkit::good();
        other.tuple.batch = 16;
        other.measured.as_mut().unwrap().series_ns[0] = 5;
        other.canary = None;
        let found = diff(&Entry::Step(testkit::good()), &Entry::Step(other)).unwrap();
        let fields: Vec<&str> = found.iter().map(|d| d.field.as_str()).collect();
        assert_eq!(
            fields,
            [
                "canary",
                "canary.after_ns",
                "canary.before_ns",
                "canary.moved_ppm",
                "measured.series_ns",
                "tuple.batch"
            ]
        );
        let batch = found.last().unwrap();
        assert_eq!((batch.left.as_deref(), batch.right.as_deref()), (Some("8"), Some("16")));
        assert_eq!(found[0].left, None);
    }

    #[test]
    fn a_step_and_a_kernel_differ_by_tag() {
        let found = diff(&Entry::Step(testkit::good()), &Entry::Kernel(testkit::kernel())).unwrap();
        assert!(found.iter().any(|d| d.field == "entry"));
    }
}
