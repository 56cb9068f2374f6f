//! The driver of an account.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{HeaderName, HeaderValue};
use http::{Request, Uri};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::connections::{ApnsConnections, PushError, StreamError};
use super::lines::{Lines, PushEffect};
use super::token::{SigningError, Tokens};
use super::{push, reasons};
use crate::jobs::Issue;
use crate::outbound::{descriptors, headers};
use crate::providers::driver::field;
use crate::providers::invalid_account::refused;
use crate::providers::outcome;
use crate::providers::{
    Account, Driver, DriverClients, Field, InvalidAccount, Message, Provider, ProviderResponse,
    Scope, SendContext, Sent,
};

/// The keys of an account's settings.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("team_id", false, true, "the team id, ten letters and digits"),
    field("key_id", false, true, "the key's id, ten letters and digits"),
    field("private_key", true, true, "the key: the contents of Apple's .p8 file"),
    field("topic", false, true, "the app's id, such as com.example.app"),
    field("streams_per_connection", false, false, "concurrent notifications on one connection, 1 \
                                                   to 1000; 100 if absent"),
];

/// The maximum number of concurrent pushes until a concurrency is set.
const DEFAULT_CONCURRENCY: usize = 1000;

/// The time that a connection is set aside after too many new tokens.
const ASIDE: std::time::Duration = std::time::Duration::from_secs(60);

/// Builds the driver of an account.
pub fn build(account: &Account, _: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Apns::new(account)?))
}

pub(super) struct Apns {
    base: String,
    topic: String,
    account: Account,
    tokens: Mutex<Tokens>,
    connections: Arc<ApnsConnections>,
}

/// The result of one try.
enum Try {
    /// The final outcome.
    Done(ProviderResponse),
    /// The connection had ended; another one may take the push.
    Stale(String),
    /// The token has expired.
    Expired(ProviderResponse),
}

impl Apns {
    pub(super) fn new(account: &Account) -> Result<Self, InvalidAccount> {
        let word = |name: &str| {
            let text = outcome::option(account, name)?;
            let is_fit = text.bytes().all(|byte| byte.is_ascii_graphic());
            is_fit
                .then(|| text.to_owned())
                .ok_or_else(|| refused(name, "must be letters, digits and dots"))
        };
        let (team_id, key_id, topic) = (word("team_id")?, word("key_id")?, word("topic")?);
        let pem = outcome::secret(account, "private_key")?;
        let tokens = Tokens::new(pem, &key_id, &team_id).map_err(|SigningError| {
            refused(
                "private_key",
                "must be an EC key on P-256 in PEM form, as in Apple's .p8 file",
            )
        })?;
        let streams = outcome::number(account, "streams_per_connection", 100, 1..=1000)?;
        let base = outcome::base_url(account, "https://api.push.apple.com")?;
        for (name, value) in &account.headers {
            header(name, value.reveal()).ok_or_else(|| {
                refused(
                    "headers",
                    format!("{name} or its value is not a valid header"),
                )
            })?;
        }
        let uri: Uri = base.parse().map_err(|_| {
            refused(
                "base_url",
                "must be a URL that begins with http:// or https://",
            )
        })?;
        let lines = Lines::new(usize::try_from(streams).unwrap_or(1), DEFAULT_CONCURRENCY);
        let connections = ApnsConnections::new(uri, lines)
            .map_err(|error| refused("base_url", format!("cannot be reached by TLS: {error}")))?;
        Ok(Self {
            base,
            topic,
            account: account.clone(),
            tokens: Mutex::new(tokens),
            connections,
        })
    }

    fn request(&self, message: &Message, token: &str) -> Option<Request<Full<Bytes>>> {
        let mut own = push::headers(message, &self.topic);
        own.push(("authorization", format!("bearer {token}")));
        let mut request = Request::post(format!("{}/3/device/{}", self.base, message.to.address()));
        for (name, value) in outcome::headers(&self.account, own) {
            let (name, value) = header(&name, &value)?;
            request = request.header(name, value);
        }
        request
            .body(Full::new(Bytes::from(push::payload(message))))
            .ok()
    }

    async fn send_once(
        &self,
        message: &Message,
        context: &SendContext,
        token: &str,
        deadline: Instant,
    ) -> Try {
        let hidden = [message.to.address(), token];
        let sent = |sent: Sent| Try::Done(ProviderResponse::new(sent, ""));
        let transient = |text: &str| {
            sent(Sent::Transient {
                reason: outcome::line(text, &hidden),
            })
        };
        let ambiguous = |text: &str| {
            sent(Sent::Ambiguous {
                reason: outcome::line(text, &hidden),
            })
        };
        let unready = |delay, reason: &str| {
            let throttled = Sent::Throttled {
                scope: Scope::Connection,
                key: None,
                delay,
                reason: reason.to_owned(),
            };
            Try::Done(ProviderResponse {
                is_untimed: true,
                ..ProviderResponse::new(throttled, "")
            })
        };
        let Some(request) = self
            .request(message, token)
            .filter(|_| push::is_token(message.to.address()))
        else {
            return sent(Sent::PermanentRequest {
                reason: "the push cannot be sent: a header or the token is not valid".to_owned(),
            });
        };
        let (mut stream, has_waited) = tokio::select! {
            biased;
            stream = self.connections.stream() => match stream {
                Ok(stream) => stream,
                Err(StreamError::Unreachable(reason)) if descriptors::are_gone() => return sent(Sent::Unable { reason }),
                Err(StreamError::Unreachable(reason)) => return transient(&reason),
                Err(StreamError::Aside(delay)) => return unready(Some(delay), "all connections are suspended after too many token updates"),
            },
            () = context.stop.cancelled() => return transient("stopped before the request was sent"),
            () = tokio::time::sleep_until(deadline) => return unready(None, "no stream became free in time"),
        };
        let answer = tokio::select! {
            biased;
            answer = stream.send(request) => answer,
            () = context.stop.cancelled() => return ambiguous("stopped before a response arrived"),
            () = tokio::time::sleep_until(deadline) => {
                return ambiguous(&format!("no answer within {} ms", context.timeout.as_millis()));
            }
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(PushError::Stale(reason)) => return Try::Stale(reason),
            Err(PushError::Unsent(reason)) => return transient(&reason),
            Err(PushError::Lost(reason)) => return ambiguous(&reason),
        };
        let (status, heads) = (answer.status().as_u16(), headers(answer.headers()));
        let id = push::id(&message.id);
        let (mut judged, word) = reasons::judge(
            status,
            &heads,
            answer.body(),
            context.now_s,
            message.to.address(),
            &id,
        );
        judged.is_untimed |= has_waited || stream.is_narrow();
        stream.set_effect(match status {
            200 => PushEffect::Good,
            _ if word == reasons::TOKEN_UPDATES => PushEffect::Aside(ASIDE),
            status if reasons::is_rejection(status) => PushEffect::Rejected,
            _ => PushEffect::Nothing,
        });
        match word == reasons::EXPIRED {
            true => Try::Expired(judged),
            false => Try::Done(judged),
        }
    }

    async fn try_send(&self, message: &Message, context: &SendContext) -> ProviderResponse {
        let deadline = Instant::now() + context.timeout;
        let (mut is_fresh, mut is_renewed) = (false, false);
        loop {
            let token = self.tokens.lock().current(context.now_s);
            let Ok(token) = token else {
                return ProviderResponse::new(
                    Sent::AccountFailure {
                        reason: "signing with the private key failed".to_owned(),
                    },
                    "",
                );
            };
            // Neither a stale connection nor an expired token processed the push, so each is
            // retried once.
            match self.send_once(message, context, &token, deadline).await {
                Try::Done(answer) => return answer,
                Try::Stale(_) if !is_fresh => is_fresh = true,
                Try::Stale(reason) => {
                    return ProviderResponse::new(
                        Sent::Transient {
                            reason: outcome::line(&reason, &[message.to.address()]),
                        },
                        "",
                    );
                }
                Try::Expired(answer) => {
                    let mut tokens = self.tokens.lock();
                    if is_renewed || !tokens.expired(&token, context.now_s) {
                        return answer;
                    }
                    is_renewed = true;
                }
            }
        }
    }
}

impl Driver for Apns {
    fn provider(&self) -> Provider {
        Provider::Apns
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        push::check(message)
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(self.try_send(message, context))
    }

    fn set_concurrency(&self, most: usize) {
        self.connections.set_most(most);
    }
}

/// Builds a header for the wire, marked as sensitive because its value may be a credential.
fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let mut value = HeaderValue::from_str(value).ok()?;
    value.set_sensitive(true);
    Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
}
