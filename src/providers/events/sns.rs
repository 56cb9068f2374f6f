//! Notices of SES that SNS brings: certificates are fetched once and kept, subscriptions are confirmed.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use super::super::{Account, Call, Disbelieved, Event, Http, HttpAnswer, Posted};
use super::envelope::{Envelope, is_amazons};
use super::ses;

pub use super::envelope::check_settings;

/// Most certificates that are kept; Amazon has one for each region and changes them once a year.
const MOST_CERTS: usize = 32;

/// Longest that fetching a certificate or confirming a subscription may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Certificates by their URLs.
#[derive(Debug, Default)]
pub struct Certs(Mutex<BTreeMap<String, Vec<u8>>>);

impl Certs {
    /// Without any.
    pub const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    fn find(&self, url: &str) -> Option<Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(url).cloned()
    }

    fn keep(&self, url: &str, certificate: Vec<u8>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_CERTS {
            all.clear();
        }
        all.insert(url.to_owned(), certificate);
    }
}

/// What SNS wants.
#[derive(Debug, PartialEq)]
pub enum SnsRead {
    /// It brings events.
    Events(Vec<Event>),
    /// It asks whether notices are wanted here: yes, by getting this.
    Confirm {
        /// At Amazon.
        url: String,
    },
}

/// What a request says, once its signature is checked.
pub async fn read(account: &Account, posted: &Posted<'_>, http: &Http, certs: &Certs) -> Result<SnsRead, Disbelieved> {
    let envelope = Envelope::read(account, posted.body)?;
    match certs.find(&envelope.cert_url) {
        Some(certificate) => envelope.verify(&certificate, posted.now_s)?,
        None => {
            let answer = get(http, &envelope.cert_url).await.map_err(Disbelieved::Signature)?;
            envelope.verify(&answer.body, posted.now_s)?;
            // Only a certificate that proved good is kept, so that nobody fills the memory with others.
            certs.keep(&envelope.cert_url, answer.body);
        }
    }
    match envelope.kind.as_str() {
        "SubscriptionConfirmation" => match envelope.subscribe_url {
            Some(url) if is_amazons(account, &url) => Ok(SnsRead::Confirm { url }),
            _ => Err(Disbelieved::Signature("SubscribeURL is not an address of Amazon SNS".to_owned())),
        },
        "Notification" => {
            let at_s = envelope.timestamp.parse::<Timestamp>().map_or(posted.now_s, Timestamp::as_second);
            Ok(SnsRead::Events(ses::events(account, &envelope.message, &envelope.message_id, at_s)?))
        }
        _ => Ok(SnsRead::Events(Vec::new())),
    }
}

/// Confirms a subscription.
pub async fn confirm(http: &Http, url: &str) -> Result<(), Disbelieved> {
    get(http, url)
        .await
        .map(drop)
        .map_err(|error| Disbelieved::Unreadable(format!("the subscription could not be confirmed: {error}")))
}

async fn get(http: &Http, url: &str) -> Result<HttpAnswer, String> {
    let call = Call { method: "GET", url: url.to_owned(), headers: Vec::new(), body: String::new(), timeout: TIMEOUT };
    match http.send(call, &CancellationToken::new()).await {
        Ok(answer) if (200..300).contains(&answer.status) => Ok(answer),
        Ok(answer) => Err(format!("Amazon SNS answered {}", answer.status)),
        Err(unanswered) => Err(format!("Amazon SNS could not be asked: {unanswered}")),
    }
}

#[cfg(test)]
#[path = "sns_tests.rs"]
mod tests;
