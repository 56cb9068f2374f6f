//! Text messages through Twilio.
//!
//! `POST /2010-04-01/Accounts/<sid>/Messages.json`, a form, with basic authentication. Twilio
//! queues the messages that it accepts (201) and reports their fate by status callbacks. A 429
//! limits concurrent requests, not messages per second, and carries no `Retry-After`.

pub mod codes;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::Value;

pub use self::codes::CODES;
use self::codes::DELAYS;
use super::arguments::{self, ExtraKind, issue};
use super::driver::field;
use super::exchange::exchange;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::words;
use super::{
    Account, Call, Class, Driver, DriverClients, Field, Http, HttpAnswer, InvalidAccount, Message,
    Provider, ProviderResponse, Scope, SendContext, code,
};
use crate::jobs::Issue;
use crate::outbound::quota::quota;
use crate::outbound::retry_after::{any_delay, retry_after};

/// The base URL of Twilio's API.
pub const BASE_URL: &str = "https://api.twilio.com";

/// The keys of an account's settings.
pub const FIELDS: &[Field] = &[
    field(
        "account_sid",
        false,
        true,
        "the account: AC and 32 hexadecimal digits",
    ),
    field(
        "auth_token",
        true,
        false,
        "the account's token; it also checks the signatures of status callbacks",
    ),
    field(
        "api_key_sid",
        false,
        false,
        "an API key (SK...) to send with instead of the token",
    ),
    field("api_key_secret", true, false, "the API key's secret"),
    field(
        "from",
        false,
        false,
        "the sender: a number in E.164 form, a short code, or a name of up to 11 letters and \
         digits",
    ),
    field(
        "messaging_service_sid",
        false,
        false,
        "the messaging service (MG...) that chooses the sender",
    ),
    field(
        "status_callback",
        false,
        false,
        "the URL to which Twilio posts the status of messages",
    ),
];

/// The keys of a message's `extra` and their types.
const EXTRA: &[(&str, ExtraKind)] = &[
    ("media_url", ExtraKind::Texts),
    ("content_sid", ExtraKind::Text),
    ("content_variables", ExtraKind::Object),
    ("send_at", ExtraKind::Text),
    ("validity_period", ExtraKind::Count),
    ("max_price", ExtraKind::Text),
    ("smart_encoded", ExtraKind::Flag),
];

/// The maximum length of a body, in characters.
const BODY_CHARS: usize = 1600;

/// The maximum number of media URLs of a message.
const MEDIA: usize = 10;

/// The maximum time that Twilio keeps a message in its queue, in seconds.
const VALIDITY_S: i64 = 36_000;

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Twilio::new(account, Arc::clone(&tools.http))?))
}

/// The driver of one account.
pub struct Twilio {
    account: Account,
    url: String,
    authorization: String,
    from: Option<String>,
    service: Option<String>,
    callback: Option<String>,
    http: Arc<Http>,
}

impl Twilio {
    fn new(account: &Account, http: Arc<Http>) -> Result<Self, InvalidAccount> {
        let sid = outcome::option(account, "account_sid")?;
        if !is_sid(sid, "AC") {
            return Err(refused(
                "account_sid",
                "must be AC and letters and digits, as Twilio's console shows it",
            ));
        }
        let authorization = match words::either(account, "api_key_sid") {
            Some(key) => words::basic(key, outcome::secret(account, "api_key_secret")?),
            None => words::basic(sid, outcome::secret(account, "auth_token")?),
        };
        let from = account.option("from");
        if from.is_some_and(|from| !is_sender(from)) {
            return Err(refused("from", format!("must be {SENDERS}")));
        }
        let service = account.option("messaging_service_sid");
        if service.is_some_and(|service| !is_sid(service, "MG")) {
            return Err(refused(
                "messaging_service_sid",
                "must be MG and letters and digits, as Twilio's console shows it",
            ));
        }
        let callback = account.option("status_callback");
        if callback.is_some_and(|url| !is_web_url(url)) {
            return Err(refused(
                "status_callback",
                "must be a URL such as https://example.com/events",
            ));
        }
        let base = outcome::base_url(account, BASE_URL)?;
        Ok(Self {
            url: format!("{base}/2010-04-01/Accounts/{sid}/Messages.json"),
            authorization,
            from: from.map(str::to_owned),
            service: service.map(str::to_owned),
            callback: callback.map(str::to_owned),
            http,
            account: account.clone(),
        })
    }

    /// Returns the sender and the messaging service of a message; either may be absent.
    fn sender<'a>(&'a self, message: &'a Message) -> (Option<&'a str>, Option<&'a str>) {
        match message.from.as_deref() {
            Some(service) if is_sid(service, "MG") => (None, Some(service)),
            Some(from) => (Some(from), self.service.as_deref()),
            None => (self.from.as_deref(), self.service.as_deref()),
        }
    }

    /// Checks the time at which Twilio shall send a message. Twilio checks itself how far off that
    /// time may be, by its own clock.
    fn check_schedule(&self, message: &Message) -> Vec<Issue> {
        let Some(at) = arguments::extra_text(message, "send_at") else {
            return Vec::new();
        };
        let mut issues = Vec::new();
        if at.parse::<jiff::Timestamp>().is_err() {
            issues.push(issue(
                "/extra/send_at",
                "must be a time of ISO 8601 with its zone, such as 2026-11-24T18:00:00Z",
            ));
        }
        if self.sender(message).1.is_none() {
            issues.push(issue(
                "/extra/send_at",
                "needs a messaging service: give messaging_service_sid in the settings, or from (MG...)",
            ));
        }
        issues
    }

    /// Builds the request for a message.
    pub fn request(&self, message: &Message, now_s: i64, timeout: Duration) -> Call {
        let (from, service) = self.sender(message);
        let text = |key| arguments::extra_text(message, key).map(str::to_owned);
        let left = message
            .expires_at_s
            .map(|at| (at - now_s).clamp(1, VALIDITY_S));
        let validity = message
            .extra
            .get("validity_period")
            .and_then(Value::as_i64)
            .or(left);
        let scheduled = text("send_at");
        let mut fields = vec![("To".to_owned(), message.to.address().to_owned())];
        let mut put = |name: &str, value: Option<String>| {
            fields.extend(value.map(|value| (name.to_owned(), value)))
        };
        put("From", from.map(str::to_owned));
        put("MessagingServiceSid", service.map(str::to_owned));
        put(
            "Body",
            Some(message.body.clone()).filter(|body| !body.is_empty()),
        );
        for url in arguments::extra_texts(message, "media_url") {
            put("MediaUrl", Some(url.to_owned()));
        }
        put("ContentSid", text("content_sid"));
        put(
            "ContentVariables",
            message.extra.get("content_variables").map(Value::to_string),
        );
        put("StatusCallback", self.callback.clone());
        put(
            "ScheduleType",
            scheduled.as_ref().map(|_| "fixed".to_owned()),
        );
        // Twilio counts the validity of a scheduled message from its scheduled time, so ours would
        // be wrong.
        put(
            "ValidityPeriod",
            validity
                .filter(|_| scheduled.is_none())
                .map(|seconds| seconds.to_string()),
        );
        put("SendAt", scheduled);
        put("MaxPrice", text("max_price"));
        put(
            "SmartEncoded",
            message
                .extra
                .get("smart_encoded")
                .and_then(Value::as_bool)
                .map(|flag| flag.to_string()),
        );
        let headers = [
            ("authorization", self.authorization.clone()),
            (
                "content-type",
                "application/x-www-form-urlencoded".to_owned(),
            ),
            ("accept", "application/json".to_owned()),
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
    pub fn judge(&self, message: &Message, answer: &HttpAnswer, now_s: i64) -> ProviderResponse {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let error_code = match &body["code"] {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => String::new(),
        };
        let status = answer.status.to_string();
        let sid = body["sid"].as_str();
        let class =
            match code::find(CODES, &status, &error_code).map_or(Class::Request, |row| row.class) {
                Class::Accepted if sid.is_none() => Class::Ambiguous,
                class => class,
            };
        let (from, service) = self.sender(message);
        let key = match class {
            Class::Throttled(Scope::Sender) => from.or(service).map(str::to_owned),
            Class::Throttled(Scope::Recipient) => Some(message.to.address().to_owned()),
            _ => None,
        };
        let own = DELAYS
            .iter()
            .find(|(code, _)| *code == error_code)
            .map(|(_, seconds)| Duration::from_secs(*seconds));
        let text = body["message"]
            .as_str()
            .map_or_else(|| words::foreign(&answer.body, "Twilio"), str::to_owned);
        let facts = ResponseDetails {
            provider_id: sid.map(str::to_owned),
            key,
            delay: any_delay(&answer.headers, now_s).or(own),
            reason: words::reason(&self.account, answer.status, &error_code, &text),
        };
        let delay = retry_after(&answer.headers, now_s);
        ProviderResponse {
            quota: quota(&answer.headers, now_s),
            delay,
            ..ProviderResponse::new(outcome::sent(class, facts), status)
        }
    }
}

impl Driver for Twilio {
    fn provider(&self) -> Provider {
        Provider::Twilio
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = arguments::check_extra(message, EXTRA);
        match message.from.as_deref() {
            Some(from) if !is_sender(from) && !is_sid(from, "MG") => {
                issues.push(issue(
                    "/from",
                    format!("must be {SENDERS}, or a messaging service (MG...)"),
                ));
            }
            None if self.from.is_none() && self.service.is_none() => {
                issues.push(issue(
                    "/from",
                    "is missing, and the account has neither from nor messaging_service_sid: give one of them",
                ));
            }
            _ => {}
        }
        let chars = message.body.chars().count();
        issues.extend(self.check_schedule(message));
        let media = arguments::extra_texts(message, "media_url");
        if media.len() > MEDIA || media.iter().any(|url| !is_web_url(url)) {
            issues.push(issue(
                "/extra/media_url",
                "must be at most 10 URLs that begin with http:// or https://",
            ));
        }
        let validity = message.extra.get("validity_period").and_then(Value::as_i64);
        if validity.is_some_and(|seconds| !(1..=VALIDITY_S).contains(&seconds)) {
            issues.push(issue(
                "/extra/validity_period",
                "must be 1 to 36000 seconds",
            ));
        }
        if arguments::extra_text(message, "content_sid").is_some_and(|sid| !is_sid(sid, "HX")) {
            issues.push(issue(
                "/extra/content_sid",
                "must be HX and letters and digits, as Twilio's console shows it",
            ));
        }
        if arguments::extra_text(message, "max_price").is_some_and(|price| {
            !price
                .parse::<f64>()
                .is_ok_and(|price| price.is_finite() && price >= 0.0)
        }) {
            issues.push(issue("/extra/max_price", "must be a price, such as 0.05"));
        }
        let has_more = ["media_url", "content_sid"]
            .iter()
            .any(|key| message.extra.contains_key(*key));
        if chars > BODY_CHARS {
            issues.push(issue(
                "/body",
                format!("has {chars} characters; at most {BODY_CHARS} are allowed"),
            ));
        } else if chars == 0 && !has_more {
            issues.push(issue(
                "/body",
                "must not be empty without extra.media_url or extra.content_sid",
            ));
        }
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        let call = self.request(message, context.now_s, context.timeout);
        exchange(&self.http, call, context, |answer| {
            self.judge(message, &answer, context.now_s)
        })
    }
}

/// The permitted senders, completing "must be …".
const SENDERS: &str = "a number in E.164 form such as +15550100, a short code of 3 to 8 digits, or a name of up to 11 letters, digits and blanks";

fn is_sender(text: &str) -> bool {
    let is_code = (3..=8).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_name = (1..=11).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b" -_&".contains(&byte))
        && text.bytes().any(|byte| byte.is_ascii_alphabetic());
    is_code || is_name || words::is_e164(text.strip_prefix("whatsapp:").unwrap_or(text))
}

fn is_sid(text: &str, prefix: &str) -> bool {
    let rest = text.strip_prefix(prefix).unwrap_or_default();
    (1..=64).contains(&rest.len())
        && rest
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn is_web_url(text: &str) -> bool {
    url::Url::parse(text)
        .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

#[cfg(test)]
#[path = "twilio_tests.rs"]
mod tests;
