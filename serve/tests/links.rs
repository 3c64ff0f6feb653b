//! Links between the repository's own pages lead somewhere.

#[path = "tidy/tree.rs"]
mod tree;

/// Relative link targets of a Markdown page, without fragments.
fn targets(page: &str) -> Vec<String> {
    let mut fenced = false;
    let prose = page.lines().filter(|line| {
        fenced ^= line.starts_with("```");
        !fenced
    });
    let pieces: Vec<&str> = prose.flat_map(|l| l.split("](").skip(1)).collect();
    let paths = pieces.iter().filter_map(|p| p.split(')').next()?.split('#').next());
    paths.filter(|p| !p.is_empty() && !p.contains("://")).map(str::to_owned).collect()
}

/// Joins a link to the folder of the page that holds it.
fn resolve(page: &str, target: &str) -> String {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let paths = tree::tracked();
    let known = |p: &str| paths.iter().any(|t| t == p || t.starts_with(&format!("{p}/")));
    let mut dead = Vec::new();
    for page in paths.iter().filter(|p| p.ends_with(".md")) {
        for target in targets(&tree::text(page).expect("pages are UTF-8")) {
            if !known(&resolve(page, &target)) {
                dead.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(dead.is_empty(), "dead links:\n{}", dead.join("\n"));
}

#[test]
fn links_are_read_and_resolved() {
    let page = "[a](b.md#x) [c](https://d/e) [f](#g)\n```\n[no](no.md)\n```\n[h](../i/j)";
    assert_eq!(targets(page), ["b.md", "../i/j"]);
    assert_eq!(resolve("docs/a.md", "../i/j"), "i/j");
    assert_eq!(resolve("README.md", "docs/a.md"), "docs/a.md");
}
