//! The name of a throttle, checked once at the entry points.

use std::fmt;

use crate::input::patterns::is_name_char;

/// The longest accepted name, in bytes.
pub const MAX_BYTES: usize = 128;

/// The parts of names under which a throttle stores the state of its keys.
const STATE_PARTS: [&str; 4] = ["lane", "pause", "learned", "holds"];

/// A throttle's name: 1 to 128 bytes of letters, digits and `. _ - / : { }`; or a pattern of names,
/// see [`Name::or_pattern`].
///
/// Braces are allowed so that a tree of throttles can share one Redis Cluster slot (`{notify}` and
/// `{notify}.sms`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct Name(String);

/// Returns the part of a throttle's name under which the throttle that is named before it stores the
/// state of its keys, such as `lane` of `mail:lane`: the key `knobs` of `mail` is stored where the
/// knobs of `mail:lane` are.
pub fn state_part(name: &str) -> Option<&str> {
    let mut below = name.split(':').skip(1);
    below.find(|part| STATE_PARTS.contains(part))
}

/// The error for a text that is not a valid throttle name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "throttle name {text:?} is not allowed: use 1 to 128 letters, digits or any of . _ - / : {{ }}"
)]
pub struct InvalidName {
    /// The refused text, cut to 40 characters.
    pub text: String,
}

impl Name {
    /// The throttle of jobs that name none.
    pub const DEFAULT: &'static str = "default";

    /// Accepts `text` as a name, or returns the rules.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        if text.is_empty() || text.len() > MAX_BYTES || !text.chars().all(is_name_char) {
            return Err(InvalidName {
                text: text.chars().take(40).collect(),
            });
        }
        Ok(Self(text))
    }

    /// Accepts `text` as a name, or as a pattern: the beginning of names with a `*` behind.
    pub fn or_pattern(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let beginning = text.strip_suffix('*').unwrap_or(&text);
        if beginning.is_empty() && text.len() == 1 {
            return Ok(Self(text));
        }
        // The beginning keeps a byte for the part after it.
        Self::new(beginning).and_then(|_| {
            if text.len() <= MAX_BYTES {
                Ok(Self(text.clone()))
            } else {
                Err(InvalidName {
                    text: text.chars().take(40).collect(),
                })
            }
        })
    }

    /// Returns true for a pattern.
    pub fn is_pattern(&self) -> bool {
        self.0.ends_with('*')
    }

    /// Returns true if this is a pattern and `name` begins with its prefix.
    pub fn fits(&self, name: &Self) -> bool {
        let beginning = self.0.strip_suffix('*');
        !name.is_pattern() && beginning.is_some_and(|beginning| name.0.starts_with(beginning))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for Name {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl<'de> serde::Deserialize<'de> for Name {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_to_128_plain_characters_are_accepted() {
        for text in [
            "a",
            "reindex",
            "{notify}.sms",
            "gcal:42",
            "a/b_c-d",
            &"x".repeat(128),
        ] {
            assert_eq!(Name::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn a_pattern_is_the_beginning_of_names() {
        for text in ["*", "gcal:*", "plain"] {
            assert_eq!(Name::or_pattern(text).unwrap().as_str(), text);
        }
        for text in [
            "",
            "a*b",
            "*a",
            "a**",
            "**",
            "two words*",
            &format!("{}*", "x".repeat(128)),
        ] {
            assert!(Name::or_pattern(text).is_err(), "{text}");
        }
        let pattern = Name::or_pattern("gcal:*").unwrap();
        assert!(pattern.is_pattern() && pattern.fits(&Name::new("gcal:42").unwrap()));
        assert!(!pattern.fits(&Name::new("gcal").unwrap()) && !pattern.fits(&pattern));
        let plain = Name::new("gcal:4").unwrap();
        assert!(!plain.is_pattern() && !plain.fits(&Name::new("gcal:42").unwrap()));
    }

    #[test]
    fn a_part_under_which_another_throttle_stores_state_is_found() {
        for (text, part) in [
            ("mail:lane", Some("lane")),
            ("mail:pause:eu", Some("pause")),
            ("tenant:acme/mail:holds", Some("holds")),
            ("lane", None),
            ("lane:mail", None),
            ("mail:lanes", None),
            ("mail.lane", None),
        ] {
            assert_eq!(state_part(text), part, "{text}");
        }
        assert_eq!(state_part("mail:learned:*"), Some("learned"));
    }

    #[test]
    fn other_texts_are_refused_and_the_message_says_what_is_allowed() {
        for text in ["", "two words", "ü", "tab\t", "star*", &"x".repeat(129)] {
            let message = Name::new(text).unwrap_err().to_string();
            assert!(message.contains("use 1 to 128 letters"), "{message}");
        }
    }
}
