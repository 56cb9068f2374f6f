//! Which driver a provider has.

use super::{Account, Driver, Field, Provider, Refused, Tools};
use super::{apns, fcm, mailgun, sendgrid, ses, slack, smtp, telegram, twilio, webhook};

/// The keys that an account of the provider may have, besides those that all accounts have.
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
    }
}

/// The driver of an account, or what is wrong with its settings.
pub fn build(provider: Provider, account: &Account, tools: &Tools) -> Result<Box<dyn Driver>, Refused> {
    match provider {
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
    }
}
