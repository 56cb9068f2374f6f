//! Mails through SendGrid.
//!
//! `POST /v3/mail/send`, JSON, with the key as bearer token. An accepted mail is answered by 202
//! with an empty body and its id in `X-Message-Id`. Every answer reports the remaining quota:
//! `X-RateLimit-Remaining` until `X-RateLimit-Reset` (unix time).

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

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
use crate::outbound::retry_after::{any_delay, retry_after};

/// The base URL of SendGrid's API.
pub const BASE_URL: &str = "https://api.sendgrid.com";

/// The base URL for accounts whose data stay in Europe.
pub const EU_URL: &str = "https://api.eu.sendgrid.com";

/// The argument that carries the message's own id on each mail and comes back with its events.
pub const ID_ARGUMENT: &str = "flyball_id";

/// The keys of an account's settings.
pub const FIELDS: &[Field] = &[
    field(
        "api_key",
        true,
        true,
        "the API key (SG....), allowed to send mail",
    ),
    field(
        "from",
        false,
        false,
        "the sender: an address, or a name and an address",
    ),
    field("region", false, false, "global or eu"),
    field(
        "ip_pool_name",
        false,
        false,
        "the pool of IP addresses to send from",
    ),
    field(
        "webhook_public_key",
        false,
        false,
        "the event webhook's verification key, as SendGrid's console shows it",
    ),
    field(
        "webhook_max_age_s",
        false,
        false,
        "the maximum age of an event webhook's request, in seconds; 600 if absent",
    ),
];

/// The meaning of answers. SendGrid has no codes; ours are the field or the words of its first
/// error, where they are more specific than the status.
pub const CODES: &[Code] = &[
    row("202", "", Class::Accepted, "accepted"),
    row(
        "2xx",
        "",
        Class::Ambiguous,
        "unexpected format of the response",
    ),
    row(
        "4xx",
        "maximum credits exceeded",
        Class::Account,
        "the plan's email quota is used up",
    ),
    row(
        "400",
        "personalizations.to.email",
        Class::Recipient,
        "the recipient's address is not valid",
    ),
    row("400", "", Class::Request, "the request is not valid"),
    row("3xx", "", Class::Account, "the API address redirects"),
    row("401", "", Class::Account, "the key is not valid"),
    row("403", "from", Class::Request, "the sender is not verified"),
    row(
        "403",
        "from.email",
        Class::Request,
        "the sender is not verified",
    ),
    row(
        "403",
        "",
        Class::Account,
        "the key may not send, or the account is under review",
    ),
    row("404", "", Class::Account, "the API address is wrong"),
    row("405", "", Class::Request, "the method is not allowed"),
    row(
        "406",
        "",
        Class::Request,
        "the response format is not acceptable",
    ),
    row("408", "", Class::Transient, "the request took too long"),
    row("413", "", Class::Request, "the mail is too large"),
    row(
        "415",
        "",
        Class::Request,
        "the request format is not supported",
    ),
    row(
        "429",
        "",
        Class::Throttled(Scope::Account),
        "too many requests",
    ),
    row("500", "", Class::Transient, "server error"),
    row("503", "", Class::Transient, "the service is unavailable"),
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
    ("categories", ExtraKind::Texts),
    ("custom_args", ExtraKind::Labels),
    ("headers", ExtraKind::Labels),
    ("template_id", ExtraKind::Text),
    ("dynamic_template_data", ExtraKind::Object),
    ("asm_group_id", ExtraKind::Count),
    ("send_at", ExtraKind::Count),
];

/// The maximum number of categories of a mail.
const CATEGORIES: usize = 10;
/// The maximum length of a category, in characters.
const CATEGORY_CHARS: usize = 255;
/// The maximum length of a message's custom arguments as JSON, in bytes; ours needs the rest of
/// SendGrid's 10,000.
const CUSTOM_BYTES: usize = 9_900;

/// The headers that SendGrid rejects besides those that every mail has.
const RESERVED: &[&str] = &["dkim-signature", "received", "x-sg-eid", "x-sg-id"];

/// The maximum length of a mail's texts, in bytes: SendGrid accepts 30 MB for the whole mail.
const BODY_BYTES: usize = 20_000_000;

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Sendgrid::new(account, Arc::clone(&tools.http))?))
}

/// The driver of one account.
pub struct Sendgrid {
    account: Account,
    url: String,
    authorization: String,
    from: Option<Mailbox>,
    ip_pool: Option<String>,
    http: Arc<Http>,
}

impl Sendgrid {
    fn new(account: &Account, http: Arc<Http>) -> Result<Self, InvalidAccount> {
        let key = outcome::secret(account, "api_key")?;
        let own = match account.option("region") {
            None | Some("global") => BASE_URL,
            Some("eu") => EU_URL,
            Some(_) => return Err(refused("region", "must be global or eu")),
        };
        let ip_pool = account.option("ip_pool_name");
        if ip_pool.is_some_and(|name| !(2..=64).contains(&name.len())) {
            return Err(refused("ip_pool_name", "must have 2 to 64 characters"));
        }
        super::events::sendgrid::check_settings(account)?;
        Ok(Self {
            url: format!("{}/v3/mail/send", outcome::base_url(account, own)?),
            authorization: format!("Bearer {key}"),
            from: words::from_option(account)?,
            ip_pool: ip_pool.map(str::to_owned),
            http,
            account: account.clone(),
        })
    }

    /// Builds the request for a message.
    pub fn request(&self, message: &Message, timeout: Duration) -> Call {
        let text = |key| arguments::extra_text(message, key);
        let mut arguments = message
            .extra
            .get("custom_args")
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        arguments.insert(ID_ARGUMENT.to_owned(), message.id.clone().into());
        // SendGrid's published schema has an object in the personalisation, but a text in the mail
        // itself.
        let mut whom = Map::from_iter([
            ("custom_args".to_owned(), arguments.into()),
            (
                "to".to_owned(),
                json!([message.to.mailbox().as_ref().map(person)]),
            ),
        ]);
        if let Some(data) = message.extra.get("dynamic_template_data") {
            whom.insert("dynamic_template_data".to_owned(), data.clone());
        }
        let texts = [
            ("text/plain", Some(&message.body)),
            ("text/html", message.html.as_ref()),
        ];
        let texts = texts
            .into_iter()
            .filter_map(|(kind, text)| Some((kind, text.filter(|text| !text.is_empty())?)));
        let texts: Vec<Value> = texts
            .map(|(kind, text)| json!({ "type": kind, "value": text }))
            .collect();
        let categories = arguments::extra_texts(message, "categories");
        let mut body = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            body.extend(value.map(|value| (name.to_owned(), value)))
        };
        put("personalizations", Some(json!([whom])));
        put(
            "from",
            arguments::sender(message, self.from.as_ref())
                .as_ref()
                .map(person),
        );
        put(
            "reply_to",
            text("reply_to")
                .and_then(Mailbox::parse)
                .as_ref()
                .map(person),
        );
        put("subject", message.subject.clone().map(Value::from));
        put("content", (!texts.is_empty()).then(|| texts.into()));
        put("template_id", text("template_id").map(Value::from));
        put(
            "categories",
            (!categories.is_empty()).then(|| categories.into()),
        );
        put("headers", message.extra.get("headers").cloned());
        put("send_at", message.extra.get("send_at").cloned());
        put(
            "asm",
            message
                .extra
                .get("asm_group_id")
                .map(|group| json!({ "group_id": group })),
        );
        put("ip_pool_name", self.ip_pool.clone().map(Value::from));
        let headers = [
            ("authorization", self.authorization.clone()),
            ("content-type", "application/json".to_owned()),
        ];
        let headers = outcome::headers(&self.account, headers.into());
        Call {
            method: "POST",
            url: self.url.clone(),
            headers,
            body: Value::from(body).to_string(),
            timeout,
        }
    }

    /// Maps an answer to an outcome.
    pub fn judge(&self, answer: &HttpAnswer, now_s: i64) -> ProviderResponse {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let error = &body["errors"][0];
        let text = error["message"]
            .as_str()
            .map_or_else(|| words::foreign(&answer.body, "SendGrid"), str::to_owned);
        let status = answer.status.to_string();
        let row = code::find(CODES, &status, &error_code(error));
        let class = row.map_or(Class::Request, |row| row.class);
        let facts = ResponseDetails {
            provider_id: answer
                .headers
                .get("x-message-id")
                .filter(|id| !id.is_empty())
                .cloned(),
            key: None,
            delay: any_delay(&answer.headers, now_s),
            reason: words::reason(
                &self.account,
                answer.status,
                error["field"].as_str().unwrap_or_default(),
                &text,
            ),
        };
        let delay = retry_after(&answer.headers, now_s);
        ProviderResponse {
            quota: quota(&answer.headers, now_s),
            delay,
            ..ProviderResponse::new(outcome::sent(class, facts), status)
        }
    }
}

/// Returns the code of an error in [`CODES`]: some words of its message, or its field without list
/// indexes.
fn error_code(error: &Value) -> String {
    let text = error["message"]
        .as_str()
        .unwrap_or_default()
        .to_ascii_lowercase();
    if text.contains("maximum credits exceeded") {
        return "maximum credits exceeded".to_owned();
    }
    let parts = error["field"]
        .as_str()
        .unwrap_or_default()
        .split(['.', '[', ']']);
    let names: Vec<&str> = parts
        .filter(|part| !part.is_empty() && !part.bytes().all(|byte| byte.is_ascii_digit()))
        .collect();
    names.join(".")
}

/// Formats a mailbox as SendGrid's JSON.
fn person(mailbox: &Mailbox) -> Value {
    match mailbox.name() {
        Some(name) => json!({ "email": mailbox.address(), "name": name }),
        None => json!({ "email": mailbox.address() }),
    }
}

impl Driver for Sendgrid {
    fn provider(&self) -> Provider {
        Provider::Sendgrid
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = arguments::check_extra(message, EXTRA);
        issues.extend(arguments::check_mail(
            message,
            self.from.as_ref(),
            BODY_BYTES,
        ));
        let has_template = message.extra.contains_key("template_id");
        if message.subject.as_deref().unwrap_or_default().is_empty() && !has_template {
            issues.push(issue(
                "/subject",
                "is missing: SendGrid requires one, unless extra.template_id is given",
            ));
        }
        if message.body.is_empty()
            && message.html.as_deref().unwrap_or_default().is_empty()
            && !has_template
        {
            issues.push(issue(
                "/body",
                "must not be empty without html or extra.template_id",
            ));
        }
        let categories = arguments::extra_texts(message, "categories");
        if categories.len() > CATEGORIES
            || categories
                .iter()
                .any(|one| !(1..=CATEGORY_CHARS).contains(&one.chars().count()))
        {
            issues.push(issue(
                "/extra/categories",
                "must be at most 10 texts of 1 to 255 characters",
            ));
        }
        if message
            .extra
            .get("custom_args")
            .is_some_and(|given| given.to_string().len() > CUSTOM_BYTES)
        {
            issues.push(issue(
                "/extra/custom_args",
                "must have fewer than 10000 bytes in all",
            ));
        }
        issues.extend(arguments::check_headers(message, RESERVED));
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
#[path = "sendgrid_tests.rs"]
mod tests;
