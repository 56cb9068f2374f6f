//! Notices of SES that SNS brings: certificates are fetched once and kept, subscriptions are confirmed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::super::{Account, Call, Disbelieved, Event, Http, HttpAnswer, Posted};
use super::chain::{self, Chain};
use super::envelope::{Envelope, host, is_amazons, is_test};
use super::ses;

pub use super::envelope::check_settings;

/// Most certificates that are kept; Amazon has one for each region and changes them once a year.
const MOST_CERTS: usize = 32;

/// Longest that fetching a certificate or confirming a subscription may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A certificate that proved bad, or could not be had, is not asked for again for so long, in seconds.
const BAD_S: i64 = 60;

/// Certificates that may be fetched at once, and how many a second after that, for the whole process: requests that make us
/// fetch one are not proved to be anybody's.
const FETCHES: f64 = 20.0;
const FETCHES_PER_S: f64 = 1.0;

/// Longest that a request waits for the fetch of another.
const IN_LINE: Duration = Duration::from_secs(3);

/// Certificates by their URLs.
#[derive(Debug)]
pub struct Certs {
    known: Mutex<BTreeMap<String, Known>>,
    /// Held by the one who fetches.
    fetching: tokio::sync::Mutex<Allowance>,
}

/// What is known of a certificate.
#[derive(Clone, Debug)]
enum Known {
    /// As it was served; its chain has been checked.
    Good(Arc<[u8]>),
    /// Not before then, unix seconds, and why.
    Bad(i64, String),
}

/// How many may still be fetched.
#[derive(Debug)]
struct Allowance {
    left: f64,
    at_s: i64,
}

impl Allowance {
    fn take(&mut self, now_s: i64) -> bool {
        let passed = now_s.saturating_sub(self.at_s).max(0);
        self.left = (self.left + passed as f64 * FETCHES_PER_S).min(FETCHES);
        self.at_s = now_s;
        let has_one = self.left >= 1.0;
        self.left -= f64::from(u8::from(has_one));
        has_one
    }
}

impl Certs {
    /// Without any.
    pub const fn new() -> Self {
        let allowance = Allowance { left: FETCHES, at_s: 0 };
        Self { known: Mutex::new(BTreeMap::new()), fetching: tokio::sync::Mutex::const_new(allowance) }
    }

    fn find(&self, url: &str, now_s: i64) -> Option<Result<Arc<[u8]>, Disbelieved>> {
        match self.known.lock().unwrap_or_else(PoisonError::into_inner).get(url)? {
            Known::Good(certificate) => Some(Ok(certificate.clone())),
            Known::Bad(until_s, why) => (now_s < *until_s).then(|| Err(Disbelieved::Signature(why.clone()))),
        }
    }

    fn keep(&self, url: &str, known: Known) {
        let mut all = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_CERTS {
            // Good ones stay, as long as they are not all.
            let bad = all.iter().find(|(_, known)| matches!(known, Known::Bad(..))).map(|(url, _)| url.clone());
            if let Some(url) = bad.or_else(|| all.keys().next().cloned()) {
                all.remove(&url);
            }
        }
        all.insert(url.to_owned(), known);
    }

    /// The certificate at a URL of Amazon's: kept, or fetched by one at a time.
    async fn get(&self, url: &str, account: &Account, http: &Http, now_s: i64) -> Result<Arc<[u8]>, Disbelieved> {
        if let Some(known) = self.find(url, now_s) {
            return known;
        }
        let busy = || Disbelieved::Later("certificates of Amazon SNS are being fetched".to_owned());
        let mut allowance = tokio::time::timeout(IN_LINE, self.fetching.lock()).await.map_err(|_| busy())?;
        if let Some(known) = self.find(url, now_s) {
            return known;
        }
        if !allowance.take(now_s) {
            return Err(busy());
        }
        let fetched = fetch(url, account, http, now_s).await;
        self.keep(
            url,
            match &fetched {
                Ok(certificate) => Known::Good(certificate.clone()),
                Err(error) => Known::Bad(now_s.saturating_add(BAD_S), error.to_string()),
            },
        );
        fetched
    }
}

impl Default for Certs {
    fn default() -> Self {
        Self::new()
    }
}

/// Fetches a certificate and looks at who issued it, and for whom.
async fn fetch(url: &str, account: &Account, http: &Http, now_s: i64) -> Result<Arc<[u8]>, Disbelieved> {
    let served = get(http, url).await.map_err(Disbelieved::Signature)?.body;
    let mut chain = Chain::read(&served)?;
    // What a test serves on loopback is from nobody.
    if !is_test(account) {
        if let Some(issuer) = chain.issuer() {
            chain.add(get(http, &issuer).await.map_err(Disbelieved::Signature)?.body);
        }
        let own = host(account).unwrap_or_default();
        let end = own.rsplit_once(".amazonaws.").map_or("com", |(_, end)| end);
        let common = format!("sns.amazonaws.{end}");
        chain.check(&["sns.amazonaws.com", &common, &own], &*chain::platform()?, now_s)?;
    }
    Ok(served.into())
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
    // All that can be seen without a certificate is looked at before one is fetched.
    let at_s = envelope.published_s(account, posted.now_s)?;
    let certificate = certs.get(&envelope.cert_url, account, http, posted.now_s).await?;
    envelope.verify(&certificate, posted.now_s)?;
    match envelope.kind.as_str() {
        "SubscriptionConfirmation" => match envelope.subscribe_url {
            Some(url) if is_amazons(account, &url).is_some() => Ok(SnsRead::Confirm { url }),
            _ => Err(Disbelieved::Signature("SubscribeURL is not an address of Amazon SNS".to_owned())),
        },
        "Notification" => Ok(SnsRead::Events(ses::events(account, &envelope.message, &envelope.message_id, at_s)?)),
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
