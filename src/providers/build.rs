//! Which driver a provider has.

use super::{Account, Driver, Field, Provider, Refused, Tools};
use super::{slack, telegram, webhook};

/// The keys that an account of the provider may have, besides those that all accounts have.
pub fn fields(provider: Provider) -> &'static [Field] {
    match provider {
        Provider::Telegram => telegram::FIELDS,
        Provider::Slack => slack::FIELDS,
        Provider::Webhook => webhook::FIELDS,
        _ => &[],
    }
}

/// The driver of an account, or what is wrong with its settings.
pub fn build(provider: Provider, account: &Account, tools: &Tools) -> Result<Box<dyn Driver>, Refused> {
    match provider {
        Provider::Telegram => telegram::build(account, tools),
        Provider::Slack => slack::build(account, tools),
        Provider::Webhook => webhook::build(account, tools),
        _ => todo!(),
    }
}
