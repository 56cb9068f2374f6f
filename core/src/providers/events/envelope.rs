//! The SNS envelope around each notice, and the proof that it is from Amazon.
//!
//! The envelope is signed by RSA (version 1 with SHA-1, version 2 with SHA-256) over some of its
//! fields, each after its name on a line of its own. The certificate is fetched from a URL in the
//! envelope, which must be the one place where Amazon keeps those of the topic's region. Every
//! customer of Amazon can have a topic with validly signed notices, so the topic must be the
//! account's own.

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RsaParameters,
    UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde::Deserialize;
use url::{Host, Url};

use super::super::{Account, InvalidAccount, RejectedWebhook, invalid_account};
use super::age;
use super::certificate::{self, Certificate};

/// The account setting for the topic whose notices are accepted.
const TOPIC: &str = "sns_topic_arn";
/// The account setting for the origin of certificates in tests.
const CERT_HOST: &str = "sns_cert_host";

/// The default maximum age of a notice, in seconds: SNS retries a delivery for an hour at most.
const USUAL_AGE_S: i64 = 3600;

/// An SNS envelope.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Envelope {
    /// `Notification`, `SubscriptionConfirmation` or `UnsubscribeConfirmation`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// The id of the notice, the same for every delivery.
    pub message_id: String,
    /// The ARN of the topic.
    pub topic_arn: String,
    /// The enclosed notice.
    pub message: String,
    /// The time of publication, in ISO 8601.
    pub timestamp: String,
    /// `1` or `2`.
    pub signature_version: String,
    signature: String,
    /// The URL of the certificate.
    #[serde(rename = "SigningCertURL", alias = "SigningCertUrl")]
    pub cert_url: String,
    subject: Option<String>,
    token: Option<String>,
    /// The URL whose GET confirms a subscription.
    #[serde(rename = "SubscribeURL", alias = "SubscribeUrl")]
    pub subscribe_url: Option<String>,
}

fn wrong(what: impl Into<String>) -> RejectedWebhook {
    RejectedWebhook::Signature(what.into())
}

impl Envelope {
    /// Parses an envelope and requires the account's topic and a permitted certificate URL.
    pub fn read(account: &Account, body: &[u8]) -> Result<Self, RejectedWebhook> {
        let no_topic = || RejectedWebhook::NoSecret {
            account: account.name.clone(),
            field: TOPIC,
        };
        let topic = account
            .option(TOPIC)
            .filter(|topic| !topic.is_empty())
            .ok_or_else(no_topic)?;
        // The parser's message would quote the input.
        let envelope: Self =
            serde_json::from_slice(body).map_err(|_| wrong("the body is not an SNS envelope"))?;
        if envelope.topic_arn != topic {
            return Err(wrong(format!("the topic is not the account's {TOPIC}")));
        }
        match is_amazons(account, &envelope.cert_url).is_some_and(|url| is_certificate(&url)) {
            true => Ok(envelope),
            false => Err(wrong("SigningCertURL is not an address of Amazon SNS")),
        }
    }

    /// Rejects an envelope that was not signed with this certificate's key.
    pub fn verify(&self, certificate: &[u8], now_s: i64) -> Result<(), RejectedWebhook> {
        let algorithm: &RsaParameters = match self.signature_version.as_str() {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(wrong("SignatureVersion must be 1 or 2")),
        };
        let signature = STANDARD
            .decode(&self.signature)
            .map_err(|_| wrong("the signature is not base64"))?;
        let key = public_key(certificate, now_s)?;
        let signed = self.canonical()?;
        let checked = UnparsedPublicKey::new(algorithm, key).verify(signed.as_bytes(), &signature);
        checked.map_err(|_| wrong("the signature does not match"))
    }

    /// Returns the time of publication, in unix seconds; rejects a time longer ago than SNS
    /// retries.
    pub fn published_s(&self, account: &Account, now_s: i64) -> Result<i64, RejectedWebhook> {
        let at: Timestamp = self
            .timestamp
            .parse()
            .map_err(|_| wrong("Timestamp is not a time"))?;
        age::check(account, USUAL_AGE_S, at.as_second(), now_s)?;
        Ok(at.as_second())
    }

    /// Builds the signed text.
    fn canonical(&self) -> Result<String, RejectedWebhook> {
        let subject = self.subject.as_deref().map(|subject| ("Subject", subject));
        let of_confirmation = |name, value: &Option<String>| match value.clone() {
            Some(value) => Ok((name, value)),
            None => Err(wrong(format!("{name} is missing"))),
        };
        let (subscribe_url, token);
        let mut fields = vec![
            ("Message", self.message.as_str()),
            ("MessageId", &self.message_id),
        ];
        match self.kind.as_str() {
            "Notification" => {
                fields.extend(subject);
                fields.push(("Timestamp", &self.timestamp));
            }
            "SubscriptionConfirmation" | "UnsubscribeConfirmation" => {
                subscribe_url = of_confirmation("SubscribeURL", &self.subscribe_url)?;
                token = of_confirmation("Token", &self.token)?;
                fields.push((subscribe_url.0, &subscribe_url.1));
                fields.push(("Timestamp", &self.timestamp));
                fields.push((token.0, &token.1));
            }
            _ => return Err(wrong("Type is not an SNS message type")),
        }
        fields.extend([("TopicArn", self.topic_arn.as_str()), ("Type", &self.kind)]);
        Ok(fields
            .into_iter()
            .map(|(name, value)| format!("{name}\n{value}\n"))
            .collect())
    }
}

/// Returns the key of a certificate that is valid now, in PEM with nothing before it.
fn public_key(certificate: &[u8], now_s: i64) -> Result<Vec<u8>, RejectedWebhook> {
    let unreadable = || wrong("the certificate cannot be read");
    let served = certificate::from_pem(certificate).ok_or_else(unreadable)?;
    let first = served.first().ok_or_else(unreadable)?;
    let certificate = Certificate::from_der(first).ok_or_else(unreadable)?;
    let now_s = u64::try_from(now_s).map_err(|_| unreadable())?;
    match certificate.valid_s.contains(&now_s) {
        true => Ok(certificate.public_key.to_vec()),
        false => Err(wrong("the certificate has expired, or is not valid yet")),
    }
}

/// Returns the host of SNS in the region of the account's topic.
pub fn host(account: &Account) -> Option<String> {
    let mut parts = account.option(TOPIC)?.split(':');
    let (partition, region) = (parts.nth(1)?, parts.nth(1)?);
    let suffix = if partition == "aws-cn" {
        "amazonaws.com.cn"
    } else {
        "amazonaws.com"
    };
    is_region(region).then(|| format!("sns.{region}.{suffix}"))
}

/// Returns true for a region's name, such as eu-central-1.
fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let is_word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    match parts.as_slice() {
        [country, middle @ .., number] => {
            country.len() == 2
                && is_word(country)
                && !middle.is_empty()
                && middle.iter().all(|word| is_word(word))
                && is_number(number)
        }
        _ => false,
    }
}

/// Parses a URL at SNS in the region of the account's topic, or at the origin that the account sets
/// for tests; returns `None` for any other.
pub fn is_amazons(account: &Account, text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    let is_there = match account.option(CERT_HOST) {
        Some(base) => Url::parse(base).is_ok_and(|base| base.origin() == url.origin()),
        None => {
            url.scheme() == "https"
                && url.port().is_none()
                && url
                    .host_str()
                    .is_some_and(|named| host(account).as_deref() == Some(named))
        }
    };
    let is_plain =
        url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    // A URL that the parser normalises is not one that Amazon writes.
    (is_there && is_plain && url.as_str() == text).then_some(url)
}

/// Returns true if the path is that of Amazon's certificates and there is no query.
fn is_certificate(url: &Url) -> bool {
    let name = url
        .path()
        .strip_prefix("/SimpleNotificationService-")
        .and_then(|rest| rest.strip_suffix(".pem"));
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    url.query().is_none() && name.is_some_and(|name| name.len() >= 32 && name.bytes().all(is_digit))
}

/// Returns true if certificates come from a test and are not verified.
pub fn is_test(account: &Account) -> bool {
    account.option(CERT_HOST).is_some()
}

/// Rejects settings with which no envelope could be checked.
pub fn check_settings(account: &Account) -> Result<(), InvalidAccount> {
    age::most(account, USUAL_AGE_S)?;
    if account
        .option(TOPIC)
        .is_some_and(|arn| !arn.starts_with("arn:") || arn.split(':').count() != 6)
    {
        return Err(invalid_account::refused(
            TOPIC,
            "must be a topic such as arn:aws:sns:eu-central-1:123456789012:mail-events",
        ));
    }
    if account.option(TOPIC).is_some() && host(account).is_none() {
        return Err(invalid_account::refused(
            TOPIC,
            "must name a region, such as eu-central-1 in arn:aws:sns:eu-central-1:123456789012:mail-events",
        ));
    }
    let is_loopback = |url: &Url| match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        _ => false,
    };
    let is_origin = |text: &str| {
        Url::parse(text).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && url.path() == "/" && is_loopback(&url)
        })
    };
    match account.option(CERT_HOST) {
        Some(text) if !is_origin(text) => Err(invalid_account::refused(
            CERT_HOST,
            "is for tests and must be loopback's: scheme://address:port, such as http://127.0.0.1:8080",
        )),
        _ => Ok(()),
    }
}
