//! Problems of an input, and the places where they are collected.

use serde::Serialize;

/// A problem of an input: a field, and the values that it may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    /// The JSON pointer to the field, e.g. `/url`; empty for the whole.
    pub pointer: String,
    /// The problem, and the allowed values.
    pub message: String,
}

impl Issue {
    /// Creates the problem of the field at a JSON pointer.
    pub fn new(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            pointer: pointer.into(),
            message: message.into(),
        }
    }
}

/// A collection of problems.
pub trait IssueSink: Send {
    /// Adds a problem.
    fn add(&mut self, issue: Issue);
}

impl IssueSink for Vec<Issue> {
    fn add(&mut self, issue: Issue) {
        self.push(issue);
    }
}

/// Returns the JSON pointer (RFC 6901) of `name` below `at`.
pub fn pointer(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

/// Returns the names that a JSON pointer consists of.
pub fn segments(pointer: &str) -> impl Iterator<Item = String> {
    pointer
        .split('/')
        .skip(1)
        .map(|name| name.replace("~1", "/").replace("~0", "~"))
}

/// Lists problems on one line, each with its place below `name`.
pub fn listed(name: &str, issues: &[Issue]) -> String {
    let each = issues
        .iter()
        .map(|issue| format!("{name}{}: {}", issue.pointer, issue.message));
    each.collect::<Vec<_>>().join("; ")
}
