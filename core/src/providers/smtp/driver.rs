//! The driver of an SMTP server.

use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::BoxFuture;
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::TlsParameters;
use lettre::transport::smtp::extension::ClientId;
use serde_json::json;
use url::Url;

use super::connections::{SmtpConnections, SmtpEndpoint, SmtpError, Tls};
use super::mail::{self, Ready};
use super::words;
use crate::jobs::Issue;
use crate::outbound::descriptors;
use crate::providers::driver::field;
use crate::providers::invalid_account::refused;
use crate::providers::outcome;
use crate::providers::{
    Account, Driver, DriverClients, Field, InvalidAccount, Message, Provider, ProviderResponse,
    SendContext, Sent,
};

/// The keys of an account's settings.
#[rustfmt::skip]
pub const FIELDS: &[Field] = &[
    field("host", false, true, "the server's name"),
    field("port", false, false, "the port; if absent 587 for starttls, 465 for tls, 25 for none"),
    field("tls", false, false, "starttls (the default), tls, or none"),
    field("username", false, false, "the user name; requires password"),
    field("password", true, false, "the password; requires username"),
    field("from", false, false, "the sender of messages without one"),
    field("hello", false, false, "our name in EHLO; if absent the domain of from"),
    field("throttle_phrases", false, false, "comma-separated phrases that turn any refusal into a \
                                             throttle; the first number of seconds or minutes in \
                                             the text is the delay"),
];

/// Builds the driver of an account.
pub fn build(account: &Account, _: &DriverClients) -> Result<Box<dyn Driver>, InvalidAccount> {
    Ok(Box::new(Smtp::new(account)?))
}

pub(super) struct Smtp {
    account: Account,
    phrases: Vec<String>,
    connections: SmtpConnections,
}

impl Smtp {
    pub(super) fn new(account: &Account) -> Result<Self, InvalidAccount> {
        let server = server(account)?;
        let phrases = account
            .option("throttle_phrases")
            .unwrap_or_default()
            .split(',');
        let phrases = phrases
            .map(|phrase| phrase.trim().to_lowercase())
            .filter(|phrase| !phrase.is_empty())
            .collect();
        for (name, value) in &account.headers {
            mail::header(name, &json!(value.reveal())).ok_or_else(|| {
                refused(
                    "headers",
                    format!("{name} cannot be set, or its value has more than one line"),
                )
            })?;
        }
        Ok(Self {
            account: account.clone(),
            phrases,
            connections: SmtpConnections::new(server),
        })
    }

    /// Maps the result of a transmission to an outcome; `id` is the mail's Message-ID.
    fn judge(
        &self,
        done: Result<u16, SmtpError>,
        is_written: bool,
        id: String,
        to: &str,
    ) -> ProviderResponse {
        let reason = |text: &str| outcome::line(text, &[to]);
        match done {
            Ok(digits) => ProviderResponse::new(
                Sent::Accepted {
                    provider_id: Some(id),
                },
                digits.to_string(),
            ),
            Err(SmtpError::Said {
                stage,
                digits,
                text,
            }) => words::judge(digits, &text, stage, &self.phrases, to),
            Err(SmtpError::Unable(text)) => ProviderResponse::new(
                Sent::AccountFailure {
                    reason: reason(&text),
                },
                "",
            ),
            Err(SmtpError::Lost(text)) if is_written => ProviderResponse::new(
                Sent::Ambiguous {
                    reason: reason(&text),
                },
                "",
            ),
            Err(SmtpError::Lost(text)) if descriptors::are_gone() => ProviderResponse::new(
                Sent::Unable {
                    reason: reason(&text),
                },
                "",
            ),
            Err(SmtpError::Lost(text)) => ProviderResponse::new(
                Sent::Transient {
                    reason: reason(&text),
                },
                "",
            ),
        }
    }
}

impl Driver for Smtp {
    fn provider(&self) -> Provider {
        Provider::Smtp
    }

    fn check(&self, message: &Message) -> Vec<Issue> {
        mail::check(message, &self.account)
    }

    fn send<'a>(
        &'a self,
        message: &'a Message,
        context: &'a SendContext,
    ) -> BoxFuture<'a, ProviderResponse> {
        Box::pin(async move {
            let mail: Ready = match mail::ready(message, &self.account, context.now_s) {
                Ok(mail) => mail,
                Err(issues) => {
                    let reason = issues
                        .iter()
                        .map(|issue| format!("{} {}", issue.pointer, issue.message))
                        .collect::<Vec<_>>();
                    return ProviderResponse::new(
                        Sent::PermanentRequest {
                            reason: outcome::line(&reason.join("; "), &[message.to.address()]),
                        },
                        "",
                    );
                }
            };
            let is_written = AtomicBool::new(false);
            let done = tokio::select! {
                biased;
                done = self.connections.send_mail(&mail, &is_written) => done,
                () = context.stop.cancelled() => Err(SmtpError::Lost("stopped before a response arrived".to_owned())),
                () = tokio::time::sleep(context.timeout) => {
                    Err(SmtpError::Lost(format!("no answer within {} ms", context.timeout.as_millis())))
                }
            };
            self.judge(
                done,
                is_written.load(Ordering::Relaxed),
                mail.id,
                message.to.address(),
            )
        })
    }

    fn set_concurrency(&self, most: usize) {
        self.connections.set_max_idle(most);
    }
}

fn server(account: &Account) -> Result<SmtpEndpoint, InvalidAccount> {
    let based = based(account)?;
    let mut host = outcome::option(account, "host")?.to_owned();
    let mut tls = account.option("tls").unwrap_or("starttls").to_owned();
    let mut port = None;
    if let Some(url) = based {
        host = url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']'])
            .to_owned();
        port = url.port();
        if url.scheme() == "smtps" {
            tls = "tls".to_owned();
        }
    }
    let parameters = || {
        TlsParameters::new(host.clone())
            .map_err(|error| refused("host", format!("cannot be used for TLS: {error}")))
    };
    let (tls, usual) = match tls.as_str() {
        "starttls" => (Tls::Upgraded(parameters()?), 587),
        "tls" => (Tls::Whole(parameters()?), 465),
        "none" => (Tls::None, 25),
        _ => return Err(refused("tls", "must be starttls, tls or none")),
    };
    let given = outcome::number(account, "port", usual, 1..=65_535)?;
    let port = port.unwrap_or_else(|| u16::try_from(given).unwrap_or(25));
    let login = match (account.option("username"), account.secret("password")) {
        (Some(name), Some(password)) => {
            Some(Credentials::new(name.to_owned(), password.to_owned()))
        }
        (None, None) => None,
        (Some(_), None) => {
            return Err(refused(
                "password",
                "is missing: give password_env or password_file beside username",
            ));
        }
        (None, Some(_)) => return Err(refused("username", "is missing: it goes with password")),
    };
    let from = account.option("from").map(|from| {
        mail::mailbox(from).ok_or_else(|| {
            refused(
                "from",
                "must be a mail address, such as Shop <shop@example.com>",
            )
        })
    });
    let domain = from.transpose()?.map(|from| from.email.domain().to_owned());
    let hello = account.option("hello").map(str::to_owned).or(domain);
    if hello.as_deref().is_some_and(|hello| {
        !hello
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || ".-[]:".contains(c))
    }) {
        return Err(refused("hello", "must be a host name"));
    }
    Ok(SmtpEndpoint {
        host,
        port,
        tls,
        hello: hello.map_or_else(ClientId::default, ClientId::Domain),
        login,
    })
}

/// Parses the account's `base_url`, which replaces host and port.
fn based(account: &Account) -> Result<Option<Url>, InvalidAccount> {
    let Some(given) = account.base_url.as_deref() else {
        return Ok(None);
    };
    let url = Url::parse(given)
        .ok()
        .filter(|url| matches!(url.scheme(), "smtp" | "smtps") && url.has_host());
    url.map(Some).ok_or_else(|| {
        refused(
            "base_url",
            "must be smtp://host:port, or smtps:// for TLS from the first byte",
        )
    })
}
