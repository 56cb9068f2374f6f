//! Texts of other people, as they are stored.

/// Longest stored reason and status, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Returns the text shortened and without NUL, which Postgres cannot store.
pub(super) fn line(text: &str) -> String {
    text.chars()
        .filter(|c| *c != '\0')
        .take(MAX_REASON_CHARS)
        .collect()
}
