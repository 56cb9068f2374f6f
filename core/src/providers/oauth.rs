//! Google access tokens for a service account. A token is fetched on first use and cached until
//! shortly before it expires.

use std::sync::Arc;

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use url::Url;
use url::form_urlencoded::Serializer;

use super::invalid_account::refused;
use super::outcome;
use super::{Call, ExchangeError, Http, HttpAnswer, InvalidAccount, Scope, SendContext, Sent};
use crate::outbound::retry_after::retry_after;

/// The time before its expiry at which a token is no longer used, in seconds.
const EARLY_S: i64 = 300;

/// A service account and its key.
pub(super) struct Service {
    pub project_id: Option<String>,
    email: String,
    key_id: Option<String>,
    audience: String,
    key: EncodingKey,
}

impl Service {
    /// Parses the key file of a service account; errors name `field`.
    pub(super) fn parse(json: &str, field: &str) -> Result<Self, InvalidAccount> {
        let lacks = |name: &str| {
            refused(
                field,
                format!("must be the JSON of a service account's key, with {name}"),
            )
        };
        let json: Value = serde_json::from_str(json)
            .map_err(|_| refused(field, "must be the JSON of a service account's key"))?;
        let text = |name: &str| json[name].as_str().map(str::to_owned);
        let pem = text("private_key").ok_or_else(|| lacks("private_key"))?;
        let key = EncodingKey::from_rsa_pem(pem.as_bytes())
            .map_err(|_| lacks("private_key, which is an RSA key in PEM form"))?;
        let service = Self {
            project_id: text("project_id"),
            email: text("client_email").ok_or_else(|| lacks("client_email"))?,
            key_id: text("private_key_id"),
            audience: text("token_uri")
                .unwrap_or_else(|| "https://oauth2.googleapis.com/token".to_owned()),
            key,
        };
        // A key that cannot sign must fail at start-up and not with the first message.
        service
            .assertion("", 0)
            .map_err(|_| lacks("private_key, which can sign"))?;
        Ok(service)
    }

    fn assertion(&self, scope: &str, now_s: i64) -> Result<String, jsonwebtoken::errors::Error> {
        let mut header = Header::new(Algorithm::RS256);
        header.kid = self.key_id.clone();
        let claims = json!({ "iss": self.email, "scope": scope, "aud": self.audience, "iat": now_s, "exp": now_s + 3600 });
        jsonwebtoken::encode(&header, &claims, &self.key)
    }
}

/// An access token and the time until which it is used.
struct AccessToken {
    text: String,
    until_s: i64,
}

/// The cached token of a service account, and the client that fetches new ones.
pub(super) struct Tokens {
    service: Service,
    scope: &'static str,
    /// The token endpoint.
    uri: String,
    http: Arc<Http>,
    /// The holder of the lock fetches a token; the other callers wait and then find it.
    token: tokio::sync::Mutex<Option<AccessToken>>,
}

impl Tokens {
    /// Creates the cache for a scope. Tokens come from `uri`, or from the service account's own
    /// endpoint if it is `None`.
    pub(super) fn new(
        service: Service,
        scope: &'static str,
        uri: Option<&str>,
        http: Arc<Http>,
    ) -> Result<Self, InvalidAccount> {
        let uri = uri.unwrap_or(&service.audience).to_owned();
        let is_fit = Url::parse(&uri)
            .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        match is_fit {
            true => Ok(Self {
                service,
                scope,
                uri,
                http,
                token: tokio::sync::Mutex::new(None),
            }),
            false => Err(refused(
                "token_uri",
                "must be a URL that begins with http:// or https://",
            )),
        }
    }

    /// Returns a valid token; `rejected` is a token that the provider has refused.
    ///
    /// Returns the outcome of the message, which was not sent.
    pub(super) async fn token(
        &self,
        context: &SendContext,
        rejected: Option<&str>,
    ) -> Result<String, Sent> {
        let asking = async {
            let mut token = self.token.lock().await;
            if let Some(token) = &*token
                && context.now_s < token.until_s
                && rejected != Some(token.text.as_str())
            {
                return Ok(token.text.clone());
            }
            let fresh = self.ask(context).await?;
            Ok(token.insert(fresh).text.clone())
        };
        let transient = |reason: &str| {
            Err(Sent::Transient {
                reason: reason.to_owned(),
            })
        };
        tokio::select! {
            biased;
            token = asking => token,
            () = context.stop.cancelled() => transient("stopped before an access token was available"),
            () = tokio::time::sleep(context.timeout) => transient("no access token arrived in time"),
        }
    }

    async fn ask(&self, context: &SendContext) -> Result<AccessToken, Sent> {
        let assertion = self.service.assertion(self.scope, context.now_s);
        let assertion = assertion.map_err(|_| {
            account(
                "signing with the service account's key \
                                                       failed",
            )
        })?;
        let grant = "urn:ietf:params:oauth:grant-type:jwt-bearer";
        let body = Serializer::new(String::new())
            .append_pair("grant_type", grant)
            .append_pair("assertion", &assertion)
            .finish();
        let call = Call {
            method: "POST",
            url: self.uri.clone(),
            headers: vec![(
                "content-type".to_owned(),
                "application/x-www-form-urlencoded".to_owned(),
            )],
            body,
            timeout: context.timeout,
        };
        match self.http.send(call, &context.stop).await {
            Ok(answer) => judge(&answer, context.now_s),
            Err(ExchangeError::Short(reason)) => Err(Sent::Unable { reason }),
            // The message itself was not sent, even if this request succeeds.
            Err(error) => Err(Sent::Transient {
                reason: outcome::line(&format!("no access token: {error}"), &[&assertion]),
            }),
        }
    }
}

fn account(reason: &str) -> Sent {
    Sent::AccountFailure {
        reason: reason.to_owned(),
    }
}

/// Maps the answer of the token endpoint to a token or an outcome.
fn judge(answer: &HttpAnswer, now_s: i64) -> Result<AccessToken, Sent> {
    let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let word = body["error"].as_str().unwrap_or_default();
    let reason = outcome::line(
        &format!("no access token: answered {} {word}", answer.status),
        &[],
    );
    match (answer.status, body["access_token"].as_str()) {
        (200, Some(text)) => {
            let lasts_s = body["expires_in"].as_i64().unwrap_or(3600).clamp(1, 86_400);
            Ok(AccessToken {
                text: text.to_owned(),
                until_s: now_s + lasts_s - EARLY_S.min(lasts_s / 2),
            })
        }
        (429, _) => Err(Sent::Throttled {
            scope: Scope::Account,
            key: None,
            delay: retry_after(&answer.headers, now_s),
            reason,
        }),
        (400..=499, _) => Err(Sent::AccountFailure { reason }),
        _ => Err(Sent::Transient { reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire_tests::{class_of, headers};
    use super::*;
    use crate::providers::Class;

    fn answer(status: u16, body: &Value) -> HttpAnswer {
        HttpAnswer {
            status,
            headers: headers(&[("retry-after", "9")]),
            body: body.to_string().into_bytes(),
        }
    }

    #[test]
    fn a_token_is_used_until_shortly_before_its_end() {
        for (lasts_s, until_s) in [(3600, 4300), (3599, 4299), (100, 1050)] {
            let token = judge(
                &answer(200, &json!({ "access_token": "a", "expires_in": lasts_s })),
                1000,
            )
            .ok()
            .unwrap();
            assert_eq!(token.until_s, until_s);
        }
    }

    #[test]
    fn a_message_without_a_token_was_not_sent() {
        let class = |status, body| class_of(&judge(&answer(status, &body), 0).err().unwrap());
        assert_eq!(
            class(
                400,
                json!({ "error": "invalid_grant", "error_description": "x" })
            ),
            Class::Account
        );
        assert_eq!(
            class(401, json!({ "error": "invalid_client" })),
            Class::Account
        );
        assert_eq!(class(429, json!({})), Class::Throttled(Scope::Account));
        assert_eq!(class(503, json!({})), Class::Transient);
        assert_eq!(class(200, json!({})), Class::Transient);
    }
}
