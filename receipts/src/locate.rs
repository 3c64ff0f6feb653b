//! Which field a byte of a JSON line belongs to, even when the line is no longer JSON.

/// The dotted path of the field at byte `at` of `line`; `(line)` outside any field.
///
/// A forward scan that keeps the open objects and arrays. Damage before `at` can only make the answer
/// less precise, never a panic: `at` is where a strict parser stopped, so all before it was well formed.
pub fn path_at(line: &[u8], at: usize) -> String {
    let end = at.min(line.len());
    let mut open: Vec<Level> = Vec::new();
    let mut i = 0;
    while i < end {
        match line[i] {
            b'"' => {
                let close = string_end(line, i + 1, end);
                if let Some(Level::Object { key, wants_key: wants @ true }) = open.last_mut() {
                    *key = printable(&String::from_utf8_lossy(&line[i + 1..close]));
                    *wants = false;
                }
                i = close;
            }
            b'{' => open.push(Level::Object { key: String::new(), wants_key: true }),
            b'[' => open.push(Level::Array { index: 0 }),
            b'}' | b']' => {
                open.pop();
            }
            b',' => match open.last_mut() {
                Some(Level::Object { wants_key, .. }) => *wants_key = true,
                Some(Level::Array { index }) => *index += 1,
                None => {}
            },
            _ => {}
        }
        i += 1;
    }
    let names: Vec<String> = open.into_iter().map(Level::name).filter(|n| !n.is_empty()).collect();
    if names.is_empty() { "(line)".to_owned() } else { names.join(".") }
}

/// At most 64 printable ASCII characters of `text`; others become `?`. For names out of hostile files.
pub fn printable(text: &str) -> String {
    text.chars().take(64).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect()
}

enum Level {
    Object { key: String, wants_key: bool },
    Array { index: usize },
}

impl Level {
    fn name(self) -> String {
        match self {
            Self::Object { key, .. } => key,
            Self::Array { index } => index.to_string(),
        }
    }
}

/// Offset of the quote that closes a string opened before `start`, or `end`.
fn string_end(line: &[u8], start: usize, end: usize) -> usize {
    let mut i = start;
    while i < end {
        match line[i] {
            b'\\' => i += 2,
            b'"' => return i,
            _ => i += 1,
        }
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_field_of_each_part_is_found() {
        let line = br#"{"entry":{"step":{"a":[10,{"b":"x\"}"}],"c":7}}}"#;
        let at = |needle: &[u8]| {
            let i = line.windows(needle.len()).position(|w| w == needle).unwrap();
            path_at(line, i + 1)
        };
        assert_eq!(at(b"10"), "entry.step.a.0");
        assert_eq!(at(b"x"), "entry.step.a.1.b");
        assert_eq!(at(b"7"), "entry.step.c");
        assert_eq!(path_at(line, 0), "(line)");
    }

    proptest! {
        #[test]
        fn any_bytes_and_any_offset_give_a_name(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0usize..300) {
            prop_assert!(!path_at(&bytes, at).is_empty());
        }
    }
}
