//! Problems of files of settings.

use std::fmt;

use super::issue::{Issue, segments};
use super::toml::{NotToml, TomlDocument};

/// An error in a file of settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProblem {
    /// The file as the caller named it.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// The key, e.g. `knobs.rps`; empty if the text is not TOML.
    pub key: String,
    /// The error, with the allowed values.
    pub reason: String,
}

/// All errors in files of settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct FileError(pub Vec<FileProblem>);

impl fmt::Display for FileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.file.is_empty() && !self.key.is_empty() {
            f.write_str(": ")?;
        }
        write!(f, "{}: {}", self.key, self.reason)
    }
}

impl FileProblem {
    /// Creates the problem of a text that is not TOML.
    pub fn not_toml(file: &str, error: NotToml) -> Self {
        Self {
            file: file.to_owned(),
            line: error.line,
            key: String::new(),
            reason: error.message,
        }
    }

    /// Locates problems in their file, in the order of the lines.
    pub fn located(file: &str, document: &TomlDocument, issues: Vec<Issue>) -> Vec<Self> {
        let problem = |issue: Issue| Self {
            file: file.to_owned(),
            line: document.line(&issue.pointer).unwrap_or(0),
            key: key_of(&issue.pointer),
            reason: issue.message,
        };
        let mut problems: Vec<Self> = issues.into_iter().map(problem).collect();
        problems.sort_by_key(|problem| problem.line);
        problems
    }
}

/// Returns the name of a key as people write it: with points, and without the numbers of tables.
fn key_of(pointer: &str) -> String {
    let names = segments(pointer).filter(|name| name.parse::<usize>().is_err());
    names.collect::<Vec<_>>().join(".")
}
