//! The shape of the house: top-level names, one-way arrows between rooms, size.

use std::collections::BTreeSet;

use super::finding::Finding;

/// Names the top level must hold.
const REQUIRED: [&str; 14] = [
    ".ci",
    ".gitignore",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "docs",
    "harness",
    "kernels",
    "ledger",
    "receipts",
    "rustfmt.toml",
    "serve",
    "topologies",
];
/// Names the top level may hold.
const OPTIONAL: [&str; 2] = ["clippy.toml", "models.lock.toml"];

/// Bytes all tracked files together stay below.
pub const TREE_BYTES: u64 = 36 << 20;

/// Which rooms a package may use. The package of `serve/` is called `sparkpipe`.
const ARROWS: [(&str, &[&str]); 6] = [
    ("ledger", &[]),
    ("kernels", &["ledger"]),
    ("receipts", &["ledger", "topologies"]),
    ("topologies", &[]),
    ("harness", &["ledger", "kernels", "receipts", "topologies"]),
    ("sparkpipe", &["ledger", "kernels", "receipts", "topologies", "harness"]),
];

/// The top level is exactly the rooms plus the fixed files.
pub fn top_level(paths: &[String]) -> Vec<Finding> {
    let names: BTreeSet<&str> = paths.iter().map(|p| p.split('/').next().unwrap_or(p)).collect();
    let known: BTreeSet<&str> = REQUIRED.into_iter().chain(OPTIONAL).collect();
    let extra =
        names.difference(&known).map(|n| Finding::new(n, 0, "does not belong at the top level".into()));
    let absent = REQUIRED.iter().filter(|n| !names.contains(*n));
    extra.chain(absent.map(|n| Finding::new(n, 0, "missing at the top level".into()))).collect()
}

/// The tracked tree stays small enough to clone without a thought.
pub fn tree_size(sizes: &[(String, u64)]) -> Vec<Finding> {
    let total: u64 = sizes.iter().map(|(_, bytes)| bytes).sum();
    if total < TREE_BYTES {
        return Vec::new();
    }
    let largest = sizes.iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(path, _)| path);
    vec![Finding::new(
        largest,
        0,
        format!("tracked tree of {total} bytes, the limit is {TREE_BYTES}; this is the largest"),
    )]
}

/// A manifest's dependencies on other rooms follow [`ARROWS`].
pub fn arrows(path: &str, manifest: &str) -> Vec<Finding> {
    let value: toml::Table = match manifest.parse() {
        Ok(value) => value,
        Err(e) => return vec![Finding::new(path, 0, format!("is not TOML: {e}"))],
    };
    let name = value.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()).unwrap_or("");
    let Some((_, allowed)) = ARROWS.iter().find(|(room, _)| *room == name) else {
        return vec![Finding::new(path, 0, format!("package `{name}` is none of the six rooms"))];
    };
    let rooms = dependency_names(&value).into_iter().filter(|d| ARROWS.iter().any(|(room, _)| room == d));
    rooms
        .filter(|d| !allowed.contains(&d.as_str()) && d != name)
        .map(|d| Finding::new(path, 0, format!("`{name}` uses `{d}`: that arrow points the wrong way")))
        .collect()
}

/// Names in every dependency table, target-specific ones too.
fn dependency_names(manifest: &toml::Table) -> BTreeSet<String> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(|t| t.as_table()) {
        tables.extend(targets.values().filter_map(|t| t.as_table()));
    }
    let kinds = ["dependencies", "dev-dependencies", "build-dependencies"];
    let listed = tables.into_iter().flat_map(|t| kinds.iter().filter_map(|k| t.get(*k)?.as_table()));
    listed.flat_map(|t| t.iter().map(|(key, v)| renamed(key, v))).collect()
}

fn renamed(key: &str, value: &toml::Value) -> String {
    value.get("package").and_then(|p| p.as_str()).unwrap_or(key).to_owned()
}

#[cfg(test)]
mod rules {
    use super::*;

    #[test]
    fn a_stray_and_a_missing_top_level_name_are_found() {
        let mut paths: Vec<String> = REQUIRED.iter().map(|n| format!("{n}/x")).collect();
        assert!(top_level(&paths).is_empty());
        paths[0] = "scratch.txt".into();
        let found = top_level(&paths);
        assert_eq!(found.iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["scratch.txt", ".ci"]);
    }

    #[test]
    fn a_tree_over_the_limit_is_found() {
        assert!(tree_size(&[("a".into(), TREE_BYTES - 1)]).is_empty());
        let found = tree_size(&[("a".into(), 1), ("big".into(), TREE_BYTES)]);
        assert_eq!(found[0].path, "big");
    }

    #[test]
    fn an_arrow_backwards_is_found_in_any_table() {
        let bad =
            |table: &str| format!("[package]\nname = \"ledger\"\n[{table}]\nkernels.workspace = true\n");
        for table in ["dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"] {
            assert_eq!(arrows("ledger/Cargo.toml", &bad(table)).len(), 1, "{table}");
        }
        let good = "[package]\nname = \"kernels\"\n[dependencies]\nledger.workspace = true\nserde = \"1\"\n";
        assert!(arrows("kernels/Cargo.toml", good).is_empty());
        assert_eq!(arrows("x/Cargo.toml", "[package]\nname = \"attic\"\n").len(), 1);
    }
}
