//! Preferences: the messages that a recipient does not want.

use crate::providers::Channel;

/// The messages that a preference is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// All messages.
    All,
    /// The messages of a category.
    Category(String),
    /// The messages of a template.
    Template(String),
}

/// A choice of a recipient, or of a tenant for its recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    pub topic: Topic,
    /// The channel; `None` for all.
    pub channel: Option<Channel>,
    /// True if the messages are wanted.
    pub wanted: bool,
}

/// Choices. If several match a message, the narrowest topic counts, and among equal topics the
/// choice that names the channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preferences(pub Vec<Preference>);

impl Preferences {
    /// Returns the choice that counts for a message; `None` if there is none.
    pub fn choice(
        &self,
        channel: Channel,
        category: &str,
        template: Option<&str>,
    ) -> Option<&Preference> {
        let is_meant = |preference: &&Preference| {
            let by_topic = match &preference.topic {
                Topic::All => true,
                Topic::Category(name) => name == category,
                Topic::Template(name) => Some(name.as_str()) == template,
            };
            by_topic && preference.channel.is_none_or(|named| named == channel)
        };
        let narrowness = |preference: &&Preference| {
            let topic = match preference.topic {
                Topic::All => 0,
                Topic::Category(_) => 1,
                Topic::Template(_) => 2,
            };
            (topic, preference.channel.is_some())
        };
        self.0.iter().filter(is_meant).max_by_key(narrowness)
    }

    /// Returns the choice of a recipient against a message. If it has none about the message, that
    /// of its tenant in `defaults` counts.
    pub fn opt_out<'a>(
        &'a self,
        defaults: &'a Self,
        channel: Channel,
        category: &str,
        template: Option<&str>,
    ) -> Option<&'a Preference> {
        let own = self.choice(channel, category, template);
        own.or_else(|| defaults.choice(channel, category, template))
            .filter(|choice| !choice.wanted)
    }
}

impl std::fmt::Display for Preference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.topic {
            Topic::All => f.write_str("all messages")?,
            Topic::Category(name) => write!(f, "the category {name}")?,
            Topic::Template(name) => write!(f, "the template {name}")?,
        }
        match self.channel {
            Some(channel) => write!(f, " by {}", channel.as_str()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_choice_counts() {
        let choice = |topic, channel, wanted| Preference {
            topic,
            channel,
            wanted,
        };
        let preferences = Preferences(vec![
            choice(Topic::Template("news".to_owned()), None, true),
            choice(Topic::Category("marketing".to_owned()), None, false),
            choice(
                Topic::Category("marketing".to_owned()),
                Some(Channel::Email),
                true,
            ),
            choice(Topic::All, Some(Channel::Sms), false),
        ]);
        for (channel, category, template, expected) in [
            (Channel::Push, "marketing", Some("news"), Some(true)),
            (Channel::Push, "marketing", Some("offer"), Some(false)),
            (Channel::Email, "marketing", None, Some(true)),
            (Channel::Sms, "product", None, Some(false)),
            (Channel::Sms, "marketing", None, Some(false)),
            (Channel::Push, "product", None, None),
        ] {
            let choice = preferences.choice(channel, category, template);
            assert_eq!(
                choice.map(|choice| choice.wanted),
                expected,
                "{channel:?} {category}"
            );
        }
        let shown = preferences.choice(Channel::Email, "marketing", None);
        assert_eq!(
            shown.unwrap().to_string(),
            "the category marketing by email"
        );
    }
}
