//! Provider tokens: each is used for most of an hour. Two within twenty minutes would be penalised
//! by Apple.

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::json;

/// The age at which a token is replaced, in seconds; Apple rejects tokens older than an hour.
const OLD_S: i64 = 50 * 60;

/// The minimum age of a token before a new one is signed, in seconds.
const YOUNG_S: i64 = 20 * 60;

/// The tokens of an account.
pub(super) struct Tokens {
    key: EncodingKey,
    header: Header,
    team_id: String,
    current: Option<ProviderToken>,
}

struct ProviderToken {
    text: String,
    made_s: i64,
}

/// The error of a key that cannot sign.
#[derive(Debug)]
pub(super) struct SigningError;

impl Tokens {
    /// Parses the key and signs a token as a check.
    ///
    /// Fails if the key cannot sign.
    pub(super) fn new(pem: &str, key_id: &str, team_id: &str) -> Result<Self, SigningError> {
        let key = EncodingKey::from_ec_pem(pem.as_bytes()).map_err(|_| SigningError)?;
        let mut header = Header::new(Algorithm::ES256);
        header.typ = None;
        header.kid = Some(key_id.to_owned());
        let tokens = Self {
            key,
            header,
            team_id: team_id.to_owned(),
            current: None,
        };
        tokens.made(0)?;
        Ok(tokens)
    }

    /// Returns the token in force, and signs a new one if needed.
    pub(super) fn current(&mut self, now_s: i64) -> Result<String, SigningError> {
        if let Some(token) = &self.current
            && (-YOUNG_S..OLD_S).contains(&(now_s - token.made_s))
        {
            return Ok(token.text.clone());
        }
        let text = self.made(now_s)?;
        self.current = Some(ProviderToken {
            text: text.clone(),
            made_s: now_s,
        });
        Ok(text)
    }

    /// Discards an expired token; returns true if another token exists or may be signed.
    pub(super) fn expired(&mut self, text: &str, now_s: i64) -> bool {
        match &self.current {
            Some(token) if token.text != text => true,
            Some(token) if now_s - token.made_s < YOUNG_S => false,
            _ => {
                self.current = None;
                true
            }
        }
    }

    fn made(&self, now_s: i64) -> Result<String, SigningError> {
        let claims = json!({ "iss": self.team_id, "iat": now_s });
        jsonwebtoken::encode(&self.header, &claims, &self.key).map_err(|_| SigningError)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use serde_json::Value;

    use super::*;
    use crate::providers::wire_tests::pem;

    pub fn key() -> String {
        let key =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new())
                .unwrap();
        pem(key.as_ref())
    }

    fn part(token: &str, at: usize) -> Value {
        serde_json::from_slice(
            &URL_SAFE_NO_PAD
                .decode(token.split('.').nth(at).unwrap())
                .unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn a_token_is_used_for_fifty_minutes() {
        let mut tokens = Tokens::new(&key(), "KEY1234567", "ABCDE12345").unwrap();
        let first = tokens.current(1000).unwrap();
        assert_eq!(
            part(&first, 0),
            json!({ "alg": "ES256", "kid": "KEY1234567" })
        );
        assert_eq!(part(&first, 1), json!({ "iss": "ABCDE12345", "iat": 1000 }));
        for now_s in [1000, 1600, 1000 + OLD_S - 1, 900] {
            assert_eq!(tokens.current(now_s).unwrap(), first);
        }
        let second = tokens.current(1000 + OLD_S).unwrap();
        assert_ne!(second, first);
        assert_eq!(tokens.current(1000 + OLD_S + 1).unwrap(), second);
    }

    #[test]
    fn there_are_never_two_within_twenty_minutes() {
        let mut tokens = Tokens::new(&key(), "k", "t").unwrap();
        let first = tokens.current(0).unwrap();
        assert!(!tokens.expired(&first, YOUNG_S - 1));
        assert_eq!(tokens.current(YOUNG_S - 1).unwrap(), first);
        assert!(tokens.expired(&first, YOUNG_S));
        let second = tokens.current(YOUNG_S).unwrap();
        assert_ne!(second, first);
        assert!(
            tokens.expired(&first, YOUNG_S + 1),
            "a late answer to the first: the second is there"
        );
        assert_eq!(tokens.current(YOUNG_S + 1).unwrap(), second);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(Tokens::new("no key", "k", "t").is_err());
        assert!(Tokens::new(&pem(b"no key either"), "k", "t").is_err());
    }
}
