//! What a rule reports: a place and what is wrong there.

use std::fmt;

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// File, relative to the root.
    pub path: String,
    /// Line from 1; 0 when the finding is about the whole file or tree.
    pub line: usize,
    /// What is wrong and what to do.
    pub what: String,
}

impl Finding {
    /// A finding at a line of a file.
    pub fn new(path: &str, line: usize, what: String) -> Self {
        Self { path: path.to_owned(), line, what }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}
