//! `unsafe` lives in one room and every use of it says why it is sound.

use super::finding::Finding;
use super::lexer::{Scanned, word_end};

/// The only room that may hold `unsafe`.
pub const ROOM: &str = "kernels/";

/// No `unsafe` outside [`ROOM`]; inside, each block and impl follows a `SAFETY:` comment.
pub fn unsafe_code(path: &str, scanned: &Scanned) -> Vec<Finding> {
    let mut found = Vec::new();
    for (i, line) in scanned.code.iter().enumerate() {
        let Some(end) = word_end(line, "unsafe") else { continue };
        if !path.starts_with(ROOM) {
            found.push(Finding::new(
                path,
                i + 1,
                format!("`unsafe` outside {ROOM}: wrap it in `kernels::sys`"),
            ));
            continue;
        }
        let rest = next_code(scanned, i, end);
        let uses = rest.starts_with('{') || word_end(rest, "impl").is_some_and(|at| at == "impl".len());
        if uses && !justified(scanned, i) {
            found.push(Finding::new(path, i + 1, "`unsafe` without a `SAFETY:` comment above it".into()));
        }
    }
    found
}

/// The code after byte `end` of line `i`, or the next line that has some.
fn next_code(scanned: &Scanned, i: usize, end: usize) -> &str {
    let rest = scanned.code[i][end..].trim();
    if !rest.is_empty() {
        return rest;
    }
    scanned.code[i + 1..].iter().map(|l| l.trim()).find(|l| !l.is_empty()).unwrap_or("")
}

/// Looks on the line itself, then up through its statement, attributes and comments.
fn justified(scanned: &Scanned, line: usize) -> bool {
    if scanned.comments[line].contains("SAFETY:") {
        return true;
    }
    let mut in_statement = true;
    for i in (0..line).rev() {
        let code = scanned.code[i].trim();
        if scanned.comments[i].contains("SAFETY:") {
            return true;
        }
        let attribute = code.starts_with("#[");
        if code.is_empty() && scanned.comments[i].is_empty() {
            return false;
        }
        if code.is_empty() || attribute {
            in_statement = in_statement && attribute;
        } else if !in_statement || code.ends_with([';', '{', '}', ',']) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod rules {
    use super::super::lexer::{Language, scan};
    use super::*;

    fn find(path: &str, text: &str) -> usize {
        unsafe_code(path, &scan(text, Language::Rust)).len()
    }

    #[test]
    fn unsafe_outside_its_room_is_found() {
        let text = "// SAFETY: none\nfn f() { unsafe { g() } }";
        assert_eq!(find("harness/src/a.rs", text), 1);
        assert_eq!(find("harness/src/a.rs", "#![forbid(unsafe_code)]\n//! unsafe is a word here"), 0);
    }

    #[test]
    fn an_unsafe_block_without_a_reason_is_found() {
        assert_eq!(find("kernels/src/a.rs", "fn f() {\n    unsafe { g() }\n}"), 1);
        assert_eq!(
            find("kernels/src/a.rs", "fn f() {\n    // SAFETY: g has no rule.\n    unsafe { g() }\n}"),
            0
        );
        let statement = "    // SAFETY: bounds checked\n    // above.\n    let x =\n        unsafe { g() };";
        assert_eq!(find("kernels/src/a.rs", statement), 0);
        let stale = "    // SAFETY: for the first\n    unsafe { g() };\n    unsafe { h() };";
        assert_eq!(find("kernels/src/a.rs", stale), 1);
    }

    #[test]
    fn an_unsafe_impl_needs_a_reason_and_a_declaration_does_not() {
        assert_eq!(find("kernels/src/a.rs", "unsafe impl Send for X {}"), 1);
        assert_eq!(find("kernels/src/a.rs", "// SAFETY: owned.\n#[cfg(unix)]\nunsafe impl Send for X {}"), 0);
        assert_eq!(find("kernels/src/a.rs", "/// # Safety\npub unsafe fn g() {}"), 0);
    }
}
