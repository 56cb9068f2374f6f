//! The door for webhooks: from a provider's request to its events.

use super::super::{Account, Disbelieved, Event, Posted, Provider, Tools};
use super::sns::{Certs, SnsRead};
use super::{mailgun, sendgrid, sns, twilio};

/// Certificates of SNS, for the whole process.
static CERTS: Certs = Certs::new();

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
