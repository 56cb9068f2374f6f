//! Problems of an input, and the places where they are collected.

use serde::Serialize;

use super::wording::unknown;

/// The most unknown fields of one object that are named, because each of them costs more than the
/// few bytes that it has in the input.
pub const UNKNOWN_MAX: usize = 100;

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

/// Returns the problems of those names of an object's fields that are not `allowed`, below the JSON
/// pointer `at`. The first hundred are named, and all others counted in one problem.
pub fn unknown_fields<'n>(
    at: &str,
    names: impl Iterator<Item = &'n str>,
    allowed: &[&str],
) -> Vec<Issue> {
    let mut wrong = names.filter(|name| !allowed.contains(name));
    let named = wrong.by_ref().take(UNKNOWN_MAX);
    let mut issues: Vec<Issue> = named
        .map(|name| Issue::new(pointer(at, name), unknown(name, "field", allowed)))
        .collect();
    let more = wrong.count();
    if more > 0 {
        let message = format!("has {more} more fields that are not known");
        issues.push(Issue::new(at, message));
    }
    issues
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_unknown_fields_the_first_are_named_and_the_others_counted() {
        let names: Vec<String> = (0..1000).map(|n| format!("x{n}")).collect();
        let wrong = |first: usize| {
            let names = names[..first].iter().map(String::as_str);
            unknown_fields("/a", names.chain(["kind"]), &["kind"])
        };
        assert!(wrong(0).is_empty());
        assert_eq!(wrong(UNKNOWN_MAX).len(), UNKNOWN_MAX);
        let many = wrong(1000);
        assert_eq!(many.len(), UNKNOWN_MAX + 1);
        assert_eq!(
            many[99],
            Issue::new("/a/x99", "is not a known field; allowed: kind")
        );
        assert_eq!(
            many[100],
            Issue::new("/a", "has 900 more fields that are not known")
        );
    }
}
