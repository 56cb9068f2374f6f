//! Mails through Amazon SES.
//!
//! `POST /v2/email/outbound-emails`, JSON, signed with Signature Version 4. SES reports a limit
//! without a delay; only the words distinguish the rate per second from the daily quota. The
//! account's allowed rate comes from `GET /v2/email/account`.

pub mod codes;

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

pub use self::codes::CODES;
use self::codes::{DAILY, THROTTLING, WORDS};
use super::arguments::{self, ExtraKind, issue};
use super::driver::field;
use super::exchange::exchange;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::words;
use super::{
    Account, Call, Class, Driver, DriverClients, Field, Http, HttpAnswer, InvalidAccount, Mailbox,
    Message, Provider, ProviderResponse, SendContext, code,
};
use crate::jobs::Issue;
use crate::outbound::quota::quota;
use crate::outbound::retry_after::{any_delay, retry_after};

/// The tag that carries the message's own id on each mail and comes back with its events.
pub const ID_TAG: &str = "flyball_id";

/// The keys of an account's settings.
pub const FIELDS: &[Field] = &[
    field("region", false, true, "the region, such as eu-central-1"),
    field(
        "access_key_id",
        false,
        true,
        "the access key's id (AKIA...); access_key_id_env and access_key_id_file are also accepted",
    ),
    field("secret_access_key", true, true, "the secret access key"),
    field(
        "session_token",
        true,
        false,
        "the session token of temporary credentials",
    ),
    field(
        "from",
        false,
        false,
        "the sender: an address, or a name and an address",
    ),
    field(
        "configuration_set",
        false,
        false,
        "the configuration set, which also sets the destination of events",
    ),
    field(
        "webhook_max_age_s",
        false,
        false,
        "the maximum age of an SNS notification, in seconds; 3600 if absent",
    ),
    field(
        "sns_topic_arn",
        false,
        false,
        "the SNS topic whose events are accepted",
    ),
    field(
        "sns_cert_host",
        false,
        false,
        "the source of SNS certificates instead of Amazon, trusted without checks: for tests, on \
         loopback only, such as http://127.0.0.1:8080",
    ),
];

/// The delay after a daily quota, which frees itself over 24 hours. The rate per second is left to
/// the throttle's own back-off.
const DAILY_DELAY: Duration = Duration::from_secs(3600);

/// The keys of a message's `extra` and their types.
const EXTRA: &[(&str, ExtraKind)] = &[
    ("reply_to", ExtraKind::Texts),
    ("tags", ExtraKind::Labels),
    ("headers", ExtraKind::Labels),
    ("template", ExtraKind::Text),
    ("template_data", ExtraKind::Object),
];

/// The maximum number of tags of a mail, ours included.
const TAGS: usize = 50;
/// The maximum number of headers that a message may add.
const HEADERS: usize = 15;
/// The maximum length of a header's name, in bytes.
const HEADER_NAME: usize = 126;
/// The maximum length of a header's value, in bytes.
const HEADER_VALUE: usize = 870;

/// The maximum length of a mail's texts, in bytes: SES accepts 40 MB for the whole mail, and base64
/// grows the texts by a third.
const BODY_BYTES: usize = 20_000_000;

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Ses::new(account, Arc::clone(&tools.http))?))
}

/// The driver of one account.
pub struct Ses {
    account: Account,
    base: String,
    region: String,
    credentials: Credentials,
    from: Option<Mailbox>,
    configuration_set: Option<String>,
    http: Arc<Http>,
}

impl Ses {
    fn new(account: &Account, http: Arc<Http>) -> Result<Self, InvalidAccount> {
        let region = outcome::option(account, "region")?;
        if !region
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        {
            return Err(refused("region", "must be a region such as eu-central-1"));
        }
        let id = words::either(account, "access_key_id")
            .ok_or_else(|| refused("access_key_id", "is missing"))?;
        let secret = outcome::secret(account, "secret_access_key")?;
        let token = account
            .secret("session_token")
            .filter(|token| !token.is_empty())
            .map(str::to_owned);
        let end = if region.starts_with("cn-") {
            "amazonaws.com.cn"
        } else {
            "amazonaws.com"
        };
        super::events::sns::check_settings(account)?;
        Ok(Self {
            base: outcome::base_url(account, &format!("https://email.{region}.{end}"))?,
            region: region.to_owned(),
            credentials: Credentials::new(id, secret, token, None, "flyball"),
            from: words::from_option(account)?,
            configuration_set: account.option("configuration_set").map(str::to_owned),
            http,
            account: account.clone(),
        })
    }

    /// Builds the request for a message.
    pub fn request(
        &self,
        message: &Message,
        now_s: i64,
        timeout: Duration,
    ) -> Result<Call, String> {
        let labels = |key: &str| {
            message
                .extra
                .get(key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
        };
        let pairs = |key: &str| {
            labels(key)
                .map(|(name, value)| json!({ "Name": name, "Value": value }))
                .collect::<Vec<_>>()
        };
        let mut tags = pairs("tags");
        tags.push(json!({ "Name": ID_TAG, "Value": label(&message.id) }));
        let mut body = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            body.extend(value.map(|value| (name.to_owned(), value)))
        };
        put(
            "FromEmailAddress",
            arguments::sender(message, self.from.as_ref()).map(|from| from.encoded().into()),
        );
        put(
            "Destination",
            Some(json!({ "ToAddresses": [message.to.mailbox().map(|to| to.encoded())] })),
        );
        let reply_to: Vec<String> = arguments::extra_texts(message, "reply_to")
            .into_iter()
            .filter_map(Mailbox::parse)
            .map(|to| to.encoded())
            .collect();
        put(
            "ReplyToAddresses",
            Some(reply_to).filter(|to| !to.is_empty()).map(Value::from),
        );
        put("Content", Some(content(message, pairs("headers"))));
        put("EmailTags", Some(tags.into()));
        put(
            "ConfigurationSetName",
            self.configuration_set.clone().map(Value::from),
        );
        self.signed(
            "POST",
            "/v2/email/outbound-emails",
            Value::from(body).to_string(),
            now_s,
            timeout,
        )
    }

    /// Builds a signed request.
    fn signed(
        &self,
        method: &'static str,
        path: &str,
        body: String,
        now_s: i64,
        timeout: Duration,
    ) -> Result<Call, String> {
        let url = format!("{}{path}", self.base);
        let kind = [("content-type", "application/json")];
        let identity = self.credentials.clone().into();
        let time = UNIX_EPOCH + Duration::from_secs(u64::try_from(now_s).unwrap_or_default());
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name("ses")
            .time(time)
            .settings(SigningSettings::default())
            .build()
            .map_err(|error| error.to_string())?
            .into();
        let signable = SignableRequest::new(
            method,
            url.as_str(),
            kind.into_iter(),
            SignableBody::Bytes(body.as_bytes()),
        );
        let signed = signable
            .and_then(|request| sign(request, &params))
            .map_err(|error| error.to_string())?;
        let (instructions, _) = signed.into_parts();
        let ours = kind
            .into_iter()
            .chain(instructions.headers())
            .map(|(name, value)| (name, value.to_owned()));
        let headers = outcome::headers(&self.account, ours.collect());
        Ok(Call {
            method,
            url,
            headers,
            body,
            timeout,
        })
    }

    /// Maps an answer to an outcome.
    pub fn judge(&self, answer: &HttpAnswer, now_s: i64) -> ProviderResponse {
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let text = ["message", "Message"]
            .into_iter()
            .find_map(|key| body[key].as_str())
            .map(str::to_owned);
        let text = text.unwrap_or_else(|| words::foreign(&answer.body, "SES"));
        let kind = answer.headers.get("x-amzn-errortype").map(String::as_str);
        let kind = kind
            .or_else(|| body["__type"].as_str())
            .or_else(|| body["code"].as_str())
            .unwrap_or_default();
        // `TooManyRequestsException:http://internal...` and `com.amazon#TooManyRequestsException`
        // are the same.
        let kind = kind
            .split(':')
            .next()
            .unwrap_or_default()
            .rsplit('#')
            .next()
            .unwrap_or_default()
            .trim();
        let error_code = WORDS
            .into_iter()
            .find(|words| says(&text, words))
            .unwrap_or(kind);
        let status = answer.status.to_string();
        let id = body["MessageId"].as_str().map(str::to_owned);
        let class =
            match code::find(CODES, &status, error_code).map_or(Class::Request, |row| row.class) {
                Class::Accepted if id.is_none() => Class::Ambiguous,
                class => class,
            };
        let own = (error_code == DAILY).then_some(DAILY_DELAY);
        let facts = ResponseDetails {
            provider_id: id,
            key: None,
            delay: any_delay(&answer.headers, now_s).or(own),
            reason: words::reason(&self.account, answer.status, kind, &text),
        };
        let delay = retry_after(&answer.headers, now_s);
        ProviderResponse {
            quota: quota(&answer.headers, now_s),
            delay,
            ..ProviderResponse::new(outcome::sent(class, facts), status)
        }
    }
}

/// Reads the account's allowed rate, in messages per second, from the answer of `GET
/// /v2/email/account`; `None` for no limit, which SES reports as -1.
fn max_send_rate(answer: &HttpAnswer) -> Option<f64> {
    let body: Value = serde_json::from_slice(&answer.body).ok()?;
    let rate = body["SendQuota"]["MaxSendRate"].as_f64()?;
    (answer.status == 200 && rate.is_finite() && rate > 0.0).then_some(rate)
}

/// Builds the content of a mail: a template or texts.
fn content(message: &Message, headers: Vec<Value>) -> Value {
    let mut content = Map::new();
    let mut put = |name: &str, value: Value| _ = content.insert(name.to_owned(), value);
    let name = match arguments::extra_text(message, "template") {
        Some(template) => {
            let data = message
                .extra
                .get("template_data")
                .map_or_else(|| "{}".to_owned(), Value::to_string);
            put("TemplateName", template.into());
            put("TemplateData", data.into());
            "Template"
        }
        None => {
            let text = |text: &str| json!({ "Data": text, "Charset": "UTF-8" });
            let texts = [
                ("Text", Some(&message.body)),
                ("Html", message.html.as_ref()),
            ];
            let texts = texts.into_iter().filter_map(|(kind, body)| {
                Some((kind.to_owned(), text(body.filter(|body| !body.is_empty())?)))
            });
            put(
                "Subject",
                text(message.subject.as_deref().unwrap_or_default()),
            );
            put("Body", Value::Object(texts.collect()));
            "Simple"
        }
    };
    if !headers.is_empty() {
        put("Headers", headers.into());
    }
    json!({ name: content })
}

/// Replaces the characters that SES does not allow in tags, and cuts to 256 characters.
fn label(text: &str) -> String {
    text.chars()
        .take(256)
        .map(|c| {
            if c.is_ascii_alphanumeric() || "_-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect()
}

/// Returns true if an error's message begins with these words, or has them behind its type. Further
/// on it may repeat the message's own texts, such as the name before an unverified sender.
fn says(text: &str, words: &str) -> bool {
    let begins = |text: &str| {
        text.get(..words.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(words))
    };
    let behind = text
        .split_once(": ")
        .filter(|(kind, _)| kind.eq_ignore_ascii_case(THROTTLING));
    begins(text) || behind.is_some_and(|(_, text)| begins(text))
}

impl Driver for Ses {
    fn provider(&self) -> Provider {
        Provider::Ses
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = arguments::check_extra(message, EXTRA);
        issues.extend(arguments::check_mail(
            message,
            self.from.as_ref(),
            BODY_BYTES,
        ));
        let has_template = message.extra.contains_key("template");
        if message.subject.as_deref().unwrap_or_default().is_empty() && !has_template {
            issues.push(issue(
                "/subject",
                "is missing: SES requires one, unless extra.template is given",
            ));
        }
        if message.body.is_empty()
            && message.html.as_deref().unwrap_or_default().is_empty()
            && !has_template
        {
            issues.push(issue(
                "/body",
                "must not be empty without html or extra.template",
            ));
        }
        let tags = message.extra.get("tags").and_then(Value::as_object);
        let is_odd = |text: &str| text.is_empty() || text != label(text);
        if tags.is_some_and(|tags| {
            tags.iter()
                .any(|(name, value)| is_odd(name) || value.as_str().is_some_and(is_odd))
        }) {
            issues.push(issue(
                "/extra/tags",
                "must have names and values of letters, digits, _ and - only, at most 256",
            ));
        }
        if tags.is_some_and(|tags| tags.len() >= TAGS) {
            issues.push(issue(
                "/extra/tags",
                "must be at most 49, because SES takes 50 and one is ours",
            ));
        }
        let headers = message.extra.get("headers").and_then(Value::as_object);
        let is_long = |(name, value): (&String, &Value)| {
            name.len() > HEADER_NAME
                || !(1..=HEADER_VALUE).contains(&value.as_str().unwrap_or_default().len())
        };
        if headers.is_some_and(|headers| headers.len() > HEADERS || headers.iter().any(is_long)) {
            issues.push(issue(
                "/extra/headers",
                "must be at most 15, with names of at most 126 bytes and values of 1 to 870",
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
        match self.request(message, context.now_s, context.timeout) {
            Ok(call) => exchange(&self.http, call, context, |answer| {
                self.judge(&answer, context.now_s)
            }),
            Err(reason) => {
                let reason = words::tidy(
                    &self.account,
                    &format!("signing the request failed: {reason}"),
                );
                Box::pin(std::future::ready(ProviderResponse::new(
                    super::Sent::PermanentRequest { reason },
                    "",
                )))
            }
        }
    }

    fn quota<'a>(&'a self, context: &'a SendContext) -> BoxFuture<'a, Option<f64>> {
        let call = self.signed(
            "GET",
            "/v2/email/account",
            String::new(),
            context.now_s,
            context.timeout,
        );
        Box::pin(
            async move { max_send_rate(&self.http.send(call.ok()?, &context.stop).await.ok()?) },
        )
    }
}

#[cfg(test)]
#[path = "ses_tests.rs"]
mod tests;
