//! Texts given on the command line: literally, in a file, or on standard input.

use std::io::Read;

use anyhow::Context;
use serde_json::Value;

use crate::api::http::long_integers::first_long_integer;

/// Returns the text of an option: standard input for `-`, a file for `@FILE`, or itself.
pub(super) fn given_text(given: &str) -> anyhow::Result<String> {
    match given {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            Ok(text)
        }
        at if at.starts_with('@') => {
            std::fs::read_to_string(&at[1..]).with_context(|| format!("cannot read {}", &at[1..]))
        }
        literal => Ok(literal.to_owned()),
    }
}

/// Reads the value of the option `name` as JSON; fails with the problem.
pub(super) fn json_of(name: &str, text: &str) -> Result<Value, String> {
    let value =
        serde_json::from_str(text).map_err(|error| format!("{name}: is not JSON: {error}"))?;
    match rounded(name, text) {
        Some(wrong) => Err(wrong),
        None => Ok(value),
    }
}

/// Returns the problem of a JSON text below `place` in which an integer would be rounded.
pub(super) fn rounded(place: &str, text: &str) -> Option<String> {
    let found = first_long_integer(text.as_bytes())?;
    let at = format!("{place}{}", found.pointer);
    Some(match at.trim_start_matches('/') {
        "" => found.refusal(),
        field => format!("{field}: {}", found.refusal()),
    })
}

/// Parses the value of a filter. An empty one, such as that of a variable that is not set, is
/// refused, because it might select everything or nothing.
pub(super) fn filled(text: &str) -> Result<String, String> {
    match text {
        "" => Err("must not be empty: leave the option out to select all".to_owned()),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_filter_is_refused() {
        assert_eq!(filled("acme").unwrap(), "acme");
        assert!(filled("").unwrap_err().contains("leave the option out"));
    }
}
