//! Firebase Cloud Messaging, HTTP v1. The recipient is a device token, or `/topics/<name>`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::code::row;
use super::driver::field;
use super::invalid_account::refused;
use super::oauth::{Service, Tokens};
use super::outcome::{self, ResponseDetails};
use super::{
    Account, Call, Class, Code, Driver, DriverClients, Field, Http, HttpAnswer, InvalidAccount,
    Message, Provider, ProviderResponse, Scope, SendContext,
};
use crate::input::pointer;
use crate::jobs::Issue;
use crate::outbound::retry_after::{any_delay, retry_after};

/// The keys of an account's settings.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("service_account", true, true, "the JSON key of a service account, as downloaded from \
                                          Google"),
    field("project_id", false, false, "the project; if absent the service account's own"),
    field("token_uri", false, false, "the URL that issues access tokens; if absent the service \
                                      account's own"),
];

/// The OAuth scope of access tokens.
const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";

/// The maximum length of notification and data together, in bytes.
const PAYLOAD_BYTES: usize = 4096;

/// The delay to assume for an answer without one: Google asks for a minute after a 429.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(60);

/// The error code for an invalid key of one platform. It affects that platform's tokens only.
const THIRD_PARTY: &str = "THIRD_PARTY_AUTH_ERROR";

/// The keys of `extra` that are copied into the message.
const OBJECTS: &[&str] = &["android", "apns", "fcm_options", "webpush"];

/// The meaning of answers. The code is `error.details[].errorCode`, else `error.status`; `sent`
/// stands for an answer with a message's name, `bad_token` for an INVALID_ARGUMENT that is about
/// the token.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("200", "sent", Class::Accepted, "accepted"),
    row("2xx", "", Class::Ambiguous, "the response cannot be parsed"),
    row("*", "UNREGISTERED", Class::Suppress, "the app was removed from the device"),
    row("400", "bad_token", Class::Suppress, "not a registration token"),
    row("*", "SENDER_ID_MISMATCH", Class::Recipient, "the token belongs to another project"),
    row("*", "DEVICE_MESSAGE_RATE_EXCEEDED", Class::Throttled(Scope::Recipient), "too many messages to one device"),
    row("*", "TOPICS_MESSAGE_RATE_EXCEEDED", Class::Throttled(Scope::Recipient), "too many messages to one topic"),
    row("*", "QUOTA_EXCEEDED", Class::Throttled(Scope::Account), "the project's quota for this minute is used up"),
    row("*", "RESOURCE_EXHAUSTED", Class::Throttled(Scope::Account), "the project's quota for this minute is used up"),
    row("*", THIRD_PARTY, Class::Throttled(Scope::Recipient), "the project's APNs or web push key is not valid; tokens of that platform wait"),
    row("*", "INVALID_ARGUMENT", Class::Request, "the message is not valid"),
    row("*", "FAILED_PRECONDITION", Class::Request, "the message cannot be sent in this state"),
    row("*", "UNAUTHENTICATED", Class::Account, "the access token is not valid"),
    row("*", "PERMISSION_DENIED", Class::Account, "the service account may not send for the project"),
    row("*", "NOT_FOUND", Class::Recipient, "the recipient does not exist"),
    row("*", "UNAVAILABLE", Class::Transient, "FCM is overloaded"),
    row("*", "INTERNAL", Class::Transient, "error on FCM's side"),
    row("401", "", Class::Account, "the access token is not valid"),
    row("403", "", Class::Account, "the service account may not send for the project"),
    row("404", "", Class::Account, "the API address is wrong"),
    row("429", "", Class::Throttled(Scope::Account), "the project's quota for this minute is used up"),
    row("4xx", "", Class::Request, "the message is not valid"),
    row("*", "", Class::Transient, "error on FCM's side; a 502 is an HTML page"),
];

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Fcm::new(account, tools)?))
}

pub(super) struct Fcm {
    url: String,
    tokens: Tokens,
    account: Account,
    http: Arc<Http>,
}

impl Fcm {
    pub(super) fn new(account: &Account, tools: &DriverClients) -> Result<Self, InvalidAccount> {
        let service = Service::parse(
            outcome::secret(account, "service_account")?,
            "service_account",
        )?;
        let project = account
            .option("project_id")
            .map(str::to_owned)
            .or_else(|| service.project_id.clone());
        let project = project.ok_or_else(|| {
            refused(
                "project_id",
                "is missing, and the service account names none",
            )
        })?;
        if project.is_empty()
            || !project
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_:.".contains(c))
        {
            return Err(refused(
                "project_id",
                "must be a project's id: letters, digits and -",
            ));
        }
        let base = outcome::base_url(account, "https://fcm.googleapis.com")?;
        let tokens = Tokens::new(
            service,
            SCOPE,
            account.option("token_uri"),
            tools.http.clone(),
        )?;
        let url = format!("{base}/v1/projects/{project}/messages:send");
        Ok(Self {
            url,
            tokens,
            account: account.clone(),
            http: tools.http.clone(),
        })
    }

    fn request(&self, message: &Message, token: &str, context: &SendContext) -> Call {
        let own = vec![
            ("content-type", "application/json".to_owned()),
            ("authorization", format!("Bearer {token}")),
        ];
        Call {
            method: "POST",
            url: self.url.clone(),
            headers: outcome::headers(&self.account, own),
            body: body(message, context.now_s).to_string(),
            timeout: context.timeout,
        }
    }

    async fn try_send(&self, message: &Message, context: &SendContext) -> ProviderResponse {
        let mut rejected: Option<String> = None;
        loop {
            let token = match self.tokens.token(context, rejected.as_deref()).await {
                Ok(token) => token,
                Err(sent) => return ProviderResponse::new(sent, ""),
            };
            let hidden = [token.as_str(), message.to.address()];
            let answer = match self
                .http
                .send(self.request(message, &token, context), &context.stop)
                .await
            {
                Ok(answer) => answer,
                Err(error) => return outcome::unanswered(error, &hidden),
            };
            let (judged, word) = judge(&answer, context.now_s, message.to.address());
            // The token may have been revoked before it expired. Nothing was processed, so a new
            // one is tried once.
            let is_token = answer.status == 401 && word != THIRD_PARTY;
            if !is_token || rejected.is_some() {
                return judged;
            }
            rejected = Some(token);
        }
    }
}

impl Driver for Fcm {
    fn provider(&self) -> Provider {
        Provider::Fcm
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = Vec::new();
        let mut issue = |pointer: String, text: &str| {
            issues.push(Issue {
                pointer,
                message: text.to_owned(),
            })
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.~%".contains(c);
        let topic = message.to.address().strip_prefix("/topics/");
        if topic.is_some_and(|topic| topic.is_empty() || !topic.chars().all(is_name)) {
            issue(
                "/to".to_owned(),
                "must be a device's token, or /topics/ and a name of letters, digits and -_.~%",
            );
        }
        for name in OBJECTS {
            if message
                .extra
                .get(*name)
                .is_some_and(|value| !value.is_object())
            {
                issue(format!("/extra/{name}"), "must be an object");
            }
        }
        match message.extra.get("data") {
            None => {}
            Some(Value::Object(data)) => {
                let is_kept = |key: &str| {
                    key == "from"
                        || key == "message_type"
                        || key.starts_with("google")
                        || key.starts_with("gcm")
                };
                if data.keys().any(|key| is_kept(key)) {
                    issue(
                        "/extra/data".to_owned(),
                        "has a key that FCM keeps for itself: from, message_type, google... or gcm...",
                    );
                }
                for key in data
                    .iter()
                    .filter(|(_, value)| !value.is_string())
                    .map(|(key, _)| key)
                {
                    issue(
                        pointer("/extra/data", key),
                        "must be a text: FCM takes nothing else as data",
                    );
                }
            }
            Some(_) => issue("/extra/data".to_owned(), "must be an object of texts"),
        }
        if message
            .extra
            .get("priority")
            .is_some_and(|value| value != "high" && value != "normal")
        {
            issue("/extra/priority".to_owned(), "must be high or normal");
        }
        for name in ["image", "collapse_key"] {
            if message
                .extra
                .get(name)
                .is_some_and(|value| !value.is_string())
            {
                issue(format!("/extra/{name}"), "must be a text");
            }
        }
        if message
            .extra
            .get("validate_only")
            .is_some_and(|value| !value.is_boolean())
        {
            issue("/extra/validate_only".to_owned(), "must be true or false");
        }
        let sent = &body(message, 0)["message"];
        if [&sent["notification"], &sent["data"]]
            .iter()
            .map(|part| part.to_string().len())
            .sum::<usize>()
            > PAYLOAD_BYTES
        {
            issue(
                "/body".to_owned(),
                "is too long: notification and data together have at most 4096 bytes",
            );
        }
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(self.try_send(message, context))
    }
}

/// Builds the body of a request.
pub(super) fn body(message: &Message, now_s: i64) -> Value {
    let mut sent = Map::new();
    match message.to.address().strip_prefix("/topics/") {
        Some(topic) => sent.insert("topic".to_owned(), json!(topic)),
        None => sent.insert("token".to_owned(), json!(message.to.address())),
    };
    let mut notification = Map::new();
    notification.extend(
        message
            .subject
            .iter()
            .map(|title| ("title".to_owned(), json!(title))),
    );
    if !message.body.is_empty() {
        notification.insert("body".to_owned(), json!(message.body));
    }
    notification.extend(
        message
            .extra
            .get("image")
            .map(|image| ("image".to_owned(), image.clone())),
    );
    // A message without any of these carries data only; the app handles it itself.
    if !notification.is_empty() {
        sent.insert("notification".to_owned(), Value::Object(notification));
    }
    sent.extend(
        message
            .extra
            .get("data")
            .map(|data| ("data".to_owned(), data.clone())),
    );
    let objects = OBJECTS
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), message.extra.get(*name)?.clone())));
    sent.extend(objects);

    let mut put = |object: &str, key: &str, value: Value| {
        let object = sent.entry(object.to_owned()).or_insert_with(|| json!({}));
        if let Some(object) = object.as_object_mut() {
            object.entry(key.to_owned()).or_insert(value);
        }
    };
    if let Some(key) = message.extra.get("collapse_key") {
        put("android", "collapse_key", key.clone());
    }
    if let Some(priority) = message.extra.get("priority") {
        put("android", "priority", priority.clone());
    }
    if let Some(at_s) = message.expires_at_s {
        put(
            "android",
            "ttl",
            json!(format!("{}s", (at_s - now_s).clamp(0, 28 * 86_400))),
        );
        put("apns", "headers", json!({}));
        let headers = sent
            .get_mut("apns")
            .and_then(|apns| apns.get_mut("headers"));
        if let Some(headers) = headers.and_then(Value::as_object_mut) {
            headers
                .entry("apns-expiration")
                .or_insert(json!(at_s.to_string()));
        }
    }
    let mut body = json!({ "message": sent });
    if let Some(validate) = message.extra.get("validate_only") {
        body["validate_only"] = validate.clone();
    }
    body
}

/// Maps an answer to an outcome for the recipient `to`, and returns its code as well.
pub(super) fn judge(answer: &HttpAnswer, now_s: i64, to: &str) -> (ProviderResponse, String) {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let error = &body["error"];
    let details = error["details"].as_array().map_or(&[][..], Vec::as_slice);
    let code = details
        .iter()
        .find_map(|detail| detail["errorCode"].as_str());
    let (text, narrow) = (
        error["message"].as_str().unwrap_or_default(),
        narrow_quota(details),
    );
    let word = match () {
        () if body["name"].is_string() => "sent",
        () if is_about_token(details, text) => "bad_token",
        () if narrow.is_some() => narrow.unwrap_or_default(),
        () => code.or(error["status"].as_str()).unwrap_or_default(),
    };
    let status = answer.status.to_string();
    let facts = ResponseDetails {
        provider_id: body["name"].as_str().map(str::to_owned),
        key: Some(to.to_owned()),
        delay: any_delay(&answer.headers, now_s)
            .or((word != THIRD_PARTY).then_some(DEFAULT_RETRY_AFTER)),
        reason: outcome::line(&format!("{status} {word} {text}"), &[to]),
    };
    let sent = outcome::sent(outcome::class(CODES, &status, word), facts);
    (
        ProviderResponse {
            delay: retry_after(&answer.headers, now_s),
            ..ProviderResponse::new(sent, status)
        },
        word.to_owned(),
    )
}

/// Returns the code for the quota of a device or a topic. QUOTA_EXCEEDED covers all quotas; only
/// the violation distinguishes them.
fn narrow_quota(details: &[Value]) -> Option<&'static str> {
    details
        .iter()
        .filter_map(|detail| detail["violations"].as_array())
        .flatten()
        .find_map(|violation| {
            let text = violation.to_string().to_lowercase();
            match () {
                () if text.contains("device") => Some("DEVICE_MESSAGE_RATE_EXCEEDED"),
                () if text.contains("topic") => Some("TOPICS_MESSAGE_RATE_EXCEEDED"),
                () => None,
            }
        })
}

/// Returns true for an INVALID_ARGUMENT whose violation is the token's.
fn is_about_token(details: &[Value], text: &str) -> bool {
    let mut fields = details
        .iter()
        .filter_map(|detail| detail["fieldViolations"].as_array())
        .flatten();
    fields.any(|violation| violation["field"] == "message.token")
        || text.contains("not a valid FCM registration token")
}
