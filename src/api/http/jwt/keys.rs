//! The public keys of an identity provider: a JWK Set (RFC 7517).

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use serde_json::Value;

use super::algorithm::SigningAlgorithm;

/// The shortest modulus of an RSA key, in base64 characters: 2048 bits.
const MODULUS_CHARS_MIN: usize = 342;

/// The most keys of a set.
const KEYS_MAX: usize = 100;

/// The keys that verify signatures.
#[derive(Clone, Default)]
pub struct KeySet(Vec<PublicKey>);

#[derive(Clone)]
struct PublicKey {
    id: Option<String>,
    algorithm: SigningAlgorithm,
    key: DecodingKey,
}

/// The reason why a document holds no keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeySetError {
    /// It is not a JWK Set.
    #[error("must be a JWK Set: an object with the array keys")]
    NotASet,
    /// None of its keys can be used.
    #[error(
        "must hold at least one key for signatures: RSA of 2048 bits or more, EC on P-256, or Ed25519"
    )]
    NoKey,
}

impl KeySet {
    /// Reads a JWK Set. Keys for other purposes or algorithms are skipped, and so are symmetric
    /// keys, because a public document must not be able to sign.
    pub fn parse(text: &[u8]) -> Result<Self, KeySetError> {
        let document: Value = serde_json::from_slice(text).map_err(|_| KeySetError::NotASet)?;
        let keys = document.get("keys").and_then(Value::as_array);
        let keys = keys.ok_or(KeySetError::NotASet)?;
        let usable: Vec<PublicKey> = keys
            .iter()
            .take(KEYS_MAX)
            .filter_map(|key| PublicKey::of(serde_json::from_value(key.clone()).ok()?))
            .collect();
        if usable.is_empty() {
            return Err(KeySetError::NoKey);
        }
        Ok(Self(usable))
    }

    /// Returns the keys for an algorithm: the one with this id, or all of them for a token that
    /// names none.
    pub fn for_token(
        &self,
        algorithm: SigningAlgorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &DecodingKey> {
        self.0
            .iter()
            .filter(move |key| key.algorithm == algorithm)
            .filter(move |key| id.is_none() || key.id.as_deref() == id)
            .map(|key| &key.key)
    }

    /// Returns true if there is no key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PublicKey {
    fn of(jwk: Jwk) -> Option<Self> {
        let algorithm = match &jwk.algorithm {
            AlgorithmParameters::RSA(rsa) if rsa.n.len() >= MODULUS_CHARS_MIN => {
                SigningAlgorithm::Rs256
            }
            AlgorithmParameters::EllipticCurve(ec) if ec.curve == EllipticCurve::P256 => {
                SigningAlgorithm::Es256
            }
            AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
                SigningAlgorithm::EdDsa
            }
            _ => return None,
        };
        let is_for_signatures = match &jwk.common.public_key_use {
            Some(purpose) => *purpose == PublicKeyUse::Signature,
            None => true,
        };
        let named = jwk.common.key_algorithm.map(|name| name.to_string());
        let is_named = named.is_none_or(|name| name == algorithm.as_str());
        (is_for_signatures && is_named).then_some(())?;
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        Some(Self {
            id: jwk.common.key_id,
            algorithm,
            key,
        })
    }
}
