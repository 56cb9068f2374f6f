//! What SNS wraps around each notice, and by which it is known to be from Amazon.
//!
//! The envelope is signed by RSA (version 1 with SHA-1, version 2 with SHA-256) over some of its fields, each with its name on a
//! line. The certificate is fetched from a URL in the envelope, which must be Amazon's. Any customer of Amazon's can have a topic
//! whose notices are rightly signed, so the topic must be the account's own.

use aws_lc_rs::signature::{
    RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY, RSA_PKCS1_2048_8192_SHA256, RsaParameters, UnparsedPublicKey,
};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use url::Url;
use x509_parser::pem::parse_x509_pem;
use x509_parser::time::ASN1Time;

use super::super::{Account, Disbelieved, Refused, outcome};

/// The keys of the account's settings: whose notices are believed, and where certificates come from in tests.
const TOPIC: &str = "sns_topic_arn";
const CERT_HOST: &str = "sns_cert_host";

/// An envelope.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Envelope {
    /// `Notification`, `SubscriptionConfirmation` or `UnsubscribeConfirmation`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Unique for the notice, the same each time that it is delivered.
    pub message_id: String,
    /// The topic.
    pub topic_arn: String,
    /// What it brings.
    pub message: String,
    /// When it was published.
    pub timestamp: String,
    /// `1` or `2`.
    pub signature_version: String,
    signature: String,
    /// Where the certificate is.
    #[serde(rename = "SigningCertURL", alias = "SigningCertUrl")]
    pub cert_url: String,
    subject: Option<String>,
    token: Option<String>,
    /// What to get in order to confirm a subscription.
    #[serde(rename = "SubscribeURL", alias = "SubscribeUrl")]
    pub subscribe_url: Option<String>,
}

fn wrong(what: impl Into<String>) -> Disbelieved {
    Disbelieved::Signature(what.into())
}

impl Envelope {
    /// Reads an envelope whose topic is the account's and whose certificate may be fetched.
    pub fn read(account: &Account, body: &[u8]) -> Result<Self, Disbelieved> {
        let no_topic = || Disbelieved::NoSecret { account: account.name.clone(), field: TOPIC };
        let topic = account.option(TOPIC).filter(|topic| !topic.is_empty()).ok_or_else(no_topic)?;
        // The parser's words would quote what it read.
        let envelope: Self = serde_json::from_slice(body).map_err(|_| wrong("the body is no envelope of SNS"))?;
        if envelope.topic_arn != topic {
            return Err(wrong(format!("the topic is not the account's {TOPIC}")));
        }
        match is_amazons(account, &envelope.cert_url) && envelope.cert_url.ends_with(".pem") {
            true => Ok(envelope),
            false => Err(wrong("SigningCertURL is not an address of Amazon SNS")),
        }
    }

    /// Refuses an envelope that this certificate's key has not signed.
    pub fn verify(&self, certificate: &[u8], now_s: i64) -> Result<(), Disbelieved> {
        let algorithm: &RsaParameters = match self.signature_version.as_str() {
            "1" => &RSA_PKCS1_2048_8192_SHA1_FOR_LEGACY_USE_ONLY,
            "2" => &RSA_PKCS1_2048_8192_SHA256,
            _ => return Err(wrong("SignatureVersion must be 1 or 2")),
        };
        let signature = STANDARD.decode(&self.signature).map_err(|_| wrong("it is not base64"))?;
        let key = public_key(certificate, now_s)?;
        let signed = self.canonical()?;
        let checked = UnparsedPublicKey::new(algorithm, key).verify(signed.as_bytes(), &signature);
        checked.map_err(|_| wrong("it does not fit"))
    }

    /// What is signed.
    fn canonical(&self) -> Result<String, Disbelieved> {
        let subject = self.subject.as_deref().map(|subject| ("Subject", subject));
        let of_confirmation = |name, value: &Option<String>| match value.clone() {
            Some(value) => Ok((name, value)),
            None => Err(wrong(format!("{name} is missing"))),
        };
        let (subscribe_url, token);
        let mut fields = vec![("Message", self.message.as_str()), ("MessageId", &self.message_id)];
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
            _ => return Err(wrong("Type is none of SNS")),
        }
        fields.extend([("TopicArn", self.topic_arn.as_str()), ("Type", &self.kind)]);
        Ok(fields.into_iter().map(|(name, value)| format!("{name}\n{value}\n")).collect())
    }
}

/// The key of a certificate, PEM, that is valid now.
fn public_key(certificate: &[u8], now_s: i64) -> Result<Vec<u8>, Disbelieved> {
    let unreadable = || wrong("the certificate cannot be read");
    let (_, pem) = parse_x509_pem(certificate).map_err(|_| unreadable())?;
    let certificate = pem.parse_x509().map_err(|_| unreadable())?;
    let now = ASN1Time::from_timestamp(now_s).map_err(|_| unreadable())?;
    match certificate.validity().is_valid_at(now) {
        true => Ok(certificate.public_key().subject_public_key.data.to_vec()),
        false => Err(wrong("the certificate has expired, or is not valid yet")),
    }
}

/// True for a URL at `sns.<region>.amazonaws.com`, or at the place that the account names for tests.
pub fn is_amazons(account: &Account, text: &str) -> bool {
    let Ok(url) = Url::parse(text) else { return false };
    if let Some(base) = account.option(CERT_HOST) {
        let is_same = |base: Url| base.origin() == url.origin();
        return Url::parse(base).is_ok_and(is_same) && url.username().is_empty() && url.password().is_none();
    }
    let region = url.host_str().and_then(|host| {
        let host = host.strip_prefix("sns.")?;
        host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"))
    });
    let is_region = |region: &str| !region.is_empty() && region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    url.scheme() == "https"
        && region.is_some_and(is_region)
        && url.port().is_none()
        && url.username().is_empty()
        && url.password().is_none()
}

/// Refuses settings that envelopes could not be checked with.
pub fn check_settings(account: &Account) -> Result<(), Refused> {
    if account.option(TOPIC).is_some_and(|arn| !arn.starts_with("arn:") || arn.split(':').count() != 6) {
        return Err(outcome::refused(TOPIC, "must be a topic such as arn:aws:sns:eu-central-1:123456789012:mail-events"));
    }
    let is_origin = |text: &str| Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.path() == "/");
    match account.option(CERT_HOST) {
        Some(text) if !is_origin(text) => {
            Err(outcome::refused(CERT_HOST, "must be scheme://host:port, such as http://127.0.0.1:8080"))
        }
        _ => Ok(()),
    }
}
