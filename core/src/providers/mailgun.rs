//! Mails through Mailgun.
//!
//! `POST /v3/<domain>/messages`, a form, with basic authentication as the user `api`. Success is
//! 200 with the `Message-Id`. A limit is reported by 429 or 420, sometimes with `retry-seconds` in
//! the body.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::arguments::{self, ExtraKind, issue};
use super::code::row;
use super::driver::field;
use super::exchange::exchange;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::words;
use super::{
    Account, Call, Class, Code, Driver, DriverClients, Field, Http, HttpAnswer, InvalidAccount,
    Mailbox, Message, Provider, ProviderResponse, Scope, SendContext, code,
};
use crate::jobs::Issue;
use crate::outbound::quota::quota;
use crate::outbound::retry_after::{MAX_RETRY_AFTER, any_delay, retry_after};

/// The base URL of Mailgun's API.
pub const BASE_URL: &str = "https://api.mailgun.net";

/// The base URL for domains in Europe.
pub const EU_URL: &str = "https://api.eu.mailgun.net";

/// The variable that carries the message's own id on each mail and comes back with its events.
pub const ID_VARIABLE: &str = "flyball_id";

/// The keys of an account's settings.
pub const FIELDS: &[Field] = &[
    field(
        "api_key",
        true,
        true,
        "the API key, of the account or of the domain",
    ),
    field("domain", false, true, "the sending domain"),
    field(
        "from",
        false,
        false,
        "the sender: an address, or a name and an address",
    ),
    field("region", false, false, "us or eu"),
    field(
        "webhook_signing_key",
        true,
        false,
        "the HTTP webhook signing key",
    ),
    field(
        "webhook_max_age_s",
        false,
        false,
        "the maximum age of a webhook's request, in seconds; 600 if absent",
    ),
];

/// The meaning of answers. Mailgun has no codes; ours are words that its message contains.
pub const CODES: &[Code] = &[
    row("200", "", Class::Accepted, "queued"),
    row(
        "2xx",
        "",
        Class::Ambiguous,
        "unexpected format of the response",
    ),
    row(
        "400",
        "to parameter is not a valid address",
        Class::Recipient,
        "the recipient's address is not valid",
    ),
    row("400", "", Class::Request, "the request is not valid"),
    row("3xx", "", Class::Account, "the API address redirects"),
    row("401", "", Class::Account, "the key is not valid"),
    row(
        "402",
        "",
        Class::Account,
        "the plan does not include this, or is unpaid",
    ),
    row(
        "4xx",
        "authorized recipients",
        Class::Recipient,
        "a sandbox domain may not send to this recipient",
    ),
    row(
        "403",
        "",
        Class::Account,
        "the domain or the account may not send",
    ),
    row("404", "", Class::Account, "the domain does not exist"),
    row("408", "", Class::Transient, "the request took too long"),
    row("413", "", Class::Request, "the mail is too large"),
    row(
        "420",
        "",
        Class::Throttled(Scope::Account),
        "more emails than the domain may send",
    ),
    row(
        "429",
        "",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row(
        "504",
        "",
        Class::Ambiguous,
        "a gateway timed out, so the message may have been sent",
    ),
    row("5xx", "", Class::Transient, "server error"),
    row(
        "*",
        "",
        Class::Request,
        "other errors, which a retry would repeat",
    ),
];

/// The keys of a message's `extra` and their types.
const EXTRA: &[(&str, ExtraKind)] = &[
    ("reply_to", ExtraKind::Text),
    ("tags", ExtraKind::Texts),
    ("variables", ExtraKind::Labels),
    ("headers", ExtraKind::Labels),
    ("template", ExtraKind::Text),
    ("template_variables", ExtraKind::Object),
    ("deliver_at", ExtraKind::Text),
    ("test_mode", ExtraKind::Flag),
];

/// The maximum number of tags of a mail.
const TAGS: usize = 10;
/// The maximum length of a tag, in bytes.
const TAG_BYTES: usize = 128;

/// The maximum length of a mail's texts, in bytes: Mailgun accepts 25 MB for the whole mail.
const BODY_BYTES: usize = 16_000_000;

/// The delay to assume for an answer without one: Mailgun's limits are counted in minutes.
const USUAL_DELAY: Duration = Duration::from_secs(60);

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Mailgun::new(account, Arc::clone(&tools.http))?))
}

/// The driver of one account.
pub struct Mailgun {
    account: Account,
    url: String,
    authorization: String,
    from: Option<Mailbox>,
    http: Arc<Http>,
}

impl Mailgun {
    fn new(account: &Account, http: Arc<Http>) -> Result<Self, InvalidAccount> {
        let key = outcome::secret(account, "api_key")?;
        let domain = outcome::option(account, "domain")?;
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        if !domain.bytes().all(is_plain) || domain.split('.').any(str::is_empty) {
            return Err(refused("domain", "must be a domain such as mg.example.com"));
        }
        let own = match account.option("region") {
            None | Some("us") => BASE_URL,
            Some("eu") => EU_URL,
            Some(_) => return Err(refused("region", "must be us or eu")),
        };
        super::events::age::most(account, 0)?;
        Ok(Self {
            url: format!("{}/v3/{domain}/messages", outcome::base_url(account, own)?),
            authorization: words::basic("api", key),
            from: words::from_option(account)?,
            http,
            account: account.clone(),
        })
    }

    /// Builds the request for a message.
    pub fn request(&self, message: &Message, timeout: Duration) -> Call {
        let text = |key| arguments::extra_text(message, key).map(str::to_owned);
        let labels = |key: &str| {
            message
                .extra
                .get(key)
                .and_then(Value::as_object)
                .cloned()
                .unwrap_or_default()
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut put = |name: &str, value: Option<String>| {
            fields.extend(value.map(|value| (name.to_owned(), value)))
        };
        put(
            "from",
            arguments::sender(message, self.from.as_ref()).map(|from| from.quoted()),
        );
        // The field accepts a list, so the single mailbox is formatted here, with its name in
        // quotes.
        put("to", message.to.mailbox().map(|to| to.quoted()));
        put("subject", message.subject.clone());
        put(
            "text",
            Some(message.body.clone()).filter(|body| !body.is_empty()),
        );
        put("html", message.html.clone());
        put("template", text("template"));
        put(
            "t:variables",
            message
                .extra
                .get("template_variables")
                .map(Value::to_string),
        );
        put(
            "h:Reply-To",
            text("reply_to")
                .as_deref()
                .and_then(Mailbox::parse)
                .map(|to| to.quoted()),
        );
        for (name, value) in labels("headers") {
            put(&format!("h:{name}"), value.as_str().map(str::to_owned));
        }
        for tag in arguments::extra_texts(message, "tags") {
            put("o:tag", Some(tag.to_owned()));
        }
        put("o:deliverytime", text("deliver_at"));
        put(
            "o:testmode",
            message
                .extra
                .get("test_mode")
                .and_then(Value::as_bool)
                .filter(|is_test| *is_test)
                .map(|_| "yes".to_owned()),
        );
        for (name, value) in labels("variables") {
            put(&format!("v:{name}"), value.as_str().map(str::to_owned));
        }
        put(&format!("v:{ID_VARIABLE}"), Some(message.id.clone()));
        let headers = [
            ("authorization", self.authorization.clone()),
            (
                "content-type",
                "application/x-www-form-urlencoded".to_owned(),
            ),
        ];
        let headers = outcome::headers(&self.account, headers.into());
        Call {
            method: "POST",
            url: self.url.clone(),
            headers,
            body: words::form(&fields),
            timeout,
        }
    }

    /// Maps an answer to an outcome.
    pub fn judge(&self, answer: &HttpAnswer, now_s: i64) -> ProviderResponse {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = body["message"]
            .as_str()
            .map_or_else(|| words::foreign(&answer.body, "Mailgun"), str::to_owned);
        let status = answer.status.to_string();
        // Events report the same id without brackets.
        let id = body["id"]
            .as_str()
            .map(|id| id.trim_matches(['<', '>']).to_owned());
        let class = match code::find(CODES, &status, error_code(&text))
            .map_or(Class::Request, |row| row.class)
        {
            Class::Accepted if id.is_none() => Class::Ambiguous,
            class => class,
        };
        let facts = ResponseDetails {
            provider_id: id,
            key: None,
            delay: any_delay(&answer.headers, now_s)
                .or_else(|| seconds(&body["retry-seconds"]))
                .or(Some(USUAL_DELAY)),
            reason: words::reason(&self.account, answer.status, "", &text),
        };
        let delay = retry_after(&answer.headers, now_s);
        ProviderResponse {
            quota: quota(&answer.headers, now_s),
            delay,
            ..ProviderResponse::new(outcome::sent(class, facts), status)
        }
    }
}

/// Finds the words of [`CODES`] in a message, ignoring case and quotes.
fn error_code(text: &str) -> &'static str {
    let text = text.to_ascii_lowercase().replace(['\'', '"'], "");
    CODES
        .iter()
        .map(|row| row.code)
        .find(|code| !code.is_empty() && text.contains(code))
        .unwrap_or_default()
}

/// Parses seconds from a number or a string.
fn seconds(value: &Value) -> Option<Duration> {
    let seconds = value
        .as_f64()
        .or_else(|| value.as_str()?.trim().parse().ok())?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .map(|delay| delay.min(MAX_RETRY_AFTER))
}

impl Driver for Mailgun {
    fn provider(&self) -> Provider {
        Provider::Mailgun
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = arguments::check_extra(message, EXTRA);
        issues.extend(arguments::check_mail(
            message,
            self.from.as_ref(),
            BODY_BYTES,
        ));
        let has_html = message.html.as_deref().is_some_and(|html| !html.is_empty());
        if message.body.is_empty() && !has_html && !message.extra.contains_key("template") {
            issues.push(issue(
                "/body",
                "must not be empty without html or extra.template",
            ));
        }
        if arguments::extra_text(message, "deliver_at")
            .is_some_and(|at| jiff::fmt::rfc2822::parse(at).is_err())
        {
            issues.push(issue(
                "/extra/deliver_at",
                "must be a date of RFC 2822, such as Tue, 24 Nov 2026 18:00:00 +0000",
            ));
        }
        let tags = arguments::extra_texts(message, "tags");
        if tags.len() > TAGS
            || tags
                .iter()
                .any(|tag| !(1..=TAG_BYTES).contains(&tag.len()) || !tag.is_ascii())
        {
            issues.push(issue(
                "/extra/tags",
                "must be at most 10 texts of 1 to 128 ASCII characters",
            ));
        }
        issues.extend(arguments::check_headers(message, &[]));
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        let call = self.request(message, context.timeout);
        exchange(&self.http, call, context, |answer| {
            self.judge(&answer, context.now_s)
        })
    }
}

#[cfg(test)]
#[path = "mailgun_tests.rs"]
mod tests;
