//! Slack, by an incoming webhook (`webhook_url`) or by the Web API's `chat.postMessage` (`token`).
//!
//! A webhook answers in plain words and belongs to one channel. The Web API reports errors with
//! status 200 and `"ok": false`, and the recipient is the id of a channel or a user.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use url::Url;

use super::code::row;
use super::driver::field;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::{
    Account, Call, Class, Code, Driver, DriverClients, Field, Http, InvalidAccount, Message,
    Provider, ProviderResponse, Scope, SendContext,
};
use crate::jobs::Issue;
use crate::outbound::retry_after::{Headers, any_delay, retry_after};

/// The keys of an account's settings; exactly one of the two is set.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("webhook_url", true, false, "the address of an incoming webhook; this or token"),
    field("token", true, false, "a bot's token, xoxb-..., with chat:write; this or webhook_url"),
];

/// The keys of `extra` that are copied into the request.
const EXTRA: &[&str] = &[
    "attachments",
    "blocks",
    "icon_emoji",
    "icon_url",
    "link_names",
    "metadata",
    "mrkdwn",
    "parse",
    "reply_broadcast",
    "thread_ts",
    "unfurl_links",
    "unfurl_media",
    "username",
];

/// The maximum length of a channel's id or name, in bytes.
const TO_BYTES: usize = 80;

/// The maximum length of a text, in characters; Slack cuts longer ones.
const TEXT_CHARS: usize = 40_000;

/// The maximum number of attachments of a message.
const ATTACHMENTS: usize = 100;

/// The maximum number of blocks of a message.
const BLOCKS: usize = 50;

/// The pause of a channel if the answer names none: Slack allows one message per second and
/// channel.
const DEFAULT_CHANNEL_PAUSE: Duration = Duration::from_secs(1);

/// The code of an error of the Web API that has no row of its own.
const UNKNOWN: &str = "unknown_error";

/// The meaning of answers. The code is the word in a webhook's answer, or the `error` of a Web
/// API's; `unknown_error` stands for any other `error`. A 429 is never permanent. The Web API
/// reports a channel with status 200; a webhook, whose only channel is the account's, with 4xx.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("2xx", "ok", Class::Delivered, "posted"),
    row("429", "", Class::Throttled(Scope::Recipient), "more than one message per second in a channel"),
    row("*", "ratelimited", Class::Throttled(Scope::Recipient), "more than one message per second in a channel"),
    row("*", "rate_limited", Class::Throttled(Scope::Recipient), "more than one message per second in a channel"),
    row("*", "message_limit_exceeded", Class::Throttled(Scope::Recipient), "too many messages in a channel"),
    row("4xx", "channel_not_found", Class::Account, "the channel of the webhook does not exist any more"),
    row("4xx", "user_not_found", Class::Account, "the user of the webhook does not exist any more"),
    row("4xx", "channel_is_archived", Class::Account, "the channel of the webhook is archived"),
    row("4xx", "posting_to_general_channel_denied", Class::Account, "posting to the channel of the webhook is restricted"),
    row("*", "channel_not_found", Class::Recipient, "the channel does not exist, or is private and lacks the bot"),
    row("*", "user_not_found", Class::Recipient, "the user does not exist"),
    row("*", "users_not_found", Class::Recipient, "the user does not exist"),
    row("*", "not_in_channel", Class::Recipient, "the bot is not in the channel"),
    row("*", "user_not_in_channel", Class::Recipient, "the user is not in the channel"),
    row("*", "channel_is_archived", Class::Recipient, "the channel is archived, which can be undone"),
    row("*", "is_archived", Class::Recipient, "the channel is archived, which can be undone"),
    row("*", "posting_to_general_channel_denied", Class::Recipient, "posting to that channel is restricted"),
    row("*", "restricted_action", Class::Recipient, "a workspace policy forbids posting there"),
    row("*", "restricted_action_read_only_channel", Class::Recipient, "the channel is read-only"),
    row("*", "restricted_action_thread_only_channel", Class::Recipient, "the channel accepts only replies"),
    row("*", "restricted_action_non_threadable_channel", Class::Recipient, "the channel does not accept replies"),
    row("*", "cannot_dm_bot", Class::Recipient, "the recipient is a bot"),
    row("*", "messages_tab_disabled", Class::Recipient, "the user does not accept messages from the app"),
    row("*", "user_disabled", Class::Suppress, "the user's account was deleted"),
    row("*", "invalid_payload", Class::Request, "the message does not have the format of a webhook"),
    row("*", "invalid_blocks", Class::Request, "the blocks are not valid"),
    row("*", "invalid_blocks_format", Class::Request, "the blocks are not valid"),
    row("*", "invalid_attachments", Class::Request, "the attachments are not valid"),
    row("*", "too_many_attachments", Class::Request, "at most 100 attachments"),
    row("*", "attachment_payload_limit_exceeded", Class::Request, "the attachments are too large"),
    row("*", "no_text", Class::Request, "both text and blocks are missing"),
    row("*", "missing_text_or_fallback_or_attachments", Class::Request, "both text and blocks are missing"),
    row("*", "msg_too_long", Class::Request, "the text is too long"),
    row("*", "msg_blocks_too_long", Class::Request, "the blocks are too long"),
    row("*", "cannot_reply_to_message", Class::Request, "thread_ts names a message that does not accept replies"),
    row("*", "thread_not_found", Class::Request, "thread_ts names no message"),
    row("*", "invalid_metadata_format", Class::Request, "the metadata is not valid"),
    row("*", "invalid_arguments", Class::Request, "an argument is not valid"),
    row("*", "invalid_json", Class::Request, "the request is not valid"),
    row("*", "invalid_post_type", Class::Request, "the request is not valid"),
    row("*", "json_not_object", Class::Request, "the request is not valid"),
    row("*", "not_authed", Class::Account, "the token is missing"),
    row("*", "invalid_auth", Class::Account, "the token is not valid"),
    row("*", "invalid_token", Class::Account, "the webhook's address is not valid"),
    row("*", "token_revoked", Class::Account, "the token was revoked"),
    row("*", "token_expired", Class::Account, "the token has expired"),
    row("*", "account_inactive", Class::Account, "the token's user or workspace was deleted"),
    row("*", "missing_scope", Class::Account, "the token lacks chat:write"),
    row("*", "no_permission", Class::Account, "the token may not post"),
    row("*", "not_allowed_token_type", Class::Account, "the token has the wrong type"),
    row("*", "access_denied", Class::Account, "the app may not post"),
    row("*", "accesslimited", Class::Account, "the workspace limits the app"),
    row("*", "ekm_access_denied", Class::Account, "the workspace's administrator has suspended posting"),
    row("*", "org_login_required", Class::Account, "the workspace is being migrated"),
    row("*", "team_access_not_granted", Class::Account, "the app has no access to the workspace"),
    row("*", "two_factor_setup_required", Class::Account, "the token's user must set up two-factor authentication"),
    row("*", "action_prohibited", Class::Account, "an administrator has restricted the webhook"),
    row("*", "no_service", Class::Account, "the webhook is disabled or was removed"),
    row("*", "no_active_hooks", Class::Account, "the webhook is disabled"),
    row("*", "no_service_id", Class::Account, "the webhook's address is not valid"),
    row("*", "no_team", Class::Account, "the webhook's workspace was deleted"),
    row("*", "team_disabled", Class::Account, "the webhook's workspace was deleted"),
    row("*", "enterprise_is_restricted", Class::Account, "the organisation does not permit this request"),
    row("*", "deprecated_endpoint", Class::Account, "the API address is wrong"),
    row("*", "method_deprecated", Class::Account, "the API address is wrong"),
    row("*", "rollup_error", Class::Transient, "error on Slack's side"),
    row("*", "fatal_error", Class::Ambiguous, "error on Slack's side; the request may have taken effect"),
    row("*", "internal_error", Class::Ambiguous, "error on Slack's side; the request may have taken effect"),
    row("*", "request_timeout", Class::Transient, "the request was truncated"),
    row("*", "service_unavailable", Class::Transient, "error on Slack's side"),
    row("*", "team_added_to_org", Class::Transient, "the workspace is being migrated"),
    row("2xx", UNKNOWN, Class::Request, "another error of the Web API, which a retry would repeat"),
    row("2xx", "", Class::Ambiguous, "the response cannot be parsed"),
    row("401", "", Class::Account, "the credentials are not valid"),
    row("403", "", Class::Account, "the credentials do not permit this request"),
    row("404", "", Class::Account, "the webhook does not exist"),
    row("410", "", Class::Account, "the webhook was removed"),
    row("4xx", "", Class::Request, "the request is not valid"),
    row("*", "", Class::Transient, "error on Slack's side"),
];

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Slack::new(account, tools)?))
}

struct Slack {
    url: String,
    token: Option<String>,
    account: Account,
    http: Arc<Http>,
}

impl Slack {
    fn new(account: &Account, tools: &DriverClients) -> Result<Self, InvalidAccount> {
        let (token, webhook) = (account.secret("token"), account.secret("webhook_url"));
        let url = match (token, webhook) {
            (Some(_), Some(_)) => {
                return Err(refused(
                    "token",
                    "and webhook_url are both given: give one of them",
                ));
            }
            (None, None) => {
                return Err(refused(
                    "webhook_url",
                    "is missing: give webhook_url_env or webhook_url_file, or a token",
                ));
            }
            (Some(_), None) => format!(
                "{}/api/chat.postMessage",
                outcome::base_url(account, "https://slack.com")?
            ),
            (None, Some(url)) => webhook_url(account, url)?,
        };
        Ok(Self {
            url,
            token: token.map(str::to_owned),
            account: account.clone(),
            http: tools.http.clone(),
        })
    }

    fn request(&self, message: &Message, context: &SendContext) -> Call {
        let mut body = Map::new();
        let mut headers = vec![("content-type", "application/json; charset=utf-8".to_owned())];
        if let Some(token) = &self.token {
            headers.push(("authorization", format!("Bearer {token}")));
            body.insert("channel".to_owned(), json!(message.to.address()));
        }
        body.insert("text".to_owned(), json!(message.body));
        let known = message
            .extra
            .iter()
            .filter(|(key, _)| EXTRA.contains(&key.as_str()));
        body.extend(known.map(|(key, value)| (key.clone(), value.clone())));
        Call {
            method: "POST",
            url: self.url.clone(),
            headers: outcome::headers(&self.account, headers),
            body: Value::Object(body).to_string(),
            timeout: context.timeout,
        }
    }
}

/// Parses a webhook's address and moves it to the account's `base_url`, if there is one.
fn webhook_url(account: &Account, url: &str) -> Result<String, InvalidAccount> {
    let parsed = Url::parse(url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let parsed =
        parsed.ok_or_else(|| refused("webhook_url", "must be the URL of an incoming webhook"))?;
    let base = outcome::base_url(account, &parsed[..url::Position::BeforePath])?;
    Ok(format!("{base}{}", &parsed[url::Position::BeforePath..]))
}

impl Driver for Slack {
    fn provider(&self) -> Provider {
        Provider::Slack
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = Vec::new();
        let mut issue = |pointer: &str, text: &str| {
            issues.push(Issue {
                pointer: pointer.to_owned(),
                message: text.to_owned(),
            })
        };
        if self.token.is_some() && message.to.address().len() > TO_BYTES {
            issue(
                "/to",
                "must be the id of a channel or a user, such as C0123456789, or a channel's #name",
            );
        }
        let blocks = message.extra.get("blocks");
        if message.body.trim().is_empty() && blocks.is_none() {
            issue("/body", "must not be empty without extra.blocks");
        }
        if message.body.chars().count() > TEXT_CHARS {
            issue("/body", "must have at most 40000 characters");
        }
        if blocks.is_some_and(|blocks| blocks.as_array().is_none_or(|blocks| blocks.len() > BLOCKS))
        {
            issue("/extra/blocks", "must be a list of at most 50 blocks");
        }
        if message
            .extra
            .get("attachments")
            .is_some_and(|all| all.as_array().is_none_or(|all| all.len() > ATTACHMENTS))
        {
            issue(
                "/extra/attachments",
                "must be a list of at most 100 attachments",
            );
        }
        for name in ["icon_emoji", "icon_url", "parse", "thread_ts", "username"] {
            if message
                .extra
                .get(name)
                .is_some_and(|value| !value.is_string())
            {
                issue(&format!("/extra/{name}"), "must be a text");
            }
        }
        for name in [
            "link_names",
            "mrkdwn",
            "reply_broadcast",
            "unfurl_links",
            "unfurl_media",
        ] {
            if message
                .extra
                .get(name)
                .is_some_and(|value| !value.is_boolean())
            {
                issue(&format!("/extra/{name}"), "must be true or false");
            }
        }
        if message
            .extra
            .get("metadata")
            .is_some_and(|value| !value.is_object())
        {
            issue("/extra/metadata", "must be an object");
        }
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(async move {
            match self
                .http
                .send(self.request(message, context), &context.stop)
                .await
            {
                Ok(answer) => judge(
                    answer.status,
                    &answer.headers,
                    &answer.body,
                    context.now_s,
                    message.to.address(),
                ),
                Err(error) => outcome::unanswered(
                    error,
                    &[
                        message.to.address(),
                        &self.url,
                        self.token.as_deref().unwrap_or_default(),
                    ],
                ),
            }
        })
    }
}

/// Maps an answer to an outcome for the channel `to`.
fn judge(status: u16, headers: &Headers, body: &[u8], now_s: i64, to: &str) -> ProviderResponse {
    let text = String::from_utf8_lossy(body);
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let word = match () {
        () if json["ok"] == true => "ok",
        () => json["error"].as_str().unwrap_or(text.trim()),
    };
    let is_word = (1..=64).contains(&word.len())
        && word
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let status = status.to_string();
    let facts = ResponseDetails {
        provider_id: json["ts"].as_str().map(str::to_owned),
        key: Some(to.to_owned()),
        delay: Some(any_delay(headers, now_s).unwrap_or(DEFAULT_CHANNEL_PAUSE)),
        // Only Slack's own words are recorded; a proxy's page is not.
        reason: if is_word {
            word.to_owned()
        } else {
            format!("answered {status}")
        },
    };
    let code = match () {
        () if !is_word => "",
        () if json["ok"] == false && CODES.iter().all(|row| row.code != word) => UNKNOWN,
        () => word,
    };
    let class = outcome::class(CODES, &status, code);
    ProviderResponse {
        delay: retry_after(headers, now_s),
        ..ProviderResponse::new(outcome::sent(class, facts), status)
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{account, tools};
    use super::super::wire_tests::{class_of, example, extra, headers, message, send_context};
    use super::*;
    use crate::providers::{Channel, Sent};

    const HOOK: &str = "https://hooks.slack.com/services/T0/B0/secretpart";

    fn judged(status: u16, body: &str) -> ProviderResponse {
        judge(
            status,
            &headers(&[("retry-after", "30")]),
            body.as_bytes(),
            0,
            "C1",
        )
    }

    #[test]
    fn every_row_is_what_its_answer_becomes_in_both_forms() {
        for row in CODES {
            let status: u16 = example(row.status).parse().unwrap();
            let json = match row.code {
                "ok" => json!({ "ok": true, "channel": "C1", "ts": "1.2" }),
                "" => json!({ "ok": false }),
                code => json!({ "ok": false, "error": code }),
            };
            assert_eq!(
                class_of(&judged(status, &json.to_string()).sent),
                row.class,
                "{row:?}"
            );
            assert_eq!(
                class_of(&judged(status, row.code).sent),
                row.class,
                "{row:?} as text"
            );
        }
    }

    #[test]
    fn an_error_that_has_no_row_was_not_posted() {
        let class = |status, body: &str| class_of(&judged(status, body).sent);
        let refused = r#"{"ok":false,"error":"metadata_too_large"}"#;
        assert_eq!(class(200, refused), Class::Request);
        assert_eq!(judged(200, refused).sent.reason(), "metadata_too_large");
        assert_eq!(class(200, "metadata_too_large"), Class::Ambiguous);
        assert_eq!(class(200, r#"{"ok":false}"#), Class::Ambiguous);
        assert_eq!(
            class(503, r#"{"ok":false,"error":"new_word"}"#),
            Class::Transient
        );
    }

    #[test]
    fn the_channel_of_a_webhook_is_the_accounts() {
        let webhook = |status, word| class_of(&judged(status, word).sent);
        assert_eq!(webhook(410, "channel_is_archived"), Class::Account);
        assert_eq!(webhook(404, "channel_not_found"), Class::Account);
        let web = |word: &str| {
            let body = json!({ "ok": false, "error": word }).to_string();
            class_of(&judged(200, &body).sent)
        };
        assert_eq!(web("is_archived"), Class::Recipient);
        assert_eq!(web("channel_not_found"), Class::Recipient);
    }

    #[test]
    fn a_429_pauses_the_channel_whatever_stands_in_it() {
        for body in [
            "",
            "<html>",
            "invalid_payload_is_not_a_word_of_it!",
            r#"{"ok":false,"error":"ratelimited"}"#,
        ] {
            let Sent::Throttled {
                scope, key, delay, ..
            } = judged(429, body).sent
            else {
                panic!("{body} is not throttled")
            };
            assert_eq!(
                (scope, key.as_deref(), delay),
                (Scope::Recipient, Some("C1"), Some(Duration::from_secs(30)))
            );
        }
        assert_eq!(
            class_of(&judged(429, "invalid_payload").sent),
            Class::Throttled(Scope::Recipient)
        );
    }

    #[test]
    fn both_ways_have_their_own_request() {
        let mut sent = message(Channel::Chat, "C1");
        sent.extra = extra(json!({ "blocks": [{ "type": "divider" }], "media_url": "x" }));
        let api = Slack::new(&account(&[], &[("token", "xoxb-1")]), &tools())
            .unwrap()
            .request(&sent, &send_context(0));
        assert_eq!(api.url, "https://slack.com/api/chat.postMessage");
        assert!(
            api.headers
                .contains(&("authorization".to_owned(), "Bearer xoxb-1".to_owned()))
        );
        let body: Value = serde_json::from_str(&api.body).unwrap();
        assert_eq!(
            body,
            json!({ "channel": "C1", "text": "Hello", "blocks": [{ "type": "divider" }] })
        );

        let mut hooked = account(&[], &[("webhook_url", HOOK)]);
        let call = Slack::new(&hooked, &tools())
            .unwrap()
            .request(&sent, &send_context(0));
        assert_eq!(call.url, HOOK);
        assert!(!call.body.contains("channel"));
        hooked.base_url = Some("http://127.0.0.1:9/slack".to_owned());
        let call = Slack::new(&hooked, &tools())
            .unwrap()
            .request(&sent, &send_context(0));
        assert_eq!(
            call.url,
            "http://127.0.0.1:9/slack/services/T0/B0/secretpart"
        );
    }

    #[test]
    fn wrong_messages_and_settings_are_reported() {
        let driver = Slack::new(&account(&[], &[("token", "xoxb-1")]), &tools()).unwrap();
        let pointers = |message: &Message| {
            driver
                .check(message)
                .into_iter()
                .map(|issue| issue.pointer)
                .collect::<Vec<_>>()
        };
        let mut sent = message(Channel::Chat, "C1");
        assert!(pointers(&sent).is_empty());
        sent.body = String::new();
        sent.to = message(Channel::Chat, &"C".repeat(81)).to;
        assert_eq!(pointers(&sent), ["/to", "/body"]);
        sent.extra = extra(json!({ "blocks": vec![0; 51] }));
        assert_eq!(pointers(&sent), ["/to", "/extra/blocks"]);

        let field = |secrets: &[(&str, &str)]| {
            Slack::new(&account(&[], secrets), &tools())
                .err()
                .unwrap()
                .field
        };
        assert_eq!(field(&[]), "webhook_url");
        assert_eq!(
            field(&[("webhook_url", "hooks.slack.com/x")]),
            "webhook_url"
        );
        assert_eq!(field(&[("webhook_url", HOOK), ("token", "x")]), "token");
    }
}
