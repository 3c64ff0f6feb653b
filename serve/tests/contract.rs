//! README is the contract and `docs/techdebt.md` its exact difference to HEAD.
//!
//! Each promise `[P-id]` of README is shown by a test that exists or owed by an
//! entry of techdebt; each entry owes a promise. `.ci/debt-check` watches that no
//! entry leaves silently, and is tested here on small histories.

#[path = "contract/page.rs"]
mod page;
#[path = "tidy/tree.rs"]
mod tree;

use std::fs;
use std::path::Path;
use std::process::Command;

use page::{Debt, Promise, breaches, debts, has_test, promises};

#[test]
fn every_promise_is_shown_or_owed() {
    let readme = tree::text("README.md").expect("README.md is there");
    let debt = tree::text("docs/techdebt.md").expect("docs/techdebt.md is there");
    let sources: Vec<(String, String)> = tree::tracked()
        .into_iter()
        .filter(|p| p.ends_with(".rs"))
        .map(|p| (p.clone(), tree::text(&p).expect("source files are UTF-8")))
        .collect();
    let is_test = |krate: &str, name: &str| {
        let folder = if krate == "sparkpipe" { "serve/".to_owned() } else { format!("{krate}/") };
        sources.iter().any(|(path, text)| path.starts_with(&folder) && has_test(text, name))
    };
    let made = promises(&readme);
    assert!(made.len() >= 20, "README's promises no longer parse: {made:?}");
    let found = breaches(&made, &debts(&debt), &is_test);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_promise_neither_shown_nor_owed_is_found() {
    let made =
        promises("- **[P-a]** One.\n  Shown by `ledger::adds`,\n  `kernels::too`.\n- **[P-b]** Two.\n");
    assert_eq!(made[0].shown_by, ["ledger::adds", "kernels::too"]);
    let owed = debts("## 3. Two is missing\nPromise: P-b\n");
    assert_eq!(owed, [Debt { number: 3, promise: "P-b".into() }]);
    assert!(breaches(&made, &owed, &|_, _| true).is_empty());
    assert_eq!(breaches(&made, &[], &|_, _| true).len(), 1);
    assert_eq!(breaches(&made, &owed, &|_, name| name != "too").len(), 1);
}

#[test]
fn an_entry_without_promise_or_order_is_found() {
    let made = [Promise { id: "P-a".into(), shown_by: vec!["x::y".into()] }];
    let owed = debts("## 2. b\nPromise: P-a\n## 1. a\nPromise: P-z\n## 5. c\n");
    assert_eq!(breaches(&made, &owed, &|_, _| true).len(), 3);
}

#[test]
fn only_tests_that_run_show_a_promise() {
    assert!(has_test("#[test]\nfn a() {}", "a"));
    assert!(has_test("#[tokio::test(flavor = \"multi_thread\")]\nasync fn a() {}", "a"));
    assert!(!has_test("fn a() {}", "a"));
    assert!(!has_test("#[test]\n#[ignore]\nfn a() {}", "a"));
    assert!(!has_test("#[test]\nfn ab() {}", "a"));
}

/// A history of commits, each a (message, README, techdebt) triple; returns the check's exit and output.
fn debt_check(commits: &[(&str, &str, &str)]) -> (bool, String) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let git = |args: &[&str]| {
        let who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"];
        let out =
            Command::new("git").args(who).args(args).current_dir(dir.path()).output().expect("git runs");
        assert!(out.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    };
    git(&["init", "-q"]);
    fs::create_dir(dir.path().join("docs")).expect("a new folder");
    for (message, readme, debt) in commits {
        fs::write(dir.path().join("README.md"), readme).expect("writable");
        fs::write(dir.path().join("docs/techdebt.md"), debt).expect("writable");
        git(&["add", "-A"]);
        git(&["commit", "-q", "--allow-empty", "-m", message]);
    }
    run_check(dir.path())
}

fn run_check(root: &Path) -> (bool, String) {
    let script = tree::root().join(".ci/debt-check");
    let out = Command::new("bash")
        .arg(script)
        .env("DEBT_CHECK_ROOT", root)
        .env_remove("CI_BASE")
        .output()
        .expect("bash runs");
    let text = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    (out.status.success(), text)
}

const OWED: &str = "- **[P-a]** One.\n";
const SHOWN: &str = "- **[P-a]** One.\n  Shown by `ledger::adds`.\n";
const ONE: &str = "## 1. One\nPromise: P-a\n";

#[test]
fn an_entry_that_leaves_silently_fails_the_debt_check() {
    let (passed, text) = debt_check(&[("first", OWED, ONE), ("second", SHOWN, "")]);
    assert!(!passed && text.contains("Closes-debt: 1"), "{text}");
    let (passed, text) = debt_check(&[("first", OWED, ONE), ("second\n\nCloses-debt: 2", SHOWN, "")]);
    assert!(!passed, "{text}");
}

#[test]
fn an_entry_closed_without_a_test_fails_the_debt_check() {
    let (passed, text) = debt_check(&[("first", OWED, ONE), ("second\n\nCloses-debt: 1", OWED, "")]);
    assert!(!passed && text.contains("names no test"), "{text}");
}

#[test]
fn an_entry_closed_with_its_line_and_test_passes_the_debt_check() {
    let (passed, text) = debt_check(&[("first", OWED, ONE), ("second\n\nCloses-debt: 4, 1", SHOWN, "")]);
    assert!(passed, "{text}");
    let (passed, text) = debt_check(&[("first", OWED, ONE), ("second", OWED, ONE)]);
    assert!(passed && text.contains("1 open"), "{text}");
}

#[test]
fn a_tree_without_history_skips_the_debt_check() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (passed, text) = run_check(dir.path());
    assert!(passed && text.contains("skipped"), "{text}");
}
