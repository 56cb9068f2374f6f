//! Arguments of jobs of the kind `notification`.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::input::wording::any_of;
use crate::input::{Issue, Reader};
use crate::jobs::OnAmbiguous;
use crate::outbound::template;
use crate::providers::{Channel, Message, Recipient};
use crate::recipient::fields::{GateFields, USUAL_CATEGORY};
use crate::recipient::new_recipient::check_id;

/// The fields of the arguments.
pub const FIELDS: [&str; 21] = [
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
    "recipient",
    "template_id",
    "actor",
    "digest",
    "at_most",
    "dedup_key",
    "local_time",
];

/// Values of `priority`, each with the priority of the job.
pub const PRIORITIES: [(&str, i32); 4] = [("critical", 0), ("high", 1), ("normal", 2), ("low", 3)];

/// The job priority of a message without a `priority`: `normal`.
pub const USUAL_PRIORITY: i32 = 2;

/// Longest recipient, in bytes.
pub const TO_BYTES: usize = 2048;

/// Longest sender, in bytes.
pub const FROM_BYTES: usize = TO_BYTES;

/// Longest name of a pool or provider, in bytes.
pub const PROVIDER_BYTES: usize = 128;

/// Words of `on_ambiguous`.
pub const ON_AMBIGUOUS: [(&str, OnAmbiguous); 2] =
    [("retry", OnAmbiguous::Retry), ("dead", OnAmbiguous::Dead)];

/// Longest name of a category, in bytes.
pub const CATEGORY_BYTES: usize = 64;

/// Longest `valid_for_s`, in seconds: 30 days.
pub const VALID_FOR_MAX_S: f64 = 30.0 * 86_400.0;

/// The most data beside literal texts that the inbox keeps, in bytes. `flyball.deliver_inboxes`
/// leaves out the data of a template beyond 32,768 bytes.
pub const KEPT_DATA_BYTES: usize = 16_384;

/// Most fields of `extra`.
pub const EXTRA_MAX: usize = 64;

/// The texts of a message, as fields.
const PARTS: [&str; 3] = ["subject", "body", "html"];

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
    /// The address; `None` if the profile of the recipient has it.
    pub to: Option<Recipient>,
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
    /// The fields that only the gates look at.
    pub gates: GateFields,
    /// True if the message goes through all gates.
    pub is_gated: bool,
}

impl NotificationArgs {
    /// Reads a job's arguments, or lists everything that is wrong with them.
    pub fn parse(args: &Value) -> Result<Self, Vec<Issue>> {
        let mut issues = Vec::new();
        let read = Reader::of(args, "", &FIELDS, &mut issues)
            .and_then(|fields| NotificationReader(fields.null_is_absent().hide_values()).read());
        match read {
            Some(read) if issues.is_empty() => Ok(read),
            _ => Err(issues),
        }
    }

    /// Renders the templates, if there are any.
    ///
    /// The work is bounded but slow, so it belongs on a separate thread. It ends soon after
    /// `is_over` returns true.
    pub fn fill(
        &self,
        is_over: impl Fn() -> bool + Clone + Send + Sync + 'static,
    ) -> Result<Texts, String> {
        let Some(data) = &self.data else {
            return Ok(self.texts.clone());
        };
        let place = |part: &'static str| move |error: String| format!("/template/{part} {error}");
        let fill =
            |part, text: &str| template::render(text, data, is_over.clone()).map_err(place(part));
        // Whoever wrote a value may not write the recipient's mail.
        let fill_html =
            |text: &str| template::render_html(text, data, is_over.clone()).map_err(place("html"));
        let (subject, html) = (self.texts.subject.as_deref(), self.texts.html.as_deref());
        Ok(Texts {
            subject: subject.map(|text| fill("subject", text)).transpose()?,
            body: fill("body", &self.texts.body)?,
            html: html.map(fill_html).transpose()?,
        })
    }

    /// Builds the message for drivers.
    pub fn message(
        &self,
        id: String,
        to: Recipient,
        texts: Texts,
        expires_at_s: Option<i64>,
    ) -> Message {
        let subject = match self.channel {
            Channel::Email => texts.subject.map(on_one_line),
            _ => texts.subject,
        };
        Message {
            id,
            channel: self.channel,
            to,
            from: self.from.clone(),
            subject,
            body: texts.body,
            html: texts.html,
            extra: self.extra.clone(),
            expires_at_s,
        }
    }
}

/// Returns the subject of a mail on one line. Providers refuse line breaks in it, and they come
/// with values such as an error's text.
fn on_one_line(subject: String) -> String {
    let is_break = |c: char| c.is_control() || ['\u{2028}', '\u{2029}'].contains(&c);
    if !subject.contains(is_break) {
        return subject;
    }
    let lines = subject.split(is_break).map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

/// A reader of the arguments. They may hold an address anywhere, so no error shows a value.
struct NotificationReader<'a>(Reader<'a>);

impl NotificationReader<'_> {
    fn read(mut self) -> Option<NotificationArgs> {
        let channel = self.channel();
        let gates = GateFields::read(&mut self.0);
        let to = self.recipient(channel, &gates);
        let (texts, data) = self.content(channel);
        self.0.choice("priority", &PRIORITIES);
        let from = self.0.text("from", 1..=FROM_BYTES);
        let category = self.0.text("category", 1..=CATEGORY_BYTES);
        let provider = self.0.text("provider", 1..=PROVIDER_BYTES);
        let extra = self.extra();
        let valid_for = self
            .0
            .number("valid_for_s", 1.0..=VALID_FOR_MAX_S, " seconds");
        let on_ambiguous = self.0.choice("on_ambiguous", &ON_AMBIGUOUS);
        let is_gated =
            category.is_some() || gates != GateFields::default() || channel == Some(Channel::InApp);
        Some(NotificationArgs {
            channel: channel?,
            to,
            from,
            texts,
            data,
            category: category.unwrap_or_else(|| USUAL_CATEGORY.to_owned()),
            provider,
            extra,
            valid_for: valid_for.map(Duration::from_secs_f64),
            on_ambiguous,
            gates,
            is_gated,
        })
    }

    fn channel(&mut self) -> Option<Channel> {
        if self.0.get("channel").is_none() {
            let words = Channel::WORDS.map(|(word, _)| word);
            self.0.missing("channel", &any_of(&words));
        }
        self.0.choice("channel", &Channel::WORDS)
    }

    /// Reads the one recipient, whose form depends on the channel.
    fn recipient(&mut self, channel: Option<Channel>, gates: &GateFields) -> Option<Recipient> {
        if self.0.get("to").is_none() && gates.recipient.is_none() {
            self.0.missing("to", "the recipient of the message");
        }
        // Nobody could erase another id. The id of an inbox is checked as its address.
        if channel != Some(Channel::InApp)
            && let Some(Err(message)) = gates.recipient.as_deref().map(check_id)
        {
            self.0.wrong("recipient", message);
        }
        let to = self.0.text("to", 1..=TO_BYTES);
        // In the inbox the recipient is its own address.
        let (field, to) = match &gates.recipient {
            Some(recipient) if channel == Some(Channel::InApp) => {
                if to.as_ref().is_some_and(|to| to != recipient) {
                    self.0.wrong("to", "must be left out beside recipient");
                }
                ("recipient", recipient.clone())
            }
            _ => ("to", to?),
        };
        let read = Recipient::parse(channel?, &to);
        read.map_err(|message| self.0.wrong(field, message)).ok()
    }

    fn content(&mut self, channel: Option<Channel>) -> (Texts, Option<Value>) {
        let Some(template) = self.0.take("template") else {
            if channel == Some(Channel::InApp) {
                self.kept_data();
            } else if self.0.contains("data") {
                self.0
                    .wrong("data", "must be left out without a template to fill in");
            }
            return (self.plain(channel), None);
        };
        for part in PARTS {
            if self.0.get(part).is_some() {
                self.0.wrong(
                    part,
                    format!("must be left out beside a template; write template.{part} instead"),
                );
            }
        }
        let texts = self.template(&template);
        let parts = [
            ("body", Some(&texts.body)),
            ("subject", texts.subject.as_ref()),
            ("html", texts.html.as_ref()),
        ];
        for (name, text) in parts {
            if let Some(Err(error)) = text.map(|text| template::check(text)) {
                self.0.wrong_at(&format!("/template/{name}"), error);
            }
        }
        let is_null = self.0.contains("data") && self.0.get("data").is_none();
        let data = match self.0.take("data") {
            None if is_null => Value::Null,
            None => Value::Object(Map::new()),
            Some(data) => data,
        };
        if !data.is_object() {
            self.0.refuse("data", "an object", &data);
        }
        (texts, Some(data))
    }

    /// Checks the data that the inbox keeps beside literal texts.
    fn kept_data(&mut self) {
        let Some(data) = self.0.take("data").filter(|data| !data.is_null()) else {
            return;
        };
        let bytes = data.to_string().len();
        if !data.is_object() {
            self.0.refuse("data", "an object", &data);
        } else if bytes > KEPT_DATA_BYTES {
            let message = format!("must be at most {KEPT_DATA_BYTES} bytes as JSON, not {bytes}");
            self.0.wrong("data", message);
        }
    }

    /// Reads a template: the text of the body, or an object of texts.
    fn template(&mut self, template: &Value) -> Texts {
        if let Value::String(body) = template {
            return Texts {
                body: body.clone(),
                ..Texts::default()
            };
        }
        if !template.is_object() {
            let allowed = "a text, or an object with subject, body and html";
            self.0.refuse("template", allowed, template);
            return Texts::default();
        }
        let Some(mut parts) = self.0.part("template", &PARTS) else {
            return Texts::default();
        };
        let (subject, body, html) = (
            parts.any_text("subject"),
            parts.any_text("body"),
            parts.any_text("html"),
        );
        if body.is_none() && html.is_none() {
            parts.missing("body", "the text of the message");
        }
        Texts {
            subject,
            body: body.unwrap_or_default(),
            html,
        }
    }

    fn plain(&mut self, channel: Option<Channel>) -> Texts {
        let is_json = channel == Some(Channel::Webhook)
            && self.0.get("body").is_some_and(|body| !body.is_string());
        let subject = self.0.any_text("subject");
        let body = if is_json {
            self.0.get("body").map(Value::to_string)
        } else {
            self.0.any_text("body")
        };
        let html = self.0.any_text("html");
        let is_reported =
            |name: &str, text: &Option<String>| text.is_none() && self.0.get(name).is_some();
        let is_reported = is_reported("body", &body) || is_reported("html", &html);
        // A provider's own template, media or data may be the message; its driver decides whether
        // they suffice.
        let has_more = self
            .0
            .get("extra")
            .and_then(Value::as_object)
            .is_some_and(|extra| !extra.is_empty());
        if !has_more
            && !is_reported
            && body.as_deref().is_none_or(str::is_empty)
            && html.as_deref().is_none_or(str::is_empty)
        {
            self.0.missing(
                "body",
                "the text of the message, unless there is a template",
            );
        }
        Texts {
            subject,
            body: body.unwrap_or_default(),
            html,
        }
    }

    fn extra(&mut self) -> Map<String, Value> {
        match self.0.take("extra") {
            None => Map::new(),
            Some(Value::Object(extra)) if extra.len() <= EXTRA_MAX => extra,
            Some(other) => {
                let allowed = format!("an object of at most {EXTRA_MAX} fields");
                self.0.refuse("extra", &allowed, &other);
                Map::new()
            }
        }
    }
}

#[cfg(test)]
#[path = "args_tests.rs"]
mod tests;
