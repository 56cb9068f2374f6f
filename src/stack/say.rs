//! What the supervisor says: JSON to programs, sentences to people.

use std::io::{self, Write};

/// One line of JSON on standard output. Nobody may be listening any more; then the closing input tells us.
pub(super) fn println_json(value: &impl serde::Serialize) {
    let line = serde_json::to_string(value).unwrap_or_default();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// What a person may want to know, on standard error.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "flyball services: {line}");
}

/// An error with everything that caused it, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
