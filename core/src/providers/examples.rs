//! Fixtures for driver tests: messages, tools, and an example status for each row of a table.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::code::{self, Code};
use super::{
    Account, AccountSecret, Channel, Class, DriverClients, Http, HttpAnswer, Message, Recipient,
    Sent,
};
use crate::outbound::Guard;

/// The clock in tests, in unix seconds.
pub const NOW_S: i64 = 1_700_000_000;

/// Pairs each row with a status for which it is the first match. Panics at a row that no answer can
/// match.
pub fn rows(table: &'static [Code]) -> Vec<(&'static Code, u16)> {
    let status_of = |row: &Code| {
        (200..600_u16).find(|status| {
            code::find(table, &status.to_string(), row.code)
                .is_some_and(|found| std::ptr::eq(found, row))
        })
    };
    table
        .iter()
        .map(|row| {
            (
                row,
                status_of(row).unwrap_or_else(|| panic!("{row:?} never counts")),
            )
        })
        .collect()
}

/// Returns true if an outcome belongs to a class.
pub fn is(sent: &Sent, class: Class) -> bool {
    match (sent, class) {
        (Sent::Throttled { scope, .. }, Class::Throttled(expected)) => *scope == expected,
        (Sent::PermanentRecipient { suppress, .. }, Class::Recipient) => !suppress,
        (Sent::PermanentRecipient { suppress, .. }, Class::Suppress) => *suppress,
        (Sent::Delivered { .. }, Class::Delivered)
        | (Sent::Accepted { .. }, Class::Accepted)
        | (Sent::Transient { .. }, Class::Transient)
        | (Sent::PermanentRequest { .. }, Class::Request)
        | (Sent::AccountFailure { .. }, Class::Account)
        | (Sent::Ambiguous { .. }, Class::Ambiguous) => true,
        _ => false,
    }
}

/// Builds an answer.
pub fn answer(status: u16, headers: &[(&str, &str)], body: &str) -> HttpAnswer {
    let headers = headers
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    HttpAnswer {
        status,
        headers,
        body: body.as_bytes().to_vec(),
    }
}

/// Builds an account named `main`.
pub fn account(options: &[(&str, &str)], secrets: &[(&str, &str)]) -> Account {
    Account {
        name: "main".to_owned(),
        options: options
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        secrets: secrets
            .iter()
            .map(|(name, value)| ((*name).to_owned(), AccountSecret::new(value)))
            .collect(),
        ..Account::default()
    }
}

/// Builds a message to one recipient.
pub fn message(channel: Channel, to: &str, extra: Value) -> Message {
    Message {
        id: "job_1_2".to_owned(),
        channel,
        to: Recipient::parse(channel, to).unwrap(),
        from: None,
        subject: (channel == Channel::Email).then(|| "Hello".to_owned()),
        body: "Good day".to_owned(),
        html: None,
        extra: extra.as_object().cloned().unwrap_or_else(Map::new),
        expires_at_s: None,
    }
}

/// Builds clients that may reach every address.
pub fn tools() -> DriverClients {
    let http = Arc::new(Http::new(Guard::open()).unwrap());
    DriverClients {
        http: Arc::clone(&http),
        guarded: http,
    }
}
