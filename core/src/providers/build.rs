//! The driver of each provider.

use super::capture::captured;
use super::invalid_account::refused;
use super::{Account, Driver, DriverClients, Field, InvalidAccount, Provider};
use super::{apns, fcm, mailgun, sendgrid, ses, slack, smtp, telegram, twilio, webhook};

/// Returns the account settings that are specific to a provider.
pub fn fields(provider: Provider) -> &'static [Field] {
    match provider {
        Provider::Twilio => twilio::FIELDS,
        Provider::Sendgrid => sendgrid::FIELDS,
        Provider::Ses => ses::FIELDS,
        Provider::Smtp => smtp::FIELDS,
        Provider::Mailgun => mailgun::FIELDS,
        Provider::Apns => apns::FIELDS,
        Provider::Fcm => fcm::FIELDS,
        Provider::Telegram => telegram::FIELDS,
        Provider::Slack => slack::FIELDS,
        Provider::Webhook => webhook::FIELDS,
        Provider::Inbox => &[],
    }
}

/// Builds the driver of an account.
///
/// Fails with the first setting that the driver cannot use.
pub fn build(
    provider: Provider,
    account: &Account,
    tools: &DriverClients,
) -> Result<Box<dyn Driver>, InvalidAccount> {
    let driver = match provider {
        Provider::Twilio => twilio::build(account, tools),
        Provider::Sendgrid => sendgrid::build(account, tools),
        Provider::Ses => ses::build(account, tools),
        Provider::Smtp => smtp::build(account, tools),
        Provider::Mailgun => mailgun::build(account, tools),
        Provider::Apns => apns::build(account, tools),
        Provider::Fcm => fcm::build(account, tools),
        Provider::Telegram => telegram::build(account, tools),
        Provider::Slack => slack::build(account, tools),
        Provider::Webhook => webhook::build(account, tools),
        Provider::Inbox => Err(refused("provider", "the inbox has a pool of its own")),
    }?;
    Ok(captured(account, driver))
}
