//! The source of a rule: who set it, and when.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::candidate::Candidate;
use super::gate::MessageGate;
use super::gates::{GatePolicy, cap_lists, zone_of};
use super::presets::QUIET_PRESETS;
use super::profile::Profile;
use super::quiet::QuietRule;
use super::rules_origin::RulesOrigin;

/// The one who set a rule, and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct RuleSource {
    /// The place of the rule: `rules` in their file, `shipped` if that does not change them, the
    /// `profile` of the recipient, the `defaults` of its tenant, the `message` itself, a
    /// `suppression`, or `gone` if the rules or the profile changed since the gates looked.
    pub of: &'static str,
    /// The file and the line, of a rule in a file; else empty.
    #[cfg_attr(feature = "api", schema(example = "recipients.toml, line 12"))]
    pub place: String,
    /// The author of the last change; empty if it is unknown.
    #[cfg_attr(feature = "api", schema(example = "ann"))]
    pub by: String,
    /// The time of the last change; `null` if it is unknown.
    pub at: Option<Timestamp>,
}

impl RuleSource {
    /// Returns a source without an author.
    pub fn new(of: &'static str) -> Self {
        Self {
            of,
            place: String::new(),
            by: String::new(),
            at: None,
        }
    }

    /// Returns the source of a rule with a line in a file; without a line it is one that ships.
    pub fn in_file(origin: &RulesOrigin, line: Option<usize>) -> Self {
        let Some(line) = line else {
            return Self::new("shipped");
        };
        Self {
            place: format!("{}, line {line}", origin.file),
            at: origin.changed_at,
            ..Self::new("rules")
        }
    }

    /// Returns the source as the end of a sentence.
    pub fn sentence(&self) -> String {
        let what = match self.of {
            "shipped" => "the rule is one that ships".to_owned(),
            "rules" => format!("the rule is in {}", self.place),
            "profile" => "the rule is of the profile of the recipient".to_owned(),
            "defaults" => "the rule is of the defaults of the tenant".to_owned(),
            "message" => "the sender set the rule in the message".to_owned(),
            "suppression" => "the address is suppressed".to_owned(),
            _ => "the rules have changed since".to_owned(),
        };
        let by = match self.by.as_str() {
            "" => String::new(),
            by => format!(" by {by}"),
        };
        match self.at {
            Some(at) if self.of == "suppression" => format!("{what} since {at:.0}{by}"),
            Some(at) => format!("{what}, last changed{by} at {at:.0}"),
            None => what,
        }
    }
}

/// Returns the place of the rule by which a gate decided about a message; `None` for a gate without
/// one. The author and the time of profiles, defaults and suppressions are known to their rows.
pub fn source_of(
    gate: MessageGate,
    rule: &str,
    message: &Candidate<'_>,
    policy: GatePolicy<'_>,
) -> Option<RuleSource> {
    let origin = &policy.rules.origin;
    match gate {
        MessageGate::Suppression => Some(RuleSource::new("suppression")),
        MessageGate::Preferences => Some(source_of_profile(policy, |profile| {
            let mut choices = profile.preferences.0.iter();
            choices.any(|choice| !choice.wanted && choice.to_string() == rule)
        })),
        MessageGate::QuietHours => {
            let is_preset = |(word, _): &(&str, _)| rule.starts_with(word);
            if QUIET_PRESETS.iter().any(is_preset) {
                let line = origin.line_of_presets(message.category);
                return Some(RuleSource::in_file(origin, line));
            }
            let zone = zone_of(message, policy).cloned().unwrap_or(TimeZone::UTC);
            Some(source_of_profile(policy, |profile| {
                let hours = profile.quiet.get(&message.channel);
                hours.is_some_and(|one| QuietRule::new(one.clone(), zone.clone()).name == rule)
            }))
        }
        MessageGate::LocalTime => Some(RuleSource::new("message")),
        MessageGate::Caps => Some(source_of_cap(rule, message, policy)),
        MessageGate::Digest => {
            if policy.rules.digest(rule).is_none() {
                return Some(RuleSource::new("gone"));
            }
            Some(RuleSource::in_file(origin, origin.line_of_digest(rule)))
        }
        MessageGate::Deadline | MessageGate::Dedup | MessageGate::Pool => None,
    }
}

/// Returns the source of a rule of the profile or of the defaults, whichever has it.
fn source_of_profile(policy: GatePolicy<'_>, has_rule: impl Fn(&Profile) -> bool) -> RuleSource {
    RuleSource::new(if has_rule(policy.profile) {
        "profile"
    } else if has_rule(policy.defaults) {
        "defaults"
    } else {
        "gone"
    })
}

fn source_of_cap(rule: &str, message: &Candidate<'_>, policy: GatePolicy<'_>) -> RuleSource {
    let lists = cap_lists(message, policy.rules);
    let found = lists.iter().find_map(|list| {
        let mut caps = list.caps.0.iter();
        let cap = caps.find(|cap| format!("{} {cap}", cap.name) == rule)?;
        Some((list.key, cap))
    });
    let Some((key, cap)) = found else {
        return RuleSource::new("gone");
    };
    if message.at_most.is_some_and(|own| own == cap) {
        return RuleSource::new("message");
    }
    let (origin, category) = (&policy.rules.origin, message.category);
    // A cap of the same name in another table is another cap.
    let line = if key != message.recipient.list("category", category) {
        origin.line_of_actor_cap(category, &cap.name)
    } else if policy.rules.has_caps(category, message.channel) {
        origin.line_of_cap(category, message.channel, &cap.name)
    } else {
        origin.line_of_fallback_cap(&cap.name)
    };
    RuleSource::in_file(origin, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::providers::{Channel, Recipient};
    use crate::recipient::address::RecipientKey;
    use crate::recipient::candidate::{NORMAL, Origin};
    use crate::recipient::profile::Profile;
    use crate::recipient::rules::RecipientRules;

    #[test]
    fn a_cap_has_the_line_of_the_table_that_holds_it() {
        let file = "[fallback]\ncaps = { per_day = \"9 per 1d\" }\n\n[categories.news]\n\
                    caps.sms = { per_day = \"5 per 1d\" }\nactor_caps = { per_day = \"1 per 1d\" }\n";
        let rules = RecipientRules::parse("own.toml", file).unwrap();
        let to = Recipient::parse(Channel::Sms, "+15550100").unwrap();
        let profile = Profile::default();
        let policy = GatePolicy {
            profile: &profile,
            defaults: &profile,
            rules: &rules,
        };
        for (category, channel, rule, place) in [
            ("news", Channel::Sms, "per_day 5 per 1d", "own.toml, line 5"),
            ("news", Channel::Sms, "per_day 1 per 1d", "own.toml, line 6"),
            (
                "news",
                Channel::Push,
                "per_day 9 per 1d",
                "own.toml, line 2",
            ),
            // These ship, whatever the fallback of the file says.
            ("product", Channel::Email, "per_day 5 per 1d", ""),
            ("product", Channel::Email, "per_day 3 per 1d", ""),
        ] {
            let message = Candidate {
                origin: Origin::Sender,
                job: None,
                priority: NORMAL,
                channel,
                category,
                template: None,
                to: Some(&to),
                recipient: RecipientKey::of_address("acme", &to),
                actor: Some("bob"),
                digest: None,
                at_most: None,
                local: None,
                accepted_at: Timestamp::UNIX_EPOCH,
                deadline: None,
                is_cancelled: false,
            };
            let source = source_of(MessageGate::Caps, rule, &message, policy).unwrap();
            assert_eq!(source.place, place, "{category} {rule}");
        }
    }

    #[test]
    fn a_source_is_told_with_its_author_and_time() {
        let at = Some("2026-06-11T06:00:00Z".parse().unwrap());
        let told = |of, place: &str, by: &str, at| {
            let (place, by) = (place.to_owned(), by.to_owned());
            RuleSource { of, place, by, at }.sentence()
        };
        assert_eq!(
            told("profile", "", "ann", at),
            "the rule is of the profile of the recipient, last changed by ann at 2026-06-11T06:00:00Z"
        );
        assert_eq!(
            told("rules", "own.toml, line 4", "", at),
            "the rule is in own.toml, line 4, last changed at 2026-06-11T06:00:00Z"
        );
        assert_eq!(
            told("suppression", "", "", at),
            "the address is suppressed since 2026-06-11T06:00:00Z"
        );
        assert_eq!(told("shipped", "", "", None), "the rule is one that ships");
    }
}
