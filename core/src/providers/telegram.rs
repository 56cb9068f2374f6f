//! Telegram bots: `sendMessage` of the Bot API. The recipient is a chat's id, or `@channel`.
//!
//! The bot's token is part of the path; it appears in no error and no log.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};

use super::code::row;
use super::driver::field;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::{
    Account, Call, Class, Code, Driver, DriverClients, Field, Http, InvalidAccount, Message,
    Provider, ProviderResponse, Scope, SendContext,
};
use crate::jobs::Issue;
use crate::outbound::retry_after::{Headers, MAX_RETRY_AFTER, retry_after};

/// The keys of an account's settings.
pub const FIELDS: &[Field] = &[field(
    "token",
    true,
    true,
    "the bot's token, 123456:ABC..., from @BotFather",
)];

/// The keys of `extra` that are copied into the request.
const EXTRA: &[&str] = &[
    "allow_paid_broadcast",
    "business_connection_id",
    "disable_notification",
    "entities",
    "link_preview_options",
    "message_effect_id",
    "message_thread_id",
    "parse_mode",
    "protect_content",
    "reply_markup",
    "reply_parameters",
];

/// The maximum length of a text, in UTF-16 units.
const TEXT_UNITS: usize = 4096;

/// The pause of a chat if the answer names none: Telegram allows one message per second and chat.
const DEFAULT_CHAT_PAUSE: Duration = Duration::from_secs(1);

/// The meaning of answers. The code is the part of `description` after the status in words;
/// `migrated` stands for an answer with `migrate_to_chat_id`. Telegram reports the limit of the
/// whole bot like that of a chat, so a 429 pauses the chat; the account's own rate enforces the
/// bot's limit.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("200", "ok", Class::Delivered, "sent"),
    row("2xx", "", Class::Ambiguous, "the response cannot be parsed"),
    row("*", "migrated", Class::Recipient, "the group has become a supergroup with another id"),
    row("400", "chat not found", Class::Recipient, "the chat does not exist, or the bot has no access to it"),
    row("400", "PEER_ID_INVALID", Class::Recipient, "the chat does not exist"),
    row("400", "user not found", Class::Recipient, "the user does not exist"),
    row("400", "CHAT_WRITE_FORBIDDEN", Class::Recipient, "the bot may not write there"),
    row("400", "CHAT_RESTRICTED", Class::Recipient, "the bot may not write there"),
    row("400", "TOPIC_CLOSED", Class::Recipient, "the topic is closed"),
    row("400", "message thread not found", Class::Recipient, "the topic does not exist"),
    row("400", "have no rights to send a message", Class::Recipient, "the bot may not write there"),
    row("400", "not enough rights to send text messages to the chat", Class::Recipient, "the bot may not write there"),
    row("400", "need administrator rights in the channel chat", Class::Recipient, "the bot is not an administrator of the channel"),
    row("400", "USER_IS_BLOCKED", Class::Suppress, "the user has blocked the bot"),
    row("400", "", Class::Request, "the text, entities or mark-up are not valid"),
    row("401", "", Class::Account, "the token is not valid, or no longer valid"),
    row("403", "bot was blocked by the user", Class::Suppress, "the user has blocked the bot"),
    row("403", "user is deactivated", Class::Suppress, "the user's account was deleted"),
    row("403", "bot was kicked from the group chat", Class::Suppress, "the bot was removed"),
    row("403", "bot was kicked from the supergroup chat", Class::Suppress, "the bot was removed"),
    row("403", "bot was kicked from the channel chat", Class::Suppress, "the bot was removed"),
    row("403", "the group chat was deleted", Class::Suppress, "the chat was deleted"),
    row("403", "", Class::Recipient, "the bot may not write to this chat, or not yet"),
    row("404", "", Class::Account, "no bot has this token"),
    row("413", "", Class::Request, "the request is too large"),
    row("420", "", Class::Throttled(Scope::Recipient), "flood control"),
    row("429", "", Class::Throttled(Scope::Recipient), "flood control; `parameters.retry_after` is the delay"),
    row("4xx", "", Class::Request, "the request is not valid"),
    row("*", "", Class::Transient, "error on Telegram's side"),
];

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    let token = outcome::secret(account, "token")?;
    let is_fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '-');
    if !token.contains(':') || !token.chars().all(is_fit) {
        return Err(refused(
            "token",
            "must be a bot's token: digits, a colon, then letters, digits, - and _",
        ));
    }
    let base = outcome::base_url(account, "https://api.telegram.org")?;
    let url = format!("{base}/bot{token}/sendMessage");
    Ok(Box::new(Telegram {
        url,
        token: token.to_owned(),
        account: account.clone(),
        http: tools.http.clone(),
    }))
}

struct Telegram {
    url: String,
    token: String,
    account: Account,
    http: Arc<Http>,
}

impl Telegram {
    fn request(&self, message: &Message, context: &SendContext) -> Call {
        let mut body = Map::new();
        body.insert("chat_id".to_owned(), json!(message.to.address()));
        body.insert("text".to_owned(), json!(message.body));
        let known = message
            .extra
            .iter()
            .filter(|(key, _)| EXTRA.contains(&key.as_str()));
        body.extend(known.map(|(key, value)| (key.clone(), value.clone())));
        Call {
            method: "POST",
            url: self.url.clone(),
            headers: outcome::headers(
                &self.account,
                vec![("content-type", "application/json".to_owned())],
            ),
            body: Value::Object(body).to_string(),
            timeout: context.timeout,
        }
    }
}

impl Driver for Telegram {
    fn provider(&self) -> Provider {
        Provider::Telegram
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = Vec::new();
        let mut issue = |pointer: &str, text: &str| {
            issues.push(Issue {
                pointer: pointer.to_owned(),
                message: text.to_owned(),
            })
        };
        if message.to.address().parse::<i64>().is_err()
            && !message.to.address().strip_prefix('@').is_some_and(is_name)
        {
            issue(
                "/to",
                "must be a chat's id, a whole number, or a channel's name, such as @news",
            );
        }
        if message.body.trim().is_empty() {
            issue("/body", "must not be empty");
        }
        let modes = ["HTML", "Markdown", "MarkdownV2"];
        if message
            .extra
            .get("parse_mode")
            .is_some_and(|mode| !mode.as_str().is_some_and(|mode| modes.contains(&mode)))
        {
            issue("/extra/parse_mode", "must be HTML, MarkdownV2 or Markdown");
        }
        for name in [
            "allow_paid_broadcast",
            "disable_notification",
            "protect_content",
        ] {
            if message
                .extra
                .get(name)
                .is_some_and(|value| !value.is_boolean())
            {
                issue(&format!("/extra/{name}"), "must be true or false");
            }
        }
        for name in ["link_preview_options", "reply_markup", "reply_parameters"] {
            if message
                .extra
                .get(name)
                .is_some_and(|value| !value.is_object())
            {
                issue(&format!("/extra/{name}"), "must be an object");
            }
        }
        if message
            .extra
            .get("entities")
            .is_some_and(|value| !value.is_array())
        {
            issue("/extra/entities", "must be a list");
        }
        if message
            .extra
            .get("message_thread_id")
            .is_some_and(|value| value.as_i64().is_none())
        {
            issue("/extra/message_thread_id", "must be a whole number");
        }
        // Mark-up does not count, so a text with mark-up may be longer than its visible part.
        if !message.extra.contains_key("parse_mode")
            && message.body.encode_utf16().count() > TEXT_UNITS
        {
            issue("/body", "must have at most 4096 characters");
        }
        issues
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(async move {
            let hidden = [self.token.as_str(), message.to.address()];
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
                    &hidden,
                ),
                Err(error) => outcome::unanswered(error, &hidden),
            }
        })
    }
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Maps an answer to an outcome; `hidden` are the token and the chat.
fn judge(
    status: u16,
    headers: &Headers,
    body: &[u8],
    now_s: i64,
    hidden: &[&str; 2],
) -> ProviderResponse {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let description = body["description"].as_str().unwrap_or_default();
    // Behind a proxy the HTTP status may differ from the answer's own.
    let status = body["error_code"]
        .as_u64()
        .map_or_else(|| status.to_string(), |code| code.to_string());
    let parameters = &body["parameters"];
    let word = match () {
        () if body["ok"] == true => "ok",
        () if !parameters["migrate_to_chat_id"].is_null() => "migrated",
        () => description.split(": ").nth(1).unwrap_or(description),
    };
    let stated_delay = parameters["retry_after"]
        .as_f64()
        .map(|seconds| seconds.clamp(0.0, MAX_RETRY_AFTER.as_secs_f64()));
    let stated_delay = stated_delay
        .map(Duration::from_secs_f64)
        .or_else(|| retry_after(headers, now_s));
    let reason = match word {
        "migrated" => "the group has become a supergroup with another id".to_owned(),
        _ => outcome::line(description, hidden),
    };
    let facts = ResponseDetails {
        provider_id: body["result"]["message_id"]
            .as_i64()
            .map(|id| id.to_string()),
        key: Some(hidden[1].to_owned()),
        delay: Some(stated_delay.unwrap_or(DEFAULT_CHAT_PAUSE)),
        reason,
    };
    ProviderResponse {
        delay: stated_delay,
        ..ProviderResponse::new(
            outcome::sent(outcome::class(CODES, &status, word), facts),
            status,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{account, tools};
    use super::super::wire_tests::{class_of, example, extra, headers, message, send_context};
    use super::*;
    use crate::providers::{Channel, Sent};

    const TOKEN: &str = "123456:AbC-d_9";
    const SECRETS: [&str; 2] = [TOKEN, "4711"];

    fn driver(base_url: Option<&str>) -> Telegram {
        let mut account = account(&[], &[("token", TOKEN)]);
        account.base_url = base_url.map(str::to_owned);
        build(&account, &tools()).unwrap();
        let url = format!(
            "{}/bot{TOKEN}/sendMessage",
            base_url.unwrap_or("https://api.telegram.org")
        );
        Telegram {
            url,
            token: TOKEN.to_owned(),
            account,
            http: tools().http,
        }
    }

    fn judged(status: u16, body: &Value) -> ProviderResponse {
        judge(
            status,
            &headers(&[]),
            body.to_string().as_bytes(),
            0,
            &SECRETS,
        )
    }

    #[test]
    fn every_row_is_what_its_answer_becomes() {
        for row in CODES {
            let status = example(row.status);
            let status: u16 = status.parse().unwrap();
            let body = match row.code {
                "ok" => json!({ "ok": true, "result": { "message_id": 7 } }),
                "migrated" => {
                    json!({ "ok": false, "description": "Bad Request: group chat was upgraded",
                    "parameters": { "migrate_to_chat_id": -100_123 } })
                }
                "" => json!({ "ok": false, "description": "Bad Request: nobody knows" }),
                code => json!({ "ok": false, "description": format!("Bad Request: {code}") }),
            };
            let answer = judged(status, &body);
            assert_eq!(class_of(&answer.sent), row.class, "{row:?}");
            assert!(
                !answer.sent.reason().contains("100123"),
                "the new id is an address"
            );
        }
    }

    #[test]
    fn a_throttled_chat_is_recognized_by_the_body() {
        let body = json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 5",
            "parameters": { "retry_after": 5 } });
        let Sent::Throttled {
            scope, key, delay, ..
        } = judged(429, &body).sent
        else {
            panic!("not throttled")
        };
        assert_eq!(
            (scope, key.as_deref(), delay),
            (Scope::Recipient, Some("4711"), Some(Duration::from_secs(5)))
        );
    }

    #[test]
    fn the_message_is_sent_with_what_telegram_knows() {
        let mut sent = message(Channel::Chat, "-1001");
        sent.extra =
            extra(json!({ "parse_mode": "HTML", "disable_notification": true, "media_url": "x" }));
        let call = driver(None).request(&sent, &send_context(0));
        assert_eq!(
            call.url,
            format!("https://api.telegram.org/bot{TOKEN}/sendMessage")
        );
        let body: Value = serde_json::from_str(&call.body).unwrap();
        let expected = json!({ "chat_id": "-1001", "text": "Hello", "parse_mode": "HTML", "disable_notification": true });
        assert_eq!(body, expected);
    }

    #[test]
    fn wrong_messages_and_settings_are_reported() {
        let pointers = |message: &Message| {
            driver(None)
                .check(message)
                .into_iter()
                .map(|issue| issue.pointer)
                .collect::<Vec<_>>()
        };
        assert!(pointers(&message(Channel::Chat, "-100123")).is_empty());
        assert!(pointers(&message(Channel::Chat, "@news_1")).is_empty());
        let mut long = message(Channel::Chat, "ann");
        long.body = "x".repeat(4097);
        assert_eq!(pointers(&long), ["/to", "/body"]);
        long.body = " ".to_owned();
        assert_eq!(pointers(&long), ["/to", "/body"]);
        for token in ["", "no-colon", "12:a b", "12:../x"] {
            let refused = build(&account(&[], &[("token", token)]), &tools())
                .err()
                .unwrap();
            assert_eq!(refused.field, "token");
            assert!(token.is_empty() || !refused.message.contains(token));
        }
    }

    #[tokio::test]
    async fn the_token_is_in_no_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let answer = driver(Some(&base))
            .send(&message(Channel::Chat, "4711"), &send_context(0))
            .await;
        assert_eq!(class_of(&answer.sent), Class::Transient, "{answer:?}");
        assert!(!format!("{answer:?}").contains("AbC"));
        let echo = json!({ "ok": false, "error_code": 400, "description": format!("Bad Request: /bot{TOKEN}/ 4711") });
        assert_eq!(
            judged(400, &echo).sent.reason(),
            "Bad Request: /bot***/ ***"
        );
    }
}
