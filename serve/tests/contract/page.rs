//! Reads the two pages of the contract: promises of README, entries of techdebt.

/// One promise of README: `- **[P-id]** text ... Shown by `crate::test`.`
#[derive(Debug, PartialEq, Eq)]
pub struct Promise {
    /// `P-id`.
    pub id: String,
    /// `crate::test` names that show it.
    pub shown_by: Vec<String>,
}

/// One entry of techdebt: `## N. title` and below it `Promise: P-id`.
#[derive(Debug, PartialEq, Eq)]
pub struct Debt {
    /// Its number, never used again after it is closed.
    pub number: u32,
    /// The promise it owes.
    pub promise: String,
}

/// All promises of a README, in order.
pub fn promises(readme: &str) -> Vec<Promise> {
    let mut items: Vec<String> = Vec::new();
    let mut open = false;
    for line in readme.lines() {
        if line.starts_with("- **[P-") {
            items.push(line.to_owned());
            open = true;
        } else if !line.starts_with("  ") {
            open = false;
        } else if open && let Some(item) = items.last_mut() {
            item.push(' ');
            item.push_str(line.trim());
        }
    }
    items.iter().filter_map(|item| promise(item)).collect()
}

fn promise(item: &str) -> Option<Promise> {
    let id = item.split_once("**[")?.1.split_once("]**")?.0.to_owned();
    let shown = item.to_lowercase().find("shown by").map_or("", |at| &item[at..]);
    let quoted = shown.split('`').skip(1).step_by(2).filter(|t| t.contains("::"));
    Some(Promise { id, shown_by: quoted.map(str::to_owned).collect() })
}

/// All entries of a techdebt page, in order; an entry without a promise owes "".
pub fn debts(page: &str) -> Vec<Debt> {
    let mut entries: Vec<Debt> = Vec::new();
    for line in page.lines() {
        let number =
            line.strip_prefix("## ").and_then(|l| l.split_once(". ")).and_then(|(n, _)| n.parse().ok());
        if let Some(number) = number {
            entries.push(Debt { number, promise: String::new() });
        } else if let (Some(id), Some(entry)) = (line.strip_prefix("Promise: "), entries.last_mut()) {
            entry.promise = id.trim().to_owned();
        }
    }
    entries
}

/// What breaks the contract. `is_test(crate, name)` says whether such a test exists.
pub fn breaches(promises: &[Promise], debts: &[Debt], is_test: &dyn Fn(&str, &str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (i, promise) in promises.iter().enumerate() {
        let id = &promise.id;
        if promises[..i].iter().any(|p| p.id == *id) {
            found.push(format!("README makes [{id}] twice"));
        }
        if promise.shown_by.is_empty() && !debts.iter().any(|d| d.promise == *id) {
            found.push(format!("[{id}] is neither shown by a test nor owed in docs/techdebt.md"));
        }
        for shown in &promise.shown_by {
            let real = shown.split_once("::").is_some_and(|(krate, name)| is_test(krate, name));
            if !real {
                found.push(format!("[{id}] is shown by `{shown}`, which is no test that runs"));
            }
        }
    }
    for (i, debt) in debts.iter().enumerate() {
        if !promises.iter().any(|p| p.id == debt.promise) {
            found
                .push(format!("debt {} owes `{}`, which README does not promise", debt.number, debt.promise));
        }
        if i > 0 && debts[i - 1].number >= debt.number {
            found.push(format!(
                "debt {} stands after {}: numbers only rise",
                debt.number,
                debts[i - 1].number
            ));
        }
    }
    found
}

/// Whether Rust source `text` holds a test function `name` that is not ignored.
pub fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let head = format!("fn {name}(");
    lines.iter().enumerate().filter(|(_, l)| l.trim_start_matches("async ").starts_with(&head)).any(
        |(i, _)| {
            let above = lines[..i].iter().rev().take_while(|l| l.starts_with("#[") || l.starts_with("//"));
            let attributes: Vec<&&str> = above.filter(|l| l.starts_with("#[")).collect();
            let test = attributes.iter().any(|a| **a == "#[test]" || a.starts_with("#[tokio::test"));
            test && !attributes.iter().any(|a| a.starts_with("#[ignore"))
        },
    )
}
