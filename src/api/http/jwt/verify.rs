//! Verification of a token: its signature, its issuer, its audience and its time.

use jsonwebtoken::{DecodingKey, Validation};
use serde_json::Value;

use super::algorithm::SigningAlgorithm;
use super::claims::ClaimRules;
use super::error::JwtError;
use super::keys::KeySet;
use crate::api::http::token_secret::TokenSecret;

/// The longest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;

/// The tolerance for `exp` and `nbf` if the settings name none, in seconds.
pub const LEEWAY_S: f64 = 60.0;

/// The tokens that are accepted, by the settings.
#[derive(Clone)]
pub struct JwtRules {
    /// The issuer, exactly as in the claim `iss`.
    pub issuer: String,
    /// The audiences, of which the claim `aud` must hold one.
    pub audience: Vec<String>,
    /// The algorithms that may sign; never none.
    pub algorithms: Vec<SigningAlgorithm>,
    /// The secret for HS256, the only key for that algorithm.
    pub secret: Option<TokenSecret>,
    /// The tolerance for `exp` and `nbf`, in seconds.
    pub leeway_s: f64,
    /// The claims that hold tenant, module and permissions.
    pub claims: ClaimRules,
}

/// Verifies a token at a time in unix seconds, and returns its claims.
pub fn verify(text: &str, rules: &JwtRules, keys: &KeySet, now_s: f64) -> Result<Value, JwtError> {
    if text.len() > TOKEN_BYTES_MAX {
        return Err(JwtError::Malformed);
    }
    // A header whose algorithm is `none`, or one that the library does not know, is malformed.
    let header = jsonwebtoken::decode_header(text).map_err(|_| JwtError::Malformed)?;
    let algorithm = rules
        .algorithms
        .iter()
        .find(|algorithm| algorithm.library() == header.alg);
    let Some(algorithm) = algorithm.copied() else {
        let words: Vec<&str> = rules.algorithms.iter().map(|one| one.as_str()).collect();
        return Err(JwtError::Algorithm(words.join(", ")));
    };
    if header.crit.is_some() {
        return Err(JwtError::Critical);
    }
    let claims = match (algorithm, &rules.secret) {
        (SigningAlgorithm::Hs256, Some(secret)) => {
            let key = DecodingKey::from_secret(secret.expose().as_bytes());
            signed(text, algorithm, std::iter::once(&key))?
        }
        (SigningAlgorithm::Hs256, None) => return Err(JwtError::UnknownKey),
        _ => signed(
            text,
            algorithm,
            keys.for_token(algorithm, header.kid.as_deref()),
        )?,
    };
    check(&claims, rules, now_s)?;
    Ok(claims)
}

/// Returns the claims of a token that one of the keys has signed.
fn signed<'a>(
    text: &str,
    algorithm: SigningAlgorithm,
    keys: impl Iterator<Item = &'a DecodingKey>,
) -> Result<Value, JwtError> {
    let mut validation = Validation::new(algorithm.library());
    // The claims are checked below, at the time that is given.
    validation.required_spec_claims.clear();
    validation.validate_exp = false;
    validation.validate_aud = false;
    let mut error = JwtError::UnknownKey;
    for key in keys {
        match jsonwebtoken::decode::<Value>(text, key, &validation) {
            Ok(token) if token.claims.is_object() => return Ok(token.claims),
            Ok(_) => error = JwtError::Malformed,
            Err(_) => error = JwtError::Signature,
        }
    }
    Err(error)
}

fn check(claims: &Value, rules: &JwtRules, now_s: f64) -> Result<(), JwtError> {
    if claims.get("iss").and_then(Value::as_str) != Some(&rules.issuer) {
        return Err(JwtError::claim("iss", "is not the issuer of the settings"));
    }
    let is_ours = |one: &Value| {
        one.as_str()
            .is_some_and(|one| rules.audience.iter().any(|ours| ours == one))
    };
    let is_meant = match claims.get("aud") {
        Some(Value::Array(all)) => all.iter().any(is_ours),
        Some(one) => is_ours(one),
        None => false,
    };
    if !is_meant {
        return Err(JwtError::claim("aud", "names no audience of the settings"));
    }
    let Some(ends_s) = claims.get("exp").and_then(Value::as_f64) else {
        return Err(JwtError::claim("exp", "is missing or not a number"));
    };
    if now_s >= ends_s + rules.leeway_s {
        return Err(JwtError::claim("exp", "is over: the token has expired"));
    }
    match claims.get("nbf") {
        None | Some(Value::Null) => Ok(()),
        Some(begins) => match begins.as_f64() {
            Some(begins_s) if begins_s <= now_s + rules.leeway_s => Ok(()),
            Some(_) => Err(JwtError::claim("nbf", "is in the future: not valid yet")),
            None => Err(JwtError::claim("nbf", "is not a number")),
        },
    }
}
