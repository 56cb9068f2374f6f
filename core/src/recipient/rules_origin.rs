//! The origin of rules: their file, and the line of each.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::input::{TomlDocument, pointer};
use crate::providers::Channel;

/// The file of rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RulesOrigin {
    /// The path; empty for the rules that ship.
    pub file: String,
    /// The time of its last change; `None` if it is unknown.
    pub changed_at: Option<Timestamp>,
    lines: BTreeMap<String, usize>,
}

impl RulesOrigin {
    /// Notes the origin of rules that were parsed.
    pub fn of(file: &str, text: &str, document: &TomlDocument) -> Self {
        Self {
            file: match text {
                "" => String::new(),
                _ => file.to_owned(),
            },
            changed_at: None,
            lines: document.lines().clone(),
        }
    }

    /// Returns the line of a cap that a category has on a channel; `None` if it is one that ships.
    pub fn line_of_cap(&self, category: &str, channel: Channel, name: &str) -> Option<usize> {
        let category = pointer("/categories", category);
        self.line(&format!("{category}/caps/{}", channel.as_str()), name)
    }

    /// Returns the line of a cap of a category for each actor; `None` if it is one that ships.
    pub fn line_of_actor_cap(&self, category: &str, name: &str) -> Option<usize> {
        let category = pointer("/categories", category);
        self.line(&format!("{category}/actor_caps"), name)
    }

    /// Returns the line of a cap of the fallback; `None` if it is one that ships.
    pub fn line_of_fallback_cap(&self, name: &str) -> Option<usize> {
        self.line("/fallback/caps", name)
    }

    fn line(&self, table: &str, name: &str) -> Option<usize> {
        self.lines.get(&pointer(table, name)).copied()
    }

    /// Returns the line of the presets of a category; `None` if they are those that ship.
    pub fn line_of_presets(&self, category: &str) -> Option<usize> {
        let at = pointer("/categories", category);
        self.lines.get(&format!("{at}/quiet_presets")).copied()
    }

    /// Returns the line of a type of digest; `None` if it is one that ships.
    pub fn line_of_digest(&self, name: &str) -> Option<usize> {
        self.lines.get(&pointer("/digests", name)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_of_the_file_has_a_line_and_one_that_ships_has_none() {
        let text = "release_share = 0.4\n\n[categories.news]\ncaps.sms = { per_day = \"2 per 1d\" }\n\n\
                    [fallback]\ncaps = { per_week = \"9 per 1w\" }\n";
        let document = TomlDocument::parse(text).unwrap();
        let origin = RulesOrigin::of("own.toml", text, &document);
        assert_eq!(origin.line_of_cap("news", Channel::Sms, "per_day"), Some(4));
        assert_eq!(origin.line_of_cap("news", Channel::Push, "per_week"), None);
        assert_eq!(origin.line_of_fallback_cap("per_week"), Some(7));
        assert_eq!(
            origin.line_of_cap("security", Channel::Sms, "per_hour"),
            None
        );
        let ships = RulesOrigin::of("own.toml", "", &TomlDocument::parse("").unwrap());
        assert_eq!(ships.file, "");
    }
}
