//! Texts given on the command line: literally, in a file, or on standard input.

use std::io::Read;

use anyhow::Context;

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
