//! The door for webhooks: from a provider's request to its events.

use super::super::{Account, Disbelieved, Event, Posted, Provider, Tools};
use super::sns::{Certs, SnsRead};
use super::{mailgun, sendgrid, sns, twilio};

/// Certificates of SNS, for the whole process.
static CERTS: Certs = Certs::new();

/// What is remembered of a request whose signature does not cover its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// A digest of what was signed.
    pub signed: Vec<u8>,
    /// A digest of the body.
    pub body: Vec<u8>,
    /// Until when it is believed, unix seconds.
    pub until_s: i64,
}

/// What to remember of a request that is believed, so that its signature is good for no other body; `None` where it covers the
/// body itself.
pub fn once(provider: Provider, account: &Account, posted: &Posted<'_>) -> Option<Once> {
    match provider {
        Provider::Mailgun => mailgun::once(account, posted),
        _ => None,
    }
}

/// The events that a request tells; none of it is believed before its signature is checked. Asks of SNS to subscribe are answered here.
pub async fn read(provider: Provider, account: &Account, posted: &Posted<'_>, tools: &Tools) -> Result<Vec<Event>, Disbelieved> {
    match provider {
        Provider::Twilio => twilio::read(account, posted),
        Provider::Sendgrid => sendgrid::read(account, posted),
        Provider::Mailgun => mailgun::read(account, posted),
        Provider::Ses => {
            // Addresses come with the request, so they are guarded unless whoever runs Flyball has named the host.
            let http = if account.option("sns_cert_host").is_some() { &tools.http } else { &tools.guarded };
            match sns::read(account, posted, http, &CERTS).await? {
                SnsRead::Events(events) => Ok(events),
                SnsRead::Confirm { url } => sns::confirm(http, &url).await.map(|()| Vec::new()),
            }
        }
        Provider::Smtp | Provider::Apns | Provider::Fcm | Provider::Telegram | Provider::Slack | Provider::Webhook => {
            Err(Disbelieved::Unreadable(format!("{provider} has no event webhook")))
        }
    }
}
