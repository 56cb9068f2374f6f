//! Arguments of jobs of the kind `notification`.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::jobs::{Issue, OnAmbiguous};
use crate::outbound::template;
use crate::providers::{Channel, Message, Recipient};

/// The fields of the arguments.
pub const FIELDS: [&str; 14] = [
    "channel",
    "to",
    "from",
    "subject",
    "body",
    "html",
    "template",
    "data",
    "priority",
    "category",
    "provider",
    "extra",
    "valid_for_s",
    "on_ambiguous",
];

/// Values of `priority`, each with the priority of the job.
pub const PRIORITIES: [(&str, i32); 4] = [("critical", 0), ("high", 1), ("normal", 2), ("low", 3)];

/// The job priority of a message without a `priority`: `normal`.
pub const USUAL_PRIORITY: i32 = 2;

/// The category of a message without one.
const USUAL_CATEGORY: &str = "transactional";

/// Longest recipient, in bytes.
pub(crate) const TO_BYTES: usize = 2048;

/// Longest sender, in bytes.
pub(crate) const FROM_BYTES: usize = TO_BYTES;

/// Longest name of a pool or provider, in bytes.
pub(crate) const PROVIDER_BYTES: usize = 128;

/// Words of `on_ambiguous`.
pub(crate) const ON_AMBIGUOUS: [(&str, OnAmbiguous); 2] =
    [("retry", OnAmbiguous::Retry), ("dead", OnAmbiguous::Dead)];

/// Longest name of a category, in bytes.
pub(crate) const CATEGORY_BYTES: usize = 64;

/// Longest `valid_for_s`, in seconds: 30 days.
pub(crate) const VALID_FOR_MAX_S: f64 = 30.0 * 86_400.0;

/// Most fields of `extra`.
pub(crate) const EXTRA_MAX: usize = 64;

/// The texts of a message, either literal or templates.
#[derive(Clone, Default, PartialEq)]
pub struct Texts {
    /// Subject or title.
    pub subject: Option<String>,
    pub body: String,
    /// The body as HTML.
    pub html: Option<String>,
}

/// A message to send, after its arguments were checked.
#[derive(Clone, PartialEq)]
pub struct NotificationArgs {
    pub channel: Channel,
    /// The recipient.
    pub to: Recipient,
    /// The sender, if not the account's own.
    pub from: Option<String>,
    /// The texts, or their templates if there is `data`.
    pub texts: Texts,
    /// Values for the templates; `None` if the texts are literal.
    pub data: Option<Value>,
    /// The category, such as `marketing`.
    pub category: String,
    /// The pool or the provider that the message must go through.
    pub provider: Option<String>,
    /// Fields for one provider only.
    pub extra: Map<String, Value>,
    /// The time for which the message is worth sending.
    pub valid_for: Option<Duration>,
    /// The treatment of an attempt that got no answer.
    pub on_ambiguous: Option<OnAmbiguous>,
}

impl NotificationArgs {
    /// Reads a job's arguments, or lists everything that is wrong with them.
    pub fn parse(args: &Value) -> Result<Self, Vec<Issue>> {
        let Some(args) = args.as_object() else {
            return Err(vec![issue(
                "",
                format!("must be an object with the fields {}", FIELDS.join(", ")),
            )]);
        };
        let mut issues = Vec::new();
        for field in args
            .keys()
            .filter(|field| !FIELDS.contains(&field.as_str()))
        {
            issues.push(issue(
                &format!("/{field}"),
                format!("is not a field; fields are {}", FIELDS.join(", ")),
            ));
        }
        let mut read = NotificationReader {
            args,
            issues: &mut issues,
        };
        let channel = read.channel();
        let to = read.recipient(channel);
        let (texts, data) = read.content(channel);
        if let Some(word) = read.text("priority", 16)
            && !PRIORITIES.iter().any(|(known, _)| *known == word)
        {
            read.complain("priority", "must be critical, high, normal or low");
        }
        let from = read.text("from", FROM_BYTES);
        let category = read
            .text("category", CATEGORY_BYTES)
            .unwrap_or_else(|| USUAL_CATEGORY.to_owned());
        let provider = read.text("provider", PROVIDER_BYTES);
        let (extra, valid_for, on_ambiguous) =
            (read.extra(), read.valid_for(), read.on_ambiguous());
        match (channel, to) {
            (Some(channel), Some(to)) if issues.is_empty() => Ok(Self {
                channel,
                to,
                from,
                texts,
                data,
                category,
                provider,
                extra,
                valid_for,
                on_ambiguous,
            }),
            _ => Err(issues),
        }
    }

    /// Renders the templates, if there are any.
    ///
    /// The work is bounded but slow, so it belongs on a thread of its own. It ends soon after
    /// `is_over` returns true.
    pub fn fill(
        &self,
        is_over: impl Fn() -> bool + Clone + Send + Sync + 'static,
    ) -> Result<Texts, String> {
        let Some(data) = &self.data else {
            return Ok(self.texts.clone());
        };
        let fill = |name: &str, text: &str| {
            template::render(text, data, is_over.clone())
                .map_err(|error| format!("/template{name} {error}"))
        };
        let optional = |name: &str, text: &Option<String>| {
            text.as_deref().map(|text| fill(name, text)).transpose()
        };
        Ok(Texts {
            subject: optional("/subject", &self.texts.subject)?,
            body: fill("/body", &self.texts.body)?,
            html: optional("/html", &self.texts.html)?,
        })
    }

    /// Builds the message for drivers.
    pub fn message(&self, id: String, texts: Texts, expires_at_s: Option<i64>) -> Message {
        Message {
            id,
            channel: self.channel,
            to: self.to.clone(),
            from: self.from.clone(),
            subject: texts.subject,
            body: texts.body,
            html: texts.html,
            extra: self.extra.clone(),
            expires_at_s,
        }
    }
}

struct NotificationReader<'a> {
    args: &'a Map<String, Value>,
    issues: &'a mut Vec<Issue>,
}

impl NotificationReader<'_> {
    fn complain(&mut self, field: &str, message: impl Into<String>) {
        self.issues.push(issue(&format!("/{field}"), message));
    }

    /// Reads a text that is present and not empty. It may hold an address, so no error shows it.
    fn text(&mut self, field: &str, most: usize) -> Option<String> {
        match self.args.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text))
                if (1..=most).contains(&text.len()) && !text.contains('\0') =>
            {
                Some(text.clone())
            }
            Some(Value::String(_)) => {
                self.complain(field, format!("must have 1 to {most} bytes"));
                None
            }
            Some(_) => {
                self.complain(field, "must be a text");
                None
            }
        }
    }

    fn channel(&mut self) -> Option<Channel> {
        let word = self.args.get("channel").and_then(Value::as_str);
        let found = Channel::WORDS
            .iter()
            .find(|(known, _)| Some(*known) == word)
            .map(|(_, channel)| *channel);
        if found.is_none() {
            let said = if self.args.contains_key("channel") {
                "must be"
            } else {
                "is missing: it must be"
            };
            self.complain(
                "channel",
                format!(
                    "{said} one of {}",
                    Channel::WORDS.map(|(word, _)| word).join(", ")
                ),
            );
        }
        found
    }

    /// Reads the one recipient, whose form depends on the channel.
    fn recipient(&mut self, channel: Option<Channel>) -> Option<Recipient> {
        if self.args.get("to").is_none_or(Value::is_null) {
            self.complain("to", "is missing: say whom the message is for");
        }
        let to = self.text("to", TO_BYTES)?;
        let read = Recipient::parse(channel?, &to);
        read.map_err(|message| self.complain("to", message)).ok()
    }

    fn content(&mut self, channel: Option<Channel>) -> (Texts, Option<Value>) {
        let template = match self.args.get("template") {
            None | Some(Value::Null) => {
                if self.args.contains_key("data") {
                    self.complain("data", "fills in a template, and there is none");
                }
                return (self.plain(channel), None);
            }
            Some(template) => template.clone(),
        };
        for field in ["subject", "body", "html"] {
            if self.args.contains_key(field) {
                self.complain(
                    field,
                    format!(
                        "stands beside a template; write template.{field} or leave the template out"
                    ),
                );
            }
        }
        let texts = match template {
            Value::String(body) => Texts {
                body,
                ..Texts::default()
            },
            Value::Object(parts) => {
                for part in parts
                    .keys()
                    .filter(|part| !["subject", "body", "html"].contains(&part.as_str()))
                {
                    self.complain(
                        &format!("template/{part}"),
                        "is not a part; parts are subject, body, html",
                    );
                }
                let mut part = |name: &str| match parts.get(name) {
                    None | Some(Value::Null) => None,
                    Some(Value::String(text)) => Some(text.clone()),
                    Some(_) => {
                        self.complain(&format!("template/{name}"), "must be a text");
                        None
                    }
                };
                let (subject, body, html) = (part("subject"), part("body"), part("html"));
                if body.is_none() && html.is_none() {
                    self.complain("template/body", "is missing: it is the text of the message");
                }
                Texts {
                    subject,
                    body: body.unwrap_or_default(),
                    html,
                }
            }
            _ => {
                self.complain(
                    "template",
                    "must be a text, or an object with subject, body and html",
                );
                Texts::default()
            }
        };
        let parts = [
            ("body", Some(&texts.body)),
            ("subject", texts.subject.as_ref()),
            ("html", texts.html.as_ref()),
        ];
        for (name, text) in parts {
            if let Some(Err(error)) = text.map(|text| template::check(text)) {
                self.complain(&format!("template/{name}"), error);
            }
        }
        let data = self
            .args
            .get("data")
            .cloned()
            .unwrap_or_else(|| Value::Object(Map::new()));
        if !data.is_object() {
            self.complain("data", "must be an object");
        }
        (texts, Some(data))
    }

    fn plain(&mut self, channel: Option<Channel>) -> Texts {
        let mut text = |field: &str| match self.args.get(field) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(json) if field == "body" && channel == Some(Channel::Webhook) => {
                Some(json.to_string())
            }
            Some(_) => {
                self.complain(field, "must be a text");
                None
            }
        };
        let (subject, body, html) = (text("subject"), text("body"), text("html"));
        let is_wrong = |field: &str| {
            self.args
                .get(field)
                .is_some_and(|value| !value.is_null() && !value.is_string())
        };
        let is_told = channel != Some(Channel::Webhook) && is_wrong("body") || is_wrong("html");
        // A provider's own template, media or data may be the message; its driver decides whether
        // they suffice.
        let has_more = self
            .args
            .get("extra")
            .and_then(Value::as_object)
            .is_some_and(|extra| !extra.is_empty());
        if !has_more
            && !is_told
            && body.as_deref().is_none_or(str::is_empty)
            && html.as_deref().is_none_or(str::is_empty)
        {
            self.complain("body", "is missing: give a body, or a template with data");
        }
        Texts {
            subject,
            body: body.unwrap_or_default(),
            html,
        }
    }

    fn extra(&mut self) -> Map<String, Value> {
        match self.args.get("extra") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(extra)) if extra.len() <= EXTRA_MAX => extra.clone(),
            Some(_) => {
                self.complain(
                    "extra",
                    format!("must be an object of at most {EXTRA_MAX} fields"),
                );
                Map::new()
            }
        }
    }

    fn valid_for(&mut self) -> Option<Duration> {
        let seconds = self
            .args
            .get("valid_for_s")
            .filter(|value| !value.is_null())?;
        match seconds
            .as_f64()
            .filter(|seconds| (1.0..=VALID_FOR_MAX_S).contains(seconds))
        {
            Some(seconds) => Some(Duration::from_secs_f64(seconds)),
            None => {
                self.complain(
                    "valid_for_s",
                    format!("must be 1 to {VALID_FOR_MAX_S} seconds"),
                );
                None
            }
        }
    }

    fn on_ambiguous(&mut self) -> Option<OnAmbiguous> {
        let said = self.text("on_ambiguous", 16)?;
        let found = ON_AMBIGUOUS
            .iter()
            .find(|(word, _)| *word == said)
            .map(|(_, found)| *found);
        if found.is_none() {
            self.complain("on_ambiguous", "must be retry or dead");
        }
        found
    }
}

fn issue(pointer: &str, message: impl Into<String>) -> Issue {
    Issue {
        pointer: pointer.to_owned(),
        message: message.into(),
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
