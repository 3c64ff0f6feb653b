//! `docs/MODULE_MAP.md` is generated from the first sentence of every module's page.
//!
//! After adding or renaming a file: `git add` it, then
//! `SPARKPIPE_BLESS=1 cargo test -p sparkpipe --test module_map`.

#[path = "tidy/tree.rs"]
mod tree;

use std::fmt::Write as _;

const MAP: &str = "docs/MODULE_MAP.md";
const ROOMS: [&str; 6] = ["ledger", "kernels", "receipts", "topologies", "harness", "serve"];
const HEAD: &str = "# Module map\n\n\
    Generated from the first sentence of each module's `//!` page; do not edit by hand.\n\
    `SPARKPIPE_BLESS=1 cargo test -p sparkpipe --test module_map` writes it anew.\n";

/// The first sentence of a file's `//!` page, on one line.
fn idea(text: &str) -> String {
    let page = text.lines().skip_while(|l| l.trim().is_empty());
    let first = page.map_while(|l| l.strip_prefix("//!")).map(str::trim).take_while(|l| !l.is_empty());
    let paragraph = first.collect::<Vec<_>>().join(" ");
    let sentence = paragraph.find(". ").map_or(paragraph.as_str(), |end| &paragraph[..=end]);
    without_links(sentence)
}

/// Rustdoc links as plain code: they point to items, which Markdown pages cannot reach.
fn without_links(sentence: &str) -> String {
    let mut pieces = sentence.split("`](");
    let mut plain = pieces.next().unwrap_or("").to_owned();
    for piece in pieces {
        plain.push('`');
        plain.push_str(piece.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain.replace("[`", "`").replace("`]", "`")
}

/// Renders the map of all rooms from (path, text) pairs sorted by path.
fn render(files: &[(String, String)]) -> String {
    let mut map = HEAD.to_owned();
    for room in ROOMS {
        writeln!(map, "\n## {room}\n\n| file | idea |\n| --- | --- |").expect("a String takes any text");
        for (path, text) in files.iter().filter(|(p, _)| p.starts_with(&format!("{room}/"))) {
            let shown = &path[room.len() + 1..];
            writeln!(map, "| `{shown}` | {} |", idea(text).replace('|', "\\|"))
                .expect("a String takes any text");
        }
    }
    map
}

/// The first line where two texts differ, as (line number, left, right).
fn first_difference<'a>(left: &'a str, right: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let longest = left.lines().count().max(right.lines().count());
    let at = |text: &'a str, i: usize| text.lines().nth(i).unwrap_or("(nothing)");
    (0..longest).map(|i| (i + 1, at(left, i), at(right, i))).find(|(_, l, r)| l != r)
}

#[test]
fn the_module_map_equals_the_sources() {
    let rust = tree::tracked().into_iter().filter(|p| p.ends_with(".rs"));
    let files: Vec<(String, String)> =
        rust.map(|p| (p.clone(), tree::text(&p).expect("source files are UTF-8"))).collect();
    let map = render(&files);
    let path = tree::root().join(MAP);
    if std::env::var_os("SPARKPIPE_BLESS").is_some() {
        std::fs::write(&path, map).expect("docs/ is writable");
        return;
    }
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    if let Some((line, is, should)) = first_difference(&held, &map) {
        panic!(
            "{MAP}:{line} is stale\n  holds:  {is}\n  wanted: {should}\n\
             run: SPARKPIPE_BLESS=1 cargo test -p sparkpipe --test module_map"
        );
    }
}

#[test]
fn the_idea_is_the_first_sentence_joined_over_lines() {
    assert_eq!(idea("//! One idea\n//! on two lines. More.\n//!\n//! Else.\n"), "One idea on two lines.");
    assert_eq!(idea("\n//! Short\nfn f() {}"), "Short");
    assert_eq!(idea("fn f() {}"), "");
    assert_eq!(idea("//! Uses [`a`] and [`b`](c::d), `e[i]` too.\n"), "Uses `a` and `b`, `e[i]` too.");
}

#[test]
fn a_stale_line_is_found() {
    let files = [("ledger/src/a.rs".to_owned(), "//! Adds | counts.\n".to_owned())];
    let map = render(&files);
    assert!(map.contains("| `src/a.rs` | Adds \\| counts. |"));
    assert_eq!(first_difference(&map, &map), None);
    assert!(first_difference(&map.replace("Adds", "Sums"), &map).is_some());
    assert!(first_difference("", &map).is_some());
}
