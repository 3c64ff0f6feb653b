//! Examining a store's bytes: pure, total, and naming what it finds by receipt and field.

use std::fmt;

use crate::canon::{sha256_hex, short};
use crate::seal::{GENESIS, Line, LineError, parse_line};
use crate::store::{Head, Record};

/// One thing that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Place of the receipt in the store, from 0.
    pub index: usize,
    /// Id of the receipt as it was sealed, where the next line or the head still tells it; else the hash
    /// of the bytes that are there.
    pub id: String,
    /// The field that does not hold.
    pub field: String,
    /// What does not hold.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "receipt {} ({}), field `{}`: {}", self.index, short(&self.id), self.field, self.what)
    }
}

/// What an examination found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Complete lines.
    pub receipts: usize,
    /// Everything that does not hold, in order.
    pub findings: Vec<Finding>,
    /// Bytes of a torn last line that was never acknowledged; the next append puts it in order.
    pub torn_bytes: usize,
}

impl Report {
    /// Whether everything holds.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Examines the bytes of a receipts file and the text of its head file.
pub(crate) fn examine(bytes: &[u8], head_text: Option<&str>) -> (Vec<Record>, Report) {
    let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
    let torn = &bytes[whole..];
    let lines: Vec<&[u8]> = match bytes[..whole].strip_suffix(b"\n") {
        Some(body) => body.split(|&b| b == b'\n').collect(),
        None => Vec::new(),
    };
    let parsed: Vec<Result<Line, LineError>> = lines.iter().map(|line| parse_line(line)).collect();
    let head = head_text.map(|text| Head::parse(text).ok_or(text));
    let mut scan = Scan { lines: &lines, parsed: &parsed, findings: Vec::new() };
    let mut clean_before = true;
    for index in 0..lines.len() {
        let before = scan.findings.len();
        scan.line(index, clean_before, head.as_ref().and_then(|h| h.as_ref().ok()));
        clean_before = scan.findings.len() == before;
    }
    scan.head(head, torn);
    let findings = scan.findings;
    let report = Report { receipts: lines.len(), findings, torn_bytes: torn.len() };
    let records = parsed.into_iter().enumerate().filter_map(|(index, line)| {
        let Line { id, sealed } = line.ok()?;
        Some(Record { index, id, sealed })
    });
    (records.collect(), report)
}

struct Scan<'a> {
    lines: &'a [&'a [u8]],
    parsed: &'a [Result<Line, LineError>],
    findings: Vec<Finding>,
}

impl Scan<'_> {
    fn add(&mut self, index: usize, id: &str, field: &str, what: String) {
        self.findings.push(Finding { index, id: id.to_owned(), field: field.to_owned(), what });
    }

    fn line(&mut self, index: usize, clean_before: bool, head: Option<&Head>) {
        let id = self.sealed_id(index, head);
        let line = match &self.parsed[index] {
            Ok(line) => line,
            Err(error) => return self.add(index, &id, error.field(), format!("unparseable line: {error}")),
        };
        match line.sealed.faults() {
            Ok(faults) if faults.is_empty() => {}
            Ok(faults) => return faults.into_iter().for_each(|f| self.add(index, &id, &f.field, f.what)),
            Err(error) => return self.add(index, &id, "(line)", error.to_string()),
        }
        // A line behind a damaged one cannot match it, and that is said once already.
        let prev = &line.sealed.seal.prev;
        let expected = match index.checked_sub(1) {
            None => GENESIS,
            Some(before) => match &self.parsed[before] {
                Ok(line) if clean_before => &line.id,
                _ => return,
            },
        };
        if prev != expected {
            let home = self.parsed.iter().position(|l| l.as_ref().is_ok_and(|l| l.id == *prev));
            let what = match home {
                Some(home) => {
                    format!("broken chain: lines are out of order, this one follows receipt {home}")
                }
                None => format!(
                    "broken chain: follows {}, but {} stands before it; a line is missing or was put in",
                    short(prev),
                    short(expected)
                ),
            };
            self.add(index, &id, "seal.prev", what);
        }
    }

    /// The id a line was sealed under: the next line says, or the head, or the bytes themselves.
    fn sealed_id(&self, index: usize, head: Option<&Head>) -> String {
        let actual = sha256_hex(self.lines[index]);
        if let Some(Ok(next)) = self.parsed.get(index + 1) {
            let prev = &next.sealed.seal.prev;
            let elsewhere = self.parsed.iter().any(|l| l.as_ref().is_ok_and(|l| l.id == *prev));
            return if elsewhere || prev == GENESIS { actual } else { prev.clone() };
        }
        match head {
            Some(head) if head.count == index + 1 => head.id.clone(),
            _ => actual,
        }
    }

    /// The head must name a line that is there; without a head a torn end cannot be told from damage.
    fn head(&mut self, head: Option<Result<Head, &str>>, torn: &[u8]) {
        let count = self.lines.len();
        let damaged = !self.findings.is_empty();
        match head {
            None if torn.is_empty() && count == 0 => {}
            None if torn.is_empty() => {
                let what =
                    format!("is missing: {count} receipts are there, how many there were nobody knows");
                self.add(count - 1, GENESIS, "receipts.head", what);
            }
            None => {
                let what = format!("{} bytes without an end of line, and no receipts.head", torn.len());
                self.add(count, &sha256_hex(torn), "(line)", what);
            }
            Some(Err(_)) => {
                self.add(count.saturating_sub(1), GENESIS, "receipts.head", "is not `COUNT ID`".to_owned());
            }
            Some(Ok(head)) if head.count > count => {
                let id = head.id.clone();
                let what = format!("{} receipts were acknowledged, {count} are there", head.count);
                let field = if torn.is_empty() { "receipts.head" } else { "(line)" };
                self.add(count, &id, field, what);
            }
            Some(Ok(head)) if !damaged => {
                let named = head.count.checked_sub(1).map_or(GENESIS, |i| match &self.parsed[i] {
                    Ok(line) => &line.id,
                    Err(_) => GENESIS,
                });
                if named != head.id {
                    let index = head.count.saturating_sub(1);
                    let what = format!("names {}, but the line is another", short(&head.id));
                    let id = named.to_owned();
                    self.add(index, &id, "receipts.head", what);
                }
            }
            Some(Ok(_)) => {}
        }
    }
}
