//! Output of the supervisor: JSON for programs, sentences for people.

use std::io::{self, Write};

/// Prints one line of JSON on standard output. A write error is ignored: a closed input reports the
/// end of the reader.
pub(super) fn println_json(value: &impl serde::Serialize) {
    let line = serde_json::to_string(value).unwrap_or_default();
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints a message for people on standard error.
pub(super) fn log_line(line: &str) {
    let _ = writeln!(io::stderr(), "flyball services: {line}");
}

/// Returns an error with all its causes, in one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
