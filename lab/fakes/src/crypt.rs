//! The signatures that providers create and verify.

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Returns the HMAC-SHA256 of a text.
pub fn hmac_sha256(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text)
        .as_ref()
        .to_vec()
}

/// Returns the HMAC-SHA1 of a text, the signature of Twilio.
pub fn hmac_sha1(key: &[u8], text: &[u8]) -> Vec<u8> {
    hmac::sign(
        &hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key),
        text,
    )
    .as_ref()
    .to_vec()
}

/// Returns the SHA-256 of a text in hexadecimal digits.
pub fn sha256_hex(text: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, text).as_ref())
}

/// Encodes bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// Encodes bytes as base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Decodes base64 with padding.
pub fn unbase64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Returns user and password of an `authorization` header in the form of HTTP Basic.
pub fn basic(header: &str) -> Option<(String, String)> {
    let text = String::from_utf8(unbase64(header.strip_prefix("Basic ")?.trim())?).ok()?;
    text.split_once(':')
        .map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Returns header and claims of a JSON Web Token without verifying it; `None` if it is malformed.
pub fn token_parts(token: &str) -> Option<(serde_json::Value, serde_json::Value)> {
    let parts: Vec<&str> = token.split('.').collect();
    let [head, claims, signature] = parts[..] else {
        return None;
    };
    let part = |text: &str| serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok();
    URL_SAFE_NO_PAD
        .decode(signature)
        .ok()
        .filter(|signature| !signature.is_empty())?;
    Some((part(head)?, part(claims)?))
}

/// The keys with which a fake signs its events.
pub struct Keys {
    ecdsa: EcdsaKeyPair,
    rsa: RsaKeyPair,
    random: SystemRandom,
}

impl Keys {
    /// Generates a key of SendGrid's kind and reads the RSA key from a PEM.
    pub fn new(rsa_pem: &str) -> std::io::Result<Self> {
        let text: String = rsa_pem
            .lines()
            .filter(|line| !line.starts_with('-'))
            .collect();
        let der = unbase64(&text).ok_or_else(|| std::io::Error::other("the test key is no PEM"))?;
        let ecdsa = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING)
            .map_err(std::io::Error::other)?;
        let rsa = RsaKeyPair::from_pkcs8(&der).map_err(std::io::Error::other)?;
        Ok(Self {
            ecdsa,
            rsa,
            random: SystemRandom::new(),
        })
    }

    /// Returns the public key of [`Keys::ecdsa`] in SendGrid's form: base64 of its DER encoding.
    pub fn ecdsa_public(&self) -> String {
        let der = self.ecdsa.public_key().as_der();
        der.map(|der| base64(der.as_ref())).unwrap_or_default()
    }

    /// Signs a text by ECDSA on P-256 with SHA-256; the signature is in DER.
    pub fn ecdsa(&self, text: &[u8]) -> Vec<u8> {
        self.ecdsa
            .sign(&self.random, text)
            .map(|signature| signature.as_ref().to_vec())
            .unwrap_or_default()
    }

    /// Signs a text by RSA (PKCS#1) with SHA-256.
    pub fn rsa(&self, text: &[u8]) -> Vec<u8> {
        let mut signature = vec![0; self.rsa.public_modulus_len()];
        let _ = self
            .rsa
            .sign(&RSA_PKCS1_SHA256, &self.random, text, &mut signature);
        signature
    }
}
