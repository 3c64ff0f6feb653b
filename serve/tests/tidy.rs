//! House rules on the tracked tree, each a pure function with its own self-test.
//!
//! A failing rule prints every finding as `path:line: what`. The rules: length of
//! files and functions, a front page per module, no `unwrap` outside tests,
//! `unsafe` in one room with its reason, no model family in a common room, the
//! names of the top level, one-way arrows between crates, no uncompiled target,
//! and the size of the tree.

#[path = "tidy/coverage.rs"]
mod coverage;
#[path = "tidy/finding.rs"]
mod finding;
#[path = "tidy/layout.rs"]
mod layout;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/names.rs"]
mod names;
#[path = "tidy/safety.rs"]
mod safety;
#[path = "tidy/style.rs"]
mod style;
#[path = "tidy/tree.rs"]
mod tree;

use std::collections::BTreeSet;

use finding::Finding;
use lexer::{Language, Scanned};

fn assert_tidy(found: Vec<Finding>) {
    let lines: Vec<String> = found.iter().map(Finding::to_string).collect();
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), lines.join("\n"));
}

/// Runs a rule over every Rust and CUDA file.
fn each_source(rule: impl Fn(&str, &str, &Scanned, Language) -> Vec<Finding>) -> Vec<Finding> {
    let mut found = Vec::new();
    for path in tree::tracked() {
        if let Some(language) = Language::of(&path) {
            let text = tree::text(&path).expect("source files are UTF-8");
            found.extend(rule(&path, &text, &lexer::scan(&text, language), language));
        }
    }
    found
}

/// Files that are only compiled for tests: `tests/`, `benches/`, `#[cfg(test)] mod x;`.
fn test_files() -> BTreeSet<String> {
    let paths = tree::tracked();
    let mut files: BTreeSet<String> =
        paths.iter().filter(|p| p.contains("/tests/") || p.contains("/benches/")).cloned().collect();
    for path in paths.iter().filter(|p| p.ends_with(".rs")) {
        let text = tree::text(path).expect("source files are UTF-8");
        for folder in test_modules(path, &text, &lexer::scan(&text, Language::Rust)) {
            let file = format!("{folder}.rs");
            files.extend(
                paths.iter().filter(|p| **p == file || p.starts_with(&format!("{folder}/"))).cloned(),
            );
        }
    }
    files
}

/// Paths without extension that a file declares as test-only modules.
fn test_modules(path: &str, text: &str, scanned: &Scanned) -> Vec<String> {
    let (dir, file) = path.rsplit_once('/').unwrap_or(("", path));
    let stem = file.trim_end_matches(".rs");
    let base = if ["mod", "lib", "main"].contains(&stem) { dir.to_owned() } else { format!("{dir}/{stem}") };
    let test = style::test_lines(scanned);
    let lines: Vec<&str> = text.lines().collect();
    let mut modules = Vec::new();
    for (i, line) in scanned.code.iter().enumerate().filter(|(i, _)| test[*i]) {
        let Some((_, name)) = line.trim().strip_suffix(';').and_then(|l| l.rsplit_once("mod ")) else {
            continue;
        };
        // `#[path = "x.rs"]` above the declaration is relative to the file's own folder.
        let above = lines[..i].iter().rev().take_while(|l| l.trim_start().starts_with("#["));
        let named = above.filter_map(|l| l.split_once("#[path = \"")?.1.split_once(".rs\"")).next();
        modules.push(named.map_or_else(|| format!("{base}/{name}"), |(file, _)| format!("{dir}/{file}")));
    }
    modules
}

#[test]
fn files_and_functions_fit() {
    let mut found = each_source(|path, text, _, _| style::file_length(path, text));
    found.extend(each_source(|path, _, scanned, language| style::function_length(path, scanned, language)));
    assert_tidy(found);
}

#[test]
fn every_module_has_a_front_page() {
    assert_tidy(each_source(|path, text, _, language| match language {
        Language::Rust => style::front_page(path, text),
        Language::Cuda => Vec::new(),
    }));
}

#[test]
fn no_unwrap_outside_tests() {
    let test = test_files();
    assert_tidy(each_source(
        |path, _, scanned, _| {
            if test.contains(path) { Vec::new() } else { style::no_unwrap(path, scanned) }
        },
    ));
}

#[test]
fn test_only_modules_are_recognised() {
    let modules = |path, text| test_modules(path, text, &lexer::scan(text, Language::Rust));
    let plain = "#[cfg(test)]\nmod cases;\nmod real;\n";
    assert_eq!(modules("a/src/lib.rs", plain), ["a/src/cases"]);
    assert_eq!(modules("a/src/b.rs", plain), ["a/src/b/cases"]);
    assert_eq!(
        modules("a/src/b.rs", "#[cfg(test)]\n#[path = \"b_tests.rs\"]\nmod tests;\n"),
        ["a/src/b_tests"]
    );
}

#[test]
fn unsafe_stays_in_its_room_with_its_reason() {
    assert_tidy(each_source(|path, _, scanned, language| match language {
        Language::Rust => safety::unsafe_code(path, scanned),
        Language::Cuda => Vec::new(),
    }));
}

#[test]
fn common_rooms_name_no_family() {
    let mut found = Vec::new();
    for path in tree::tracked() {
        if let Some(text) = tree::text(&path) {
            found.extend(names::family_names(&path, &text));
        }
    }
    assert_tidy(found);
}

#[test]
fn the_top_level_is_the_list_of_rooms() {
    assert_tidy(layout::top_level(&tree::tracked()));
}

#[test]
fn arrows_between_crates_go_one_way() {
    let manifests = ["ledger", "kernels", "receipts", "topologies", "harness", "serve"];
    let found = manifests.iter().flat_map(|room| {
        let path = format!("{room}/Cargo.toml");
        layout::arrows(&path, &tree::text(&path).expect("each room has a manifest"))
    });
    assert_tidy(found.collect());
}

#[test]
fn every_target_is_compiled_by_ci() {
    let paths = tree::tracked();
    assert_tidy(coverage::uncompiled(&coverage::Tree { paths: &paths, read: &tree::text }));
}

#[test]
fn the_tracked_tree_is_small() {
    let sized = tree::tracked().into_iter().map(|path| {
        let bytes = std::fs::metadata(tree::root().join(&path)).map_or(0, |m| m.len());
        (path, bytes)
    });
    assert_tidy(layout::tree_size(&sized.collect::<Vec<_>>()));
}
