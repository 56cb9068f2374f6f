//! SES notices that arrive through SNS: certificates are fetched once and cached, subscriptions are
//! confirmed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::super::{
    Account, Call, ExchangeError, Http, HttpAnswer, ProviderEvent, RejectedWebhook, WebhookRequest,
};
use super::chain::{self, CertificateChain};
use super::envelope::{Envelope, host, is_amazons, is_test};
use super::ses;

pub use super::envelope::check_settings;

/// The maximum number of cached certificates; Amazon has one for each region and changes them once
/// a year.
const MAX_CERTIFICATES: usize = 32;

/// The timeout for fetching a certificate or confirming a subscription.
const SNS_TIMEOUT: Duration = Duration::from_secs(10);

/// The time during which a bad certificate is not fetched again, in seconds.
const BAD_S: i64 = 60;

/// The time during which a certificate that could not be fetched is not fetched again, in seconds:
/// much less than the minute for which SNS usually delivers a notice again.
const AWAY_S: i64 = 5;

/// The burst of certificate fetches of the whole process. Fetches are limited because the requests
/// that cause them are not authenticated yet.
const FETCHES: f64 = 20.0;
/// The rate of certificate fetches after the burst, per second.
const FETCHES_PER_S: f64 = 1.0;

/// The maximum time that a request waits for another one's fetch.
const IN_LINE: Duration = Duration::from_secs(3);

/// Certificates by their URLs.
#[derive(Debug)]
pub struct Certs {
    known: Mutex<BTreeMap<String, CachedCertificate>>,
    /// Locked during a fetch.
    fetching: tokio::sync::Mutex<Allowance>,
}

/// The cached state of a certificate.
#[derive(Clone, Debug)]
enum CachedCertificate {
    /// The certificate as served, after its chain was checked.
    Good(Arc<[u8]>),
    /// The time in unix seconds before which it is not fetched again, and the reason.
    Bad(i64, RejectedWebhook),
}

/// The token bucket of fetches.
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
    /// Creates an empty cache.
    pub const fn new() -> Self {
        let allowance = Allowance {
            left: FETCHES,
            at_s: 0,
        };
        Self {
            known: Mutex::new(BTreeMap::new()),
            fetching: tokio::sync::Mutex::const_new(allowance),
        }
    }

    fn find(&self, url: &str, now_s: i64) -> Option<Result<Arc<[u8]>, RejectedWebhook>> {
        match self.known.lock().get(url)? {
            CachedCertificate::Good(certificate) => Some(Ok(certificate.clone())),
            CachedCertificate::Bad(until_s, why) => (now_s < *until_s).then(|| Err(why.clone())),
        }
    }

    fn cache_certificate(&self, url: &str, known: CachedCertificate) {
        let mut all = self.known.lock();
        if all.len() >= MAX_CERTIFICATES {
            // Good certificates stay as long as there is a bad one to evict.
            let bad = all
                .iter()
                .find(|(_, known)| matches!(known, CachedCertificate::Bad(..)))
                .map(|(url, _)| url.clone());
            if let Some(url) = bad.or_else(|| all.keys().next().cloned()) {
                all.remove(&url);
            }
        }
        all.insert(url.to_owned(), known);
    }

    /// Returns the certificate at a URL of Amazon's, from the cache or by a fetch, one at a time.
    async fn get(
        &self,
        url: &str,
        account: &Account,
        http: &Http,
        now_s: i64,
    ) -> Result<Arc<[u8]>, RejectedWebhook> {
        if let Some(known) = self.find(url, now_s) {
            return known;
        }
        let busy = || {
            RejectedWebhook::Later(
                "the certificates of Amazon SNS are being \
                                       fetched"
                    .to_owned(),
            )
        };
        let mut allowance = tokio::time::timeout(IN_LINE, self.fetching.lock())
            .await
            .map_err(|_| busy())?;
        if let Some(known) = self.find(url, now_s) {
            return known;
        }
        if !allowance.take(now_s) {
            return Err(busy());
        }
        let fetched = fetch(url, account, http, now_s).await;
        self.cache_certificate(
            url,
            match &fetched {
                Ok(certificate) => CachedCertificate::Good(certificate.clone()),
                Err(error) => {
                    let rest_s = match error {
                        RejectedWebhook::Later(_) => AWAY_S,
                        _ => BAD_S,
                    };
                    CachedCertificate::Bad(now_s.saturating_add(rest_s), error.clone())
                }
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

/// Fetches a certificate and verifies its issuer and its name.
async fn fetch(
    url: &str,
    account: &Account,
    http: &Http,
    now_s: i64,
) -> Result<Arc<[u8]>, RejectedWebhook> {
    let served = get(http, url).await?.body;
    let mut chain = CertificateChain::read(&served)?;
    // A certificate that a test serves on loopback has no trusted issuer.
    if !is_test(account) {
        if let Some(issuer) = chain.issuer() {
            chain.add(get(http, &issuer).await?.body);
        }
        let own = host(account).unwrap_or_default();
        let end = own.rsplit_once(".amazonaws.").map_or("com", |(_, end)| end);
        let common = format!("sns.amazonaws.{end}");
        chain.check(
            &["sns.amazonaws.com", &common, &own],
            &*chain::platform()?,
            now_s,
        )?;
    }
    Ok(served.into())
}

/// The purpose of a request from SNS.
#[derive(Debug, PartialEq)]
pub enum SnsRead {
    /// The request delivers events.
    Events(Vec<ProviderEvent>),
    /// The request asks for confirmation of a subscription, which a GET of the URL gives.
    Confirm {
        /// A URL at Amazon.
        url: String,
    },
}

/// Checks the signature of a request and reads it.
pub async fn read(
    account: &Account,
    posted: &WebhookRequest<'_>,
    http: &Http,
    certs: &Certs,
) -> Result<SnsRead, RejectedWebhook> {
    let envelope = Envelope::read(account, posted.body)?;
    // Every check that needs no certificate comes before a fetch.
    let at_s = envelope.published_s(account, posted.now_s)?;
    let certificate = certs
        .get(&envelope.cert_url, account, http, posted.now_s)
        .await?;
    envelope.verify(&certificate, posted.now_s)?;
    match envelope.kind.as_str() {
        "SubscriptionConfirmation" => match envelope.subscribe_url {
            Some(url) if is_amazons(account, &url).is_some() => Ok(SnsRead::Confirm { url }),
            _ => Err(RejectedWebhook::Signature(
                "SubscribeURL is not an address of Amazon SNS".to_owned(),
            )),
        },
        "Notification" => Ok(SnsRead::Events(ses::events(
            account,
            &envelope.message,
            &envelope.message_id,
            at_s,
        )?)),
        _ => Ok(SnsRead::Events(Vec::new())),
    }
}

/// Confirms a subscription.
pub async fn confirm(http: &Http, url: &str) -> Result<(), RejectedWebhook> {
    let confirmed = get(http, url).await.map(drop);
    confirmed.map_err(|error| match error {
        RejectedWebhook::Signature(why) => {
            RejectedWebhook::Unreadable(format!("the subscription could not be confirmed: {why}"))
        }
        later => later,
    })
}

/// Sends a GET to Amazon. A request that fails for now is `Later`, because SNS drops a notice that
/// is refused for good.
async fn get(http: &Http, url: &str) -> Result<HttpAnswer, RejectedWebhook> {
    let call = Call {
        method: "GET",
        url: url.to_owned(),
        headers: Vec::new(),
        body: String::new(),
        timeout: SNS_TIMEOUT,
    };
    match http.send(call, &CancellationToken::new()).await {
        Ok(answer) if (200..300).contains(&answer.status) => Ok(answer),
        Ok(answer) => {
            let why = format!("Amazon SNS answered {}", answer.status);
            Err(match answer.status {
                408 | 429 | 500..=599 => RejectedWebhook::Later(why),
                _ => RejectedWebhook::Signature(why),
            })
        }
        Err(unanswered) => {
            let why = format!("the request to Amazon SNS failed: {unanswered}");
            Err(match unanswered {
                ExchangeError::Refused(_) => RejectedWebhook::Signature(why),
                _ => RejectedWebhook::Later(why),
            })
        }
    }
}

#[cfg(test)]
#[path = "sns_envelope_tests.rs"]
mod envelope_tests;
#[cfg(test)]
#[path = "sns_fixture_tests.rs"]
mod fixture;
#[cfg(test)]
#[path = "sns_tests.rs"]
mod tests;
