//! Splits source text into code and comments, line by line, without parsing it.
//!
//! String, character and comment contents are blanked in the code view, so that
//! a brace in a string or the word `unsafe` in prose is never counted. Columns
//! are kept: every blanked character becomes one space.

/// Which lexical rules apply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Nested block comments, lifetimes, `r#""#` strings.
    Rust,
    /// C++: flat block comments, `R"()"` strings.
    Cuda,
}

impl Language {
    /// The language of a path, by its extension.
    pub fn of(path: &str) -> Option<Self> {
        match path.rsplit_once('.')?.1 {
            "rs" => Some(Self::Rust),
            "cu" | "cuh" => Some(Self::Cuda),
            _ => None,
        }
    }
}

/// One file as two parallel lists of lines.
pub struct Scanned {
    /// Code with strings and comments blanked.
    pub code: Vec<String>,
    /// Comment text of each line (with its slashes), empty where there is none.
    pub comments: Vec<String>,
}

#[derive(Clone, Copy)]
enum State {
    Code,
    Line,
    Block(usize),
    Str,
    Raw(usize),
    Char,
}

struct Scanner {
    out: Scanned,
    code: String,
    comment: String,
}

impl Scanner {
    fn code(&mut self, c: char) {
        self.code.push(c);
    }

    fn blank(&mut self, count: usize) {
        self.code.extend(std::iter::repeat_n(' ', count));
    }

    fn comment(&mut self, text: &[char]) {
        self.comment.extend(text);
        self.blank(text.len());
    }

    fn newline(&mut self) {
        self.out.code.push(std::mem::take(&mut self.code));
        self.out.comments.push(std::mem::take(&mut self.comment));
    }
}

/// Scans a whole file.
pub fn scan(text: &str, language: Language) -> Scanned {
    let chars: Vec<char> = text.chars().collect();
    let mut s = Scanner {
        out: Scanned { code: Vec::new(), comments: Vec::new() },
        code: String::new(),
        comment: String::new(),
    };
    let mut state = State::Code;
    let mut i = 0;
    while i < chars.len() {
        if chars[i] == '\n' {
            if matches!(state, State::Line) {
                state = State::Code;
            }
            s.newline();
            i += 1;
            continue;
        }
        let (next, used) = step(&mut s, &chars[i..], i.checked_sub(1).map(|p| chars[p]), state, language);
        state = next;
        i += used;
    }
    s.newline();
    s.out
}

fn step(
    s: &mut Scanner,
    rest: &[char],
    before: Option<char>,
    state: State,
    language: Language,
) -> (State, usize) {
    match state {
        State::Code => in_code(s, rest, before, language),
        State::Line => {
            s.comment(&rest[..1]);
            (State::Line, 1)
        }
        State::Block(depth) => {
            if rest.starts_with(&['*', '/']) {
                s.comment(&rest[..2]);
                (if depth == 1 { State::Code } else { State::Block(depth - 1) }, 2)
            } else if language == Language::Rust && rest.starts_with(&['/', '*']) {
                s.comment(&rest[..2]);
                (State::Block(depth + 1), 2)
            } else {
                s.comment(&rest[..1]);
                (State::Block(depth), 1)
            }
        }
        State::Str | State::Char => {
            let end = if matches!(state, State::Str) { '"' } else { '\'' };
            if rest[0] == '\\' && rest.len() > 1 && rest[1] != '\n' {
                s.blank(2);
                (state, 2)
            } else {
                s.blank(1);
                (if rest[0] == end { State::Code } else { state }, 1)
            }
        }
        State::Raw(hashes) => {
            let closes = match language {
                Language::Rust => {
                    rest[0] == '"' && rest[1..].iter().take_while(|c| **c == '#').count() >= hashes
                }
                Language::Cuda => rest.starts_with(&[')', '"']),
            };
            let used = if !closes {
                1
            } else if language == Language::Rust {
                1 + hashes
            } else {
                2
            };
            s.blank(used);
            (if closes { State::Code } else { state }, used)
        }
    }
}

fn in_code(s: &mut Scanner, rest: &[char], before: Option<char>, language: Language) -> (State, usize) {
    if rest.starts_with(&['/', '/']) {
        s.comment(&rest[..2]);
        return (State::Line, 2);
    }
    if rest.starts_with(&['/', '*']) {
        s.comment(&rest[..2]);
        return (State::Block(1), 2);
    }
    let fresh = !before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if fresh && let Some((hashes, used)) = raw_string(rest, language) {
        s.blank(used);
        return (State::Raw(hashes), used);
    }
    if rest[0] == '"' {
        s.blank(1);
        return (State::Str, 1);
    }
    // A quote opens a character only when it closes again: 'a' or '\n', not 'static.
    let byte_prefix = before == Some('b');
    if rest[0] == '\'' && (fresh || byte_prefix) {
        let closed = rest.get(1) == Some(&'\\') || rest.get(2) == Some(&'\'') || language == Language::Cuda;
        if closed {
            s.blank(1);
            return (State::Char, 1);
        }
    }
    s.code(rest[0]);
    (State::Code, 1)
}

/// Number of hashes and length of a raw string's opening, if one starts here.
fn raw_string(rest: &[char], language: Language) -> Option<(usize, usize)> {
    if language == Language::Cuda {
        return rest.starts_with(&['R', '"', '(']).then_some((0, 3));
    }
    let prefix = usize::from(matches!(rest[0], 'b' | 'c'));
    if rest.get(prefix) != Some(&'r') {
        return None;
    }
    let hashes = rest[prefix + 1..].iter().take_while(|c| **c == '#').count();
    (rest.get(prefix + 1 + hashes) == Some(&'"')).then_some((hashes, prefix + hashes + 2))
}

/// Whether `word` stands in `line` as a whole identifier; returns the byte just after it.
pub fn word_end(line: &str, word: &str) -> Option<usize> {
    let ident = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).map(|(at, _)| (at, at + word.len())).find_map(|(at, end)| {
        let clean = !line[..at].ends_with(ident) && !line[end..].starts_with(ident);
        clean.then_some(end)
    })
}

#[test]
fn strings_and_comments_are_blanked_and_columns_kept() {
    let text =
        "let a = \"{ // no\"; // unsafe {\nlet b = r#\"}\"x}\"#; /* { /* } */ */ let c = '{';\nfn f<'a>() {}";
    let scanned = scan(text, Language::Rust);
    assert_eq!(scanned.code.len(), 3);
    assert!(!scanned.code[0].contains('{') && scanned.comments[0].contains("unsafe {"));
    assert_eq!(scanned.code[0].len(), text.lines().next().map_or(0, str::len));
    assert!(!scanned.code[1].contains(['{', '}']) && scanned.code[1].contains("let c ="));
    assert_eq!(scanned.code[2], "fn f<'a>() {}");
    let cuda = scan("char q = '\\''; const char* s = R\"(})\"; /* { /* } */ int x;", Language::Cuda);
    assert!(cuda.code[0].ends_with("int x;") && !cuda.code[0].contains('}'));
}

#[test]
fn words_are_whole_identifiers() {
    assert_eq!(word_end("#![deny(unsafe_code)]", "unsafe"), None);
    assert_eq!(word_end("x = unsafe {", "unsafe"), Some(10));
}
