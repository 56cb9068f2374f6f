//! A recipient's own webhook: the recipient is a URL, the body is JSON, signed according to
//! Standard Webhooks.
//!
//! The URL is untrusted, so requests pass the guard against private addresses, and redirects are
//! not followed. The endpoint is the recipient: its faults affect no other recipient, so none of
//! its answers counts against the account.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use url::Url;

use super::driver::field;
use super::invalid_account::refused;
use super::outcome::{self, ResponseDetails};
use super::{
    Account, Call, Class, Code, Driver, DriverClients, ExchangeError, Field, Http, InvalidAccount,
    Message, Provider, ProviderResponse, Scope, SendContext, Sent,
};
use crate::jobs::Issue;
use crate::outbound::retry_after::{Headers, any_delay};
use crate::outbound::signature::{PREFIX, Secrets};

/// The keys of an account's settings.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("signing_secret", true, true, "whsec_ and the base64 of 24 to 64 bytes; with several, \
                                         separated by blanks, each one signs"),
];

/// The name under which the account's secret is stored.
const NAME: &str = "ACCOUNT";

const fn row(status: &'static str, class: Class, about: &'static str) -> Code {
    Code {
        status,
        code: "",
        class,
        about,
    }
}

/// The meaning of answers.
#[rustfmt::skip]
pub const CODES: &[Code] = &[
    row("2xx", Class::Delivered, "accepted"),
    row("3xx", Class::Recipient, "redirects are not followed; change the URL"),
    row("408", Class::Throttled(Scope::Recipient), "the endpoint read the request too slowly"),
    row("410", Class::Suppress, "the endpoint accepts no further requests"),
    row("413", Class::Request, "the body is too large for the endpoint"),
    row("425", Class::Throttled(Scope::Recipient), "too early"),
    row("429", Class::Throttled(Scope::Recipient), "the endpoint's own limit is reached"),
    row("4xx", Class::Recipient, "the endpoint rejects the request"),
    row("5xx", Class::Throttled(Scope::Recipient), "error on the endpoint's side; 502 and 504 mean overload"),
    row("*", Class::Recipient, "not an HTTP response"),
];

/// Builds the driver of an account.
pub fn build(account: &Account, tools: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Webhook::new(account, tools)?))
}

struct Webhook {
    secrets: Secrets,
    account: Account,
    guarded: Arc<Http>,
}

impl Webhook {
    fn new(account: &Account, tools: &DriverClients) -> Result<Self, InvalidAccount> {
        if account.base_url.is_some() {
            return Err(refused(
                "base_url",
                "cannot be set: each message brings its own URL",
            ));
        }
        let text = outcome::secret(account, "signing_secret")?;
        let variable = (format!("{PREFIX}{NAME}"), text.to_owned());
        let unread = |_: &str| Err(std::io::ErrorKind::Unsupported.into());
        let secrets = Secrets::from_variables([variable], unread)
            .map_err(|error| refused("signing_secret", error.message))?;
        Ok(Self {
            secrets,
            account: account.clone(),
            guarded: tools.guarded.clone(),
        })
    }

    fn request(&self, message: &Message, context: &SendContext) -> Call {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(
            self.secrets
                .sign(NAME, &message.id, context.now_s, message.body.as_bytes())
                .into_iter()
                .flatten(),
        );
        Call {
            method: "POST",
            url: message.to.address().to_owned(),
            headers: outcome::headers(&self.account, headers),
            body: message.body.clone(),
            timeout: context.timeout,
        }
    }
}

impl Driver for Webhook {
    fn provider(&self) -> Provider {
        Provider::Webhook
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        let mut issues = Vec::new();
        let wrong = self.guarded.check_url(message.to.address()).err();
        issues.extend(wrong.map(|message| Issue {
            pointer: "/to".to_owned(),
            message,
        }));
        if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(&message.body) {
            issues.push(Issue {
                pointer: "/body".to_owned(),
                message: format!("must be JSON: {error}"),
            });
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
                .guarded
                .send_for_status(self.request(message, context), &context.stop)
                .await
            {
                Ok(answer) => judge(
                    answer.status,
                    &answer.headers,
                    context.now_s,
                    message.to.address(),
                ),
                Err(error) => unanswered(error, message.to.address(), context.stop.is_cancelled()),
            }
        })
    }
}

/// Maps an answer to an outcome for the endpoint `to`. The body is untrusted and ignored.
fn judge(status: u16, headers: &Headers, now_s: i64, to: &str) -> ProviderResponse {
    let status = status.to_string();
    let facts = ResponseDetails {
        provider_id: None,
        key: Some(to.to_owned()),
        delay: any_delay(headers, now_s),
        reason: format!("the endpoint answered {status}"),
    };
    ProviderResponse::new(
        outcome::sent(outcome::class(CODES, &status, ""), facts),
        status,
    )
}

/// Maps a missing answer to an outcome. Unlike with other drivers, an unreachable endpoint pauses
/// only that recipient, because its fault says nothing about the account.
fn unanswered(error: ExchangeError, to: &str, is_stopped: bool) -> ProviderResponse {
    let url = Url::parse(to).ok();
    let host = url.as_ref().and_then(Url::host_str).unwrap_or_default();
    let answer = outcome::unanswered(error, &[to, host]);
    let sent = match answer.sent {
        Sent::Transient { reason } => {
            // A stopping worker says nothing about the endpoint.
            let delay = is_stopped.then_some(Duration::ZERO);
            Sent::Throttled {
                scope: Scope::Recipient,
                key: Some(to.to_owned()),
                delay,
                reason,
            }
        }
        other => other,
    };
    ProviderResponse { sent, ..answer }
}

#[cfg(test)]
mod tests {
    use super::super::examples::{account, tools};
    use super::super::wire_tests::{class_of, example, headers, message, send_context};
    use super::*;
    use crate::outbound::Guard;
    use crate::providers::Channel;

    /// The secret of the standard's own example.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const TO: &str = "https://hooks.example.com/in?token=abc";

    fn driver(secret: &str) -> Webhook {
        Webhook::new(&account(&[], &[("signing_secret", secret)]), &tools()).unwrap()
    }

    #[test]
    fn every_row_is_what_its_answer_becomes() {
        for row in CODES {
            let status: u16 = if row.status == "*" {
                102
            } else {
                example(row.status).parse().unwrap()
            };
            let answer = judge(status, &headers(&[("retry-after", "7")]), 0, TO);
            assert_eq!(class_of(&answer.sent), row.class, "{row:?}");
            assert!(!answer.sent.reason().contains("example"));
            if let Sent::Throttled { key, delay, .. } = answer.sent {
                assert_eq!(
                    (key.as_deref(), delay),
                    (Some(TO), Some(Duration::from_secs(7))),
                    "{row:?}"
                );
            }
        }
        for status in [500, 502, 503, 504, 599] {
            let class = class_of(&judge(status, &headers(&[]), 0, TO).sent);
            assert_eq!(
                class,
                Class::Throttled(Scope::Recipient),
                "{status} must not open the account's breaker"
            );
        }
    }

    #[test]
    fn the_request_is_signed_by_every_secret() {
        let mut sent = message(Channel::Webhook, TO);
        sent.id = "msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned();
        sent.body = r#"{"test": 2432232314}"#.to_owned();
        let call = driver(&format!("{SECRET} whsec_{}", "A".repeat(32)))
            .request(&sent, &send_context(1_614_265_330));
        let header = |name: &str| {
            call.headers
                .iter()
                .find(|(other, _)| other == name)
                .unwrap()
                .1
                .clone()
        };
        assert_eq!(
            (
                call.url.as_str(),
                header("webhook-id"),
                header("webhook-timestamp")
            ),
            (TO, sent.id, "1614265330".to_owned())
        );
        let signatures = header("webhook-signature");
        assert!(
            signatures.starts_with("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE= v1,"),
            "{signatures}"
        );
    }

    #[test]
    fn an_endpoint_out_of_reach_is_no_fault_of_the_account() {
        let unsent = unanswered(
            ExchangeError::Unsent("could not connect to hooks.example.com".to_owned()),
            TO,
            false,
        );
        assert_eq!(class_of(&unsent.sent), Class::Throttled(Scope::Recipient));
        assert_eq!(unsent.sent.reason(), "could not connect to ***");
        let lost = unanswered(
            ExchangeError::Ambiguous("no answer within 5 ms".to_owned()),
            TO,
            false,
        );
        assert_eq!(class_of(&lost.sent), Class::Ambiguous);
        let inside = unanswered(
            ExchangeError::Refused("hooks.example.com is inside".to_owned()),
            TO,
            false,
        );
        assert_eq!(
            (class_of(&inside.sent), inside.sent.reason()),
            (Class::Request, "*** is inside")
        );
    }

    #[test]
    fn wrong_messages_and_settings_are_reported() {
        let mut tools = tools();
        tools.guarded = Arc::new(Http::new(Guard::default()).unwrap());
        let driver = Webhook::new(&account(&[], &[("signing_secret", SECRET)]), &tools).unwrap();
        let pointers = |to: &str, body: &str| {
            let mut message = message(Channel::Webhook, to);
            message.body = body.to_owned();
            driver
                .check(&message)
                .into_iter()
                .map(|issue| issue.pointer)
                .collect::<Vec<_>>()
        };
        assert!(pointers(TO, "{}").is_empty());
        assert_eq!(pointers(TO, "{"), ["/body"]);
        assert_eq!(
            pointers("http://127.0.0.1/x", "{}"),
            ["/to"],
            "an address inside"
        );

        let refused = |account: &Account| Webhook::new(account, &tools).err().unwrap();
        assert_eq!(refused(&account(&[], &[])).field, "signing_secret");
        let short = refused(&account(&[], &[("signing_secret", "whsec_c2hvcnQ=")]));
        assert_eq!(short.field, "signing_secret");
        assert!(!short.to_string().contains("c2hv"));
        let based = Account {
            base_url: Some("http://x".to_owned()),
            ..account(&[], &[("signing_secret", SECRET)])
        };
        assert_eq!(refused(&based).field, "base_url");
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = format!("http://{}/in", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 4096];
            let _ = stream.read(&mut buffer).await.unwrap();
            let answer = "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let answer = driver(SECRET)
            .send(&message(Channel::Webhook, &to), &send_context(0))
            .await;
        server.await.unwrap();
        assert_eq!(
            (class_of(&answer.sent), answer.status.as_str()),
            (Class::Recipient, "302")
        );
    }
}
