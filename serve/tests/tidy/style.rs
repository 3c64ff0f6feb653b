//! Rules on one source file's shape: length, function length, front page, `unwrap`.

use super::finding::Finding;
use super::lexer::{Language, Scanned, word_end};

/// A file longer than this is two ideas.
pub const FILE_LINES: usize = 500;
/// A function longer than this does not fit a screen.
pub const FUNCTION_LINES: usize = 80;

/// The file holds at most [`FILE_LINES`] lines.
pub fn file_length(path: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    if lines <= FILE_LINES {
        return Vec::new();
    }
    vec![Finding::new(path, lines, format!("{lines} lines, the limit is {FILE_LINES}: split it"))]
}

/// A Rust file starts with its `//!` page.
pub fn front_page(path: &str, text: &str) -> Vec<Finding> {
    if text.lines().find(|l| !l.trim().is_empty()).is_some_and(|l| l.starts_with("//! ")) {
        return Vec::new();
    }
    vec![Finding::new(path, 1, "does not start with a `//!` page saying its one idea".into())]
}

/// Each function spans at most [`FUNCTION_LINES`] lines, signature to closing brace.
pub fn function_length(path: &str, scanned: &Scanned, language: Language) -> Vec<Finding> {
    let spans = match language {
        Language::Rust => rust_functions(&scanned.code),
        Language::Cuda => cuda_functions(&scanned.code),
    };
    let long = spans.into_iter().filter(|(first, last)| last - first + 1 > FUNCTION_LINES);
    long.map(|(first, last)| {
        let lines = last - first + 1;
        Finding::new(path, first + 1, format!("function of {lines} lines, the limit is {FUNCTION_LINES}"))
    })
    .collect()
}

/// No `.unwrap()` outside test code; `lines` of `#[cfg(test)]` items are exempt.
pub fn no_unwrap(path: &str, scanned: &Scanned) -> Vec<Finding> {
    let test = test_lines(scanned);
    let hits = scanned.code.iter().enumerate().filter(|(i, l)| l.contains(".unwrap()") && !test[*i]);
    hits.map(|(i, _)| Finding::new(path, i + 1, "`.unwrap()` outside tests: return an error".into()))
        .collect()
}

/// For each line, whether it belongs to an item under `#[cfg(test)]` or `#[test]`.
pub fn test_lines(scanned: &Scanned) -> Vec<bool> {
    let mut test = vec![false; scanned.code.len()];
    for (i, line) in scanned.code.iter().enumerate() {
        let marked = ["#[cfg(test)]", "#[cfg(all(test", "#[test]"].iter().any(|m| line.contains(m));
        if marked && let Some(last) = item_end(&scanned.code, i) {
            test[i..=last].fill(true);
        }
    }
    test
}

/// Last line of the item that starts at or after line `first` (its `}` or `;`).
fn item_end(code: &[String], first: usize) -> Option<usize> {
    let mut depth = 0usize;
    let mut nested = 0usize;
    for (i, line) in code.iter().enumerate().skip(first) {
        for c in line.chars() {
            match c {
                '(' | '[' => nested += 1,
                ')' | ']' => nested = nested.saturating_sub(1),
                '{' => depth += 1,
                '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 && nested == 0 {
                        return Some(i);
                    }
                }
                ';' if depth == 0 && nested == 0 => return Some(i),
                _ => {}
            }
        }
    }
    None
}

/// `fn name` items with a body: (first line, last line), from 0.
fn rust_functions(code: &[String]) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    for (i, line) in code.iter().enumerate() {
        let Some(end) = word_end(line, "fn") else { continue };
        let named = line[end..].trim_start().starts_with(|c: char| c.is_alphabetic() || c == '_');
        if named && let Some(last) = item_end(code, i) {
            spans.push((i, last));
        }
    }
    spans
}

/// C++ definitions `.. name(..) .. {` outside other functions.
fn cuda_functions(code: &[String]) -> Vec<(usize, usize)> {
    let mut spans = Vec::new();
    let mut head = String::new();
    let mut start = 0;
    let mut depth = 0usize;
    let mut opened: Option<(usize, usize)> = None;
    let mut continued = false;
    for (i, line) in code.iter().enumerate() {
        let directive = continued || line.trim_start().starts_with('#');
        continued = directive && line.trim_end().ends_with('\\');
        if directive {
            continue;
        }
        for c in line.chars() {
            match c {
                '{' => {
                    let scope = ["namespace", "struct", "class", "enum", "union"];
                    let aggregate = scope.iter().any(|w| word_end(&head, w).is_some());
                    if opened.is_none() && head.contains('(') && !head.contains('=') && !aggregate {
                        opened = Some((depth, start));
                    }
                    depth += 1;
                    head.clear();
                }
                '}' => {
                    depth = depth.saturating_sub(1);
                    if let Some((at, first)) = opened
                        && at == depth
                    {
                        spans.push((first, i));
                        opened = None;
                    }
                    head.clear();
                }
                ';' => head.clear(),
                c if c.is_whitespace() && head.is_empty() => {}
                c => {
                    if head.is_empty() {
                        start = i;
                    }
                    head.push(c);
                }
            }
        }
        if !head.is_empty() {
            head.push(' ');
        }
    }
    spans
}

#[cfg(test)]
mod rules {
    use super::super::lexer::scan;
    use super::*;

    fn rust(text: &str) -> Scanned {
        scan(text, Language::Rust)
    }

    #[test]
    fn a_file_of_501_lines_is_found() {
        assert!(file_length("a.rs", &"x\n".repeat(500)).is_empty());
        assert_eq!(file_length("a.rs", &"x\n".repeat(501)).len(), 1);
    }

    #[test]
    fn a_missing_front_page_is_found() {
        assert!(front_page("a.rs", "//! One idea.\nfn f() {}").is_empty());
        assert_eq!(front_page("a.rs", "// plain\nfn f() {}").len(), 1);
        assert_eq!(front_page("a.rs", "").len(), 1);
    }

    #[test]
    fn a_function_of_81_lines_is_found_whatever_its_strings_hold() {
        let body = "    let s = \"}\"; // }\n";
        let of = |lines: usize| format!("fn f(x: [u8; 2]) {{\n{}}}\n", body.repeat(lines - 2));
        assert!(function_length("a.rs", &rust(&of(80)), Language::Rust).is_empty());
        assert_eq!(function_length("a.rs", &rust(&of(81)), Language::Rust).len(), 1);
        let declared = format!("trait T {{ fn f(); }}\n{}", "\n".repeat(100));
        assert!(function_length("a.rs", &rust(&declared), Language::Rust).is_empty());
    }

    #[test]
    fn a_long_cuda_kernel_is_found_inside_extern_c() {
        let of = |lines: usize| {
            let body = "  if (x) { y(); }\n".repeat(lines - 2);
            format!("#define M(a) {{ \\\n  a\nextern \"C\" {{\n__global__ void k(int x) {{\n{body}}}\n}}\n")
        };
        let find = |t: &str| function_length("k.cu", &scan(t, Language::Cuda), Language::Cuda).len();
        assert_eq!(find(&of(80)), 0);
        assert_eq!(find(&of(81)), 1);
    }

    #[test]
    fn an_unwrap_outside_tests_is_found() {
        assert_eq!(no_unwrap("a.rs", &rust("fn f() { x.unwrap() }")).len(), 1);
        let exempt = "// x.unwrap()\nfn f() {}\n#[cfg(test)]\nmod tests {\n fn g() { x.unwrap() }\n}\n";
        assert!(no_unwrap("a.rs", &rust(exempt)).is_empty());
        let after = format!("{exempt}fn h() {{ y.unwrap() }}");
        assert_eq!(no_unwrap("a.rs", &rust(&after))[0].line, 7);
    }
}
