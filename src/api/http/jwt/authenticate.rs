//! The caller of a request that carries a JSON Web Token.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use super::claims::{JwtBearer, bearer_of};
use super::error::JwtError;
use super::jwks::{Jwks, JwksSource, SteadyClock};
use super::verify::{JwtRules, verify};
use crate::api::http::caller::{AuthMethod, Caller};

/// The check of JSON Web Tokens.
pub struct JwtAuth {
    rules: JwtRules,
    jwks: Jwks,
}

impl JwtAuth {
    /// Creates the check by the settings.
    pub fn new(rules: JwtRules, source: JwksSource) -> Self {
        Self::with_clock(rules, source, Arc::new(Instant::now))
    }

    /// Creates the check with a clock by which the age of the keys is judged.
    pub fn with_clock(rules: JwtRules, source: JwksSource, clock: SteadyClock) -> Self {
        Self {
            rules,
            jwks: Jwks::new(source, clock),
        }
    }

    /// Returns true for a text with the shape of a JSON Web Token.
    pub fn has_shape(text: &str) -> bool {
        text.starts_with("ey") && text.matches('.').count() == 2
    }

    /// Identifies the bearer of a token; the error says why it is not accepted.
    pub async fn caller(&self, text: &str, now: Timestamp) -> Result<Caller, JwtError> {
        self.jwks.refresh().await;
        let now_s = now.as_millisecond() as f64 / 1000.0;
        let looked_at = self.jwks.now();
        let mut claims = verify(text, &self.rules, &self.jwks.keys(), now_s);
        if claims == Err(JwtError::UnknownKey) {
            if self.jwks.read_again(looked_at).await {
                claims = verify(text, &self.rules, &self.jwks.keys(), now_s);
            }
            if self.jwks.is_unread() {
                return Err(JwtError::NoKeys);
            }
        }
        let bearer = bearer_of(&claims?, &self.rules.claims)?;
        Ok(caller(bearer))
    }
}

fn caller(bearer: JwtBearer) -> Caller {
    let owner = match &bearer.tenant {
        Some(tenant) => format!("tenant:{tenant}"),
        None if bearer.leave.is_admin() => String::new(),
        None => format!("token:{}", bearer.name),
    };
    Caller {
        proof: AuthMethod::Jwt,
        token: Some(bearer.name.into()),
        tenant: bearer.tenant.map(Into::into),
        module: bearer.module.into(),
        owner: owner.into(),
        leave: Arc::new(bearer.leave),
        key: bearer.key.into(),
        expires_at: bearer.expires_at,
        session: None,
    }
}
