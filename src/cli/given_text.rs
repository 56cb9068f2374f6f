//! Texts given on the command line: literally, in a file, or on standard input.

use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use super::exit::CliError;
use crate::input::json::parse_short;

/// Returns the text of an option: standard input for `-`, a file for `@FILE`, or itself.
pub(super) fn given_text(given: &str) -> anyhow::Result<String> {
    let mut text = match given {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
        at if at.starts_with('@') => text_of_file(Path::new(&at[1..]))?,
        literal => return Ok(literal.to_owned()),
    };
    let mark = text.len() - without_mark(&text).len();
    text.replace_range(..mark, "");
    Ok(text)
}

/// Returns a text without the mark of byte order that some editors write at its beginning.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// Reads a file that the command line names.
pub(super) fn text_of_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).map_err(|error| unreadable(path, error))
}

/// Returns the error of a file that cannot be read. One that does not exist has its own exit code.
pub(super) fn unreadable(path: &Path, error: io::Error) -> anyhow::Error {
    let what = format!("cannot read {}", path.display());
    match error.kind() {
        io::ErrorKind::NotFound => CliError::NotFound(format!("{what}: {error}")).into(),
        _ => anyhow::Error::new(error).context(what),
    }
}

/// Reads the value of the option `name` as JSON; fails with the problem.
pub(super) fn json_of(name: &str, text: &str) -> Result<Value, String> {
    let value =
        serde_json::from_str(text).map_err(|error| format!("{name}: is not JSON: {error}"))?;
    match lost(name, text) {
        Some(wrong) => Err(wrong),
        None => Ok(value),
    }
}

/// Returns the problem of a valid JSON text below `place` of which a part would be lost: the first of
/// two fields of one name, or the last digits of an integer.
pub(super) fn lost(place: &str, text: &str) -> Option<String> {
    let (pointer, problem) = parse_short(text).err()?.into_problem();
    let at = format!("{place}{pointer}");
    Some(match at.trim_start_matches('/') {
        "" => problem,
        field => format!("{field}: {problem}"),
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
    use super::super::exit;
    use super::*;

    #[test]
    fn only_a_file_that_does_not_exist_is_not_found() {
        let folder = env!("CARGO_MANIFEST_DIR");
        let absent = given_text(&format!("@{folder}/none.json")).unwrap_err();
        assert_eq!(exit::number_of(&absent), exit::NOT_FOUND);
        let message = exit::message(&absent);
        assert!(message.contains("none.json: No such file"), "{message}");
        let unreadable = given_text(&format!("@{folder}")).unwrap_err();
        assert_eq!(exit::number_of(&unreadable), exit::FAILED);
        let message = exit::message(&unreadable);
        assert!(message.starts_with("cannot read "), "{message}");
    }

    #[test]
    fn a_text_of_which_a_part_would_be_lost_is_refused() {
        let twice = r#"{"url": "https://a.example", "url": "https://b.example"}"#;
        assert_eq!(
            json_of("args", twice).unwrap_err(),
            "args: the field \"url\" is given twice"
        );
        let long = json_of("args", r#"{"n": 12345678901234567890123}"#).unwrap_err();
        assert!(
            long.starts_with("args/n: is 12345678901234567890123, which would be rounded"),
            "{long}"
        );
        assert_eq!(
            lost("", r#"{"a": {"b": 1, "b": 1}}"#).unwrap(),
            "the field \"b\" is given twice"
        );
        assert!(lost("", r#"[{"b": 1}, {"b": 1}]"#).is_none());
    }

    #[test]
    fn an_empty_filter_is_refused() {
        assert_eq!(filled("acme").unwrap(), "acme");
        assert!(filled("").unwrap_err().contains("leave the option out"));
    }
}
