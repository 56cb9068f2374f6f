//! The entry point for webhooks: from a provider's request to its events.

use super::super::{
    Account, DriverClients, Provider, ProviderEvent, RejectedWebhook, WebhookRequest,
};
use super::once::ReplayGuard;
use super::sns::{Certs, SnsRead};
use super::{mailgun, sendgrid, sns, twilio};

/// The SNS certificates, shared by the whole process.
static CERTS: Certs = Certs::new();

/// Returns the record that binds an authentic request's signature to its body; `None` if the
/// signature covers the body.
pub fn once(
    provider: Provider,
    account: &Account,
    posted: &WebhookRequest<'_>,
) -> Option<ReplayGuard> {
    match provider {
        Provider::Mailgun => mailgun::once(account, posted),
        _ => None,
    }
}

/// Reads the events of a request after checking its signature. An SNS subscription request is
/// confirmed here.
pub async fn read(
    provider: Provider,
    account: &Account,
    posted: &WebhookRequest<'_>,
    tools: &DriverClients,
) -> Result<Vec<ProviderEvent>, RejectedWebhook> {
    match provider {
        Provider::Twilio => twilio::read(account, posted),
        Provider::Sendgrid => sendgrid::read(account, posted),
        Provider::Mailgun => mailgun::read(account, posted),
        Provider::Ses => {
            // The addresses come with the request, so they are guarded unless the settings name the
            // host.
            let http = if account.option("sns_cert_host").is_some() {
                &tools.http
            } else {
                &tools.guarded
            };
            match sns::read(account, posted, http, &CERTS).await? {
                SnsRead::Events(events) => Ok(events),
                SnsRead::Confirm { url } => sns::confirm(http, &url).await.map(|()| Vec::new()),
            }
        }
        Provider::Smtp
        | Provider::Apns
        | Provider::Fcm
        | Provider::Telegram
        | Provider::Slack
        | Provider::Webhook
        | Provider::Inbox => Err(RejectedWebhook::Unreadable(format!(
            "{provider} has no event webhook"
        ))),
    }
}
