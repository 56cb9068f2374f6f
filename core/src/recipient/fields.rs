//! The fields of a message that the gates look at.

use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use super::address::RecipientKey;
use super::caps::{CapRule, SENDERS_FORM, SENDERS_LONGEST_S};
use super::dedup::DedupKey;
use super::local_time::{self, LocalInstant, LocalTime};
use super::profile::Profile;
use crate::input::{Issue, Reader};
use crate::providers::{Channel, Recipient};

/// The fields of a message that only the gates look at. A message with any of these, or with a
/// category, goes through all gates, and so does every message for the inbox; the SQL function
/// `flyball.needs_plan` has the same list.
pub const GATE_FIELDS: [&str; 7] = [
    "recipient",
    "template_id",
    "actor",
    "digest",
    "at_most",
    "dedup_key",
    LOCAL_TIME,
];

/// The category of a message without one.
pub const USUAL_CATEGORY: &str = "transactional";

/// The longest of these fields, in bytes.
pub const GATE_FIELD_BYTES: usize = 128;

/// The longest cap, and the longest time of the recipient's clock, in bytes.
const SHORT_FIELD_BYTES: usize = 32;

/// The fields that the recipient sees.
const CONTENT: [&str; 6] = ["subject", "body", "html", "template", "data", "extra"];

/// The name of the sender's own cap.
const AT_MOST: &str = "at_most";

/// The name of the time of the recipient's clock.
const LOCAL_TIME: &str = "local_time";

/// Returns true if a message goes through all gates.
pub fn is_gated(args: &Value) -> bool {
    let has = |name: &str| args.get(name).is_some_and(|value| !value.is_null());
    let is_inapp = args.get("channel").and_then(Value::as_str) == Some(Channel::InApp.as_str());
    is_inapp || has("category") || GATE_FIELDS.into_iter().any(has)
}

/// The fields of one message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GateFields {
    /// The id of the recipient, by which its profile is found.
    pub recipient: Option<String>,
    /// The name of the template, for preferences, dedup and digests.
    pub template_id: Option<String>,
    /// The person or thing whose action the message reports.
    pub actor: Option<String>,
    /// The type of digest that collects the message.
    pub digest: Option<String>,
    /// The sender's own cap for messages of this template to this recipient.
    pub at_most: Option<CapRule>,
    /// The key that says which messages are the same, in place of the content.
    pub dedup_key: Option<String>,
    /// The time of the recipient's clock at which the message goes.
    pub local_time: Option<LocalTime>,
}

impl GateFields {
    /// Takes the fields from the arguments of a message.
    pub fn read(fields: &mut Reader<'_>) -> Self {
        let mut text = |name: &str| fields.text(name, 1..=GATE_FIELD_BYTES);
        let mut read = Self {
            recipient: text("recipient"),
            template_id: text("template_id"),
            actor: text("actor"),
            digest: text("digest"),
            at_most: None,
            dedup_key: text("dedup_key"),
            local_time: None,
        };
        if let Some(cap) = fields.text(AT_MOST, 1..=SHORT_FIELD_BYTES) {
            let is_kept = |rule: &CapRule| rule.span_s() <= SENDERS_LONGEST_S;
            read.at_most = CapRule::parse(AT_MOST, &cap).filter(is_kept);
            if read.at_most.is_none() {
                fields.refuse(AT_MOST, SENDERS_FORM, &Value::from(cap));
            } else if read.template_id.is_none() {
                fields.missing("template_id", "the template to which at_most applies");
            }
        }
        if let Some(time) = fields.text(LOCAL_TIME, 1..=SHORT_FIELD_BYTES) {
            read.local_time = LocalTime::parse(&time);
            if read.local_time.is_none() {
                fields.refuse(LOCAL_TIME, local_time::FORM, &Value::from(time));
            } else if read.digest.is_some() {
                let beside = "must be left out beside digest, which has times of its own";
                fields.wrong(LOCAL_TIME, beside);
            }
        }
        read
    }
}

/// The times of a message that its gates look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageTimes {
    /// The time of the recipient's clock that the sender names.
    pub local: Option<LocalInstant>,
    /// The time from which its age and its validity count: that of its acceptance, or its local one
    /// if that is later.
    pub accepted_at: Timestamp,
    /// The time after which the sender does not want it to go.
    pub deadline: Option<Timestamp>,
}

/// A message as the gates read it from the arguments of its job.
#[derive(Clone, Debug, PartialEq)]
pub struct GatedArgs {
    pub channel: Channel,
    /// The address, unparsed; `None` if the profile has it.
    pub to: Option<String>,
    pub category: String,
    pub valid_for_s: Option<f64>,
    /// The values of the template.
    pub data: Value,
    /// Everything that the recipient sees, for messages whose template has no name.
    pub content: Value,
    pub fields: GateFields,
}

impl GatedArgs {
    /// Returns the address that the sender names; `None` if there is none, or if it is wrong.
    pub fn address(&self) -> Option<Recipient> {
        Recipient::parse(self.channel, self.to.as_deref()?).ok()
    }

    /// Returns the times of the message to a recipient with a profile, or else with the defaults of
    /// its tenant. The local time follows from `first_at`, which no retry changes.
    pub fn times(
        &self,
        profile: &Profile,
        defaults: &Profile,
        first_at: Timestamp,
        accepted_at: Timestamp,
    ) -> MessageTimes {
        let local = self.fields.local_time.and_then(|time| {
            let zone = profile.zone_or(defaults, self.channel);
            LocalInstant::of(time, zone.unwrap_or(&TimeZone::UTC), first_at)
        });
        let accepted_at = local.map_or(accepted_at, |local| accepted_at.max(local.at));
        let valid_for = self.valid_for_s.map(Duration::try_from_secs_f64);
        let valid_for = valid_for.and_then(Result::ok);
        MessageTimes {
            local,
            accepted_at,
            deadline: valid_for.and_then(|span| accepted_at.checked_add(span).ok()),
        }
    }

    /// Returns the key of the recipient whose address is `to`: of the person, if the sender names one.
    pub fn recipient_key(&self, tenant: &str, to: Option<&Recipient>) -> RecipientKey {
        match (&self.fields.recipient, to) {
            (Some(id), _) => RecipientKey::of_subscriber(tenant, self.channel, id),
            (None, Some(to)) => RecipientKey::of_address(tenant, to),
            (None, None) => RecipientKey::of_subscriber(tenant, self.channel, ""),
        }
    }

    /// Returns the key by which messages to a recipient are the same: of the name that the sender
    /// chose, or else of the template and what is compared.
    pub fn dedup_key(&self, recipient: &RecipientKey) -> DedupKey {
        let fields = &self.fields;
        if let Some(name) = &fields.dedup_key {
            return DedupKey::of_name(recipient, name);
        }
        let template = fields.template_id.as_deref().unwrap_or_default();
        let content = DedupKey::of_content(recipient, template, self.compared());
        content.for_time(fields.local_time)
    }

    /// Returns the part that makes a message another one: the data that fill in its template, if that
    /// has a name, or else everything that the recipient sees.
    fn compared(&self) -> &Value {
        let has_name = self.fields.template_id.is_some();
        let has_data = self.data.as_object().is_some_and(|data| !data.is_empty());
        match has_name && has_data && self.content.get("template").is_some() {
            true => &self.data,
            false => &self.content,
        }
    }

    /// Reads what gates look at; anything that is wrong is an issue of the field.
    pub fn parse(args: &Value) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let names: Vec<&str> = match args {
            Value::Object(args) => args.keys().map(String::as_str).collect(),
            _ => Vec::new(),
        };
        let read = Reader::of(args, "", &names, &mut issues).and_then(|fields| {
            let mut fields = fields.null_is_absent().hide_values();
            let channel = fields.choice("channel", &Channel::WORDS)?;
            let data = fields.get("data").cloned();
            let seen = CONTENT.iter().filter_map(|name| {
                let value = fields.get(name)?;
                Some(((*name).to_owned(), value.clone()))
            });
            let content = Value::Object(seen.collect());
            let mut to = fields.any_text("to");
            let mut gates = GateFields::read(&mut fields);
            if channel == Channel::InApp {
                // In the inbox the recipient is its own address.
                gates.recipient = gates.recipient.or_else(|| to.clone());
                to.clone_from(&gates.recipient);
            }
            Some(Self {
                channel,
                to,
                category: fields
                    .any_text("category")
                    .unwrap_or_else(|| USUAL_CATEGORY.to_owned()),
                valid_for_s: fields.get("valid_for_s").and_then(Value::as_f64),
                data: data.unwrap_or_else(|| Value::Object(Map::new())),
                content,
                fields: gates,
            })
        });
        match read {
            Some(read) if issues.is_empty() => Ok(read),
            _ => Err(issues),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_gates_look_at_is_read_from_the_arguments() {
        let args = json!({
            "channel": "email", "recipient": "ada", "template_id": "welcome", "at_most": "1 per 24h",
            "data": {"n": 1}, "category": "marketing", "template": "Hello",
        });
        let read = GatedArgs::parse(&args).unwrap();
        assert_eq!(read.to, None);
        assert_eq!(read.fields.recipient.as_deref(), Some("ada"));
        assert_eq!(read.fields.at_most.unwrap().to_string(), "1 per 1d");
        assert_eq!(
            (read.category.as_str(), read.data),
            ("marketing", json!({"n": 1}))
        );
    }

    #[test]
    fn texts_of_ones_own_make_a_message_another_one_beside_the_name_of_a_template_too() {
        let key = |more: Value| {
            let mut args = json!({"channel": "inapp", "to": "ada", "template_id": "comment"});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let read = GatedArgs::parse(&args).unwrap();
            read.dedup_key(&read.recipient_key("acme", read.address().as_ref()))
        };
        let code = |code: u32| key(json!({"body": format!("Your code is {code}")}));
        assert_eq!(code(111), code(111));
        assert_ne!(code(111), code(222));
        let by = |name: &str| key(json!({"body": name, "data": {"url": "/posts/7"}}));
        assert_ne!(by("Bob answered"), by("Eve answered"));
        let fixed = |text: &str| key(json!({"template": text}));
        assert_ne!(fixed("Your code is 111"), fixed("Your code is 222"));
        // A name stands for the text that data fill in.
        let filled = |text: &str, n: u32| key(json!({"template": text, "data": {"n": n}}));
        assert_eq!(filled("{{ n }} comments", 3), filled("{{ n }} new", 3));
        assert_ne!(filled("{{ n }} comments", 3), filled("{{ n }} comments", 4));
    }

    #[test]
    fn a_message_for_the_inbox_has_its_recipient_in_either_field() {
        for name in ["recipient", "to"] {
            let args = json!({"channel": "inapp", name: "ada", "body": "x"});
            assert!(is_gated(&args));
            let read = GatedArgs::parse(&args).unwrap();
            let fields = (read.to.as_deref(), read.fields.recipient.as_deref());
            assert_eq!(fields, (Some("ada"), Some("ada")), "{name}");
        }
        assert!(!is_gated(&json!({"channel": "sms", "to": "+15550100"})));
    }

    #[test]
    fn a_cap_of_the_sender_needs_a_template_and_has_the_form_of_a_cap() {
        let wrong = |more: Value| {
            let mut args = json!({"channel": "email", "to": "a@b.c"});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let issues = GatedArgs::parse(&args).unwrap_err();
            issues
                .into_iter()
                .map(|issue| issue.pointer)
                .collect::<Vec<_>>()
        };
        assert_eq!(wrong(json!({"at_most": "1 per 24h"})), ["/template_id"]);
        for cap in ["often", "1 per 32d", "1 per 5w"] {
            let args = json!({"at_most": cap, "template_id": "t"});
            assert_eq!(wrong(args), ["/at_most"], "{cap}");
        }
        let longest =
            json!({"channel": "email", "to": "a@b.c", "at_most": "1 per 31d", "template_id": "t"});
        assert!(GatedArgs::parse(&longest).is_ok());
        assert_eq!(wrong(json!({"actor": ""})), ["/actor"]);
    }

    #[test]
    fn a_time_of_the_recipients_clock_has_its_form_and_no_digest_beside_it() {
        let read = |more: Value| {
            let mut args = json!({"channel": "email", "to": "a@b.c"});
            args.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            assert!(is_gated(&args));
            GatedArgs::parse(&args)
        };
        let at_nine = read(json!({"local_time": "09:00"})).unwrap();
        assert_eq!(at_nine.fields.local_time.unwrap().to_string(), "09:00");
        for (more, told) in [
            (
                json!({"local_time": "9:00"}),
                format!("must be {}", local_time::FORM),
            ),
            (
                json!({"local_time": 9}),
                "must be a text of 1 to 32 bytes".to_owned(),
            ),
            (
                json!({"local_time": "09:00", "digest": "likes"}),
                "must be left out beside digest, which has times of its own".to_owned(),
            ),
        ] {
            let issues = read(more).unwrap_err();
            assert_eq!(issues.len(), 1, "{issues:?}");
            assert_eq!(
                (&*issues[0].pointer, &*issues[0].message),
                ("/local_time", &*told)
            );
        }
    }
}
