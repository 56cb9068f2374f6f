//! An HTTP server that is queried for readings: its address, the credentials, and the trusted
//! certificates.
//!
//! Errors show the address without user, password and query. No error shows credentials, and
//! redirects, which could carry them elsewhere, are not followed.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, Response, StatusCode, Url};

use super::Error;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The text itself.
    Text(String),
    /// The file that holds it, read for each use, because such files are replaced while a process
    /// runs.
    File(PathBuf),
}

/// The credentials of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Credentials {
    /// No credentials.
    #[default]
    None,
    /// A bearer token.
    Bearer(SecretSource),
    /// A user with a password.
    Basic(String, SecretSource),
    /// The whole text of the header, such as `ApiKey …`.
    Whole(SecretSource),
}

/// The address of a server, and the credentials for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Its address, such as `https://prometheus.example:9090`; a path prefix is kept.
    pub url: String,
    pub credentials: Credentials,
    /// More headers of every request; their values are treated as secrets.
    pub headers: Vec<(String, String)>,
    /// Certificates in PEM form that are trusted besides the system's.
    pub authorities: Option<Vec<u8>>,
}

impl Access {
    /// Returns the access to a server that needs no credentials.
    pub fn open(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            ..Self::default()
        }
    }
}

/// A server that is queried for readings.
#[derive(Clone, Debug)]
pub(super) struct SignalServer {
    client: reqwest::Client,
    url: Url,
    redacted_url: String,
    credentials: Credentials,
    timeout: Duration,
}

impl SignalServer {
    /// Creates a client of the server at that address; every request has this timeout.
    pub(super) fn new(access: &Access, timeout: Duration) -> Result<Self, Error> {
        let url = address(&access.url)?;
        let redacted_url = redacted(&url);
        let refuse = |reason: &str| Error::Address {
            url: redacted_url.clone(),
            reason: reason.to_owned(),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in &access.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| refuse("one of its headers has no such name"))?;
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| refuse(&format!("its header {name} cannot be sent")))?;
            value.set_sensitive(true);
            headers.append(name, value);
        }
        let mut client = reqwest::Client::builder()
            .timeout(timeout)
            .connect_timeout(timeout)
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(2)
            .default_headers(headers);
        if let Some(pem) = &access.authorities {
            let certificates = Certificate::from_pem_bundle(pem)
                .ok()
                .filter(|some| !some.is_empty());
            client = client.tls_certs_merge(certificates.ok_or_else(|| {
                refuse("its certificate file contains no certificates in PEM form")
            })?);
        }
        let client = client
            .build()
            .map_err(|_| refuse("its certificates are not valid"))?;
        Ok(Self {
            client,
            url,
            redacted_url,
            credentials: access.credentials.clone(),
            timeout,
        })
    }

    /// Returns the address without secrets.
    pub(super) fn redacted_url(&self) -> &str {
        &self.redacted_url
    }

    /// Returns the timeout of every request.
    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns a client of Prometheus' HTTP API on the same connections. Its requests take
    /// [`Self::authorization`].
    pub(super) fn prometheus(&self) -> Result<prometheus_http_query::Client, Error> {
        let mut url = self.url.clone();
        url.set_query(None);
        let prefix = url.path().trim_end_matches('/').to_owned();
        url.set_path(&prefix);
        prometheus_http_query::Client::from(self.client.clone(), url.as_str()).map_err(|_| {
            Error::Address {
                url: self.redacted_url.clone(),
                reason: "it cannot be extended by a path".to_owned(),
            }
        })
    }

    /// Gets the address itself and reads at most `max_bytes` of the body.
    pub(super) async fn get(&self, max_bytes: usize) -> Result<Vec<u8>, Error> {
        let mut request = self.client.get(self.url.clone());
        if let Some(value) = self.authorization().await? {
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(|error| self.lost(&error))?;
        Ok(self.read(response, max_bytes).await?.1)
    }

    /// Reads at most `max_bytes` of a response's body. Returns the server's clock, if it has a
    /// `Date`, and the body.
    pub(super) async fn read(
        &self,
        mut response: Response,
        max_bytes: usize,
    ) -> Result<(Option<f64>, Vec<u8>), Error> {
        let date = response
            .headers()
            .get("date")
            .and_then(|d| httpdate::parse_http_date(d.to_str().ok()?).ok());
        let clock = date
            .and_then(|d| d.duration_since(SystemTime::UNIX_EPOCH).ok())
            .map(|d| d.as_secs_f64());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.lost(&error))? {
            if body.len() + chunk.len() > max_bytes {
                return Err(Error::Garbled {
                    url: self.redacted_url.clone(),
                    reason: format!("more than {max_bytes} bytes"),
                });
            }
            body.extend_from_slice(&chunk);
        }
        if response.status() != StatusCode::OK {
            let status = response.status().as_u16();
            // A server that refuses credentials may repeat them.
            let message = if matches!(status, 401 | 403 | 407) {
                ""
            } else {
                &String::from_utf8_lossy(&body)
            };
            return Err(Error::Refused {
                url: self.redacted_url.clone(),
                status,
                message: message.chars().take(500).collect(),
            });
        }
        Ok((clock, body))
    }

    /// Returns the error of a request without a complete response.
    pub(super) fn lost(&self, error: &(dyn std::error::Error + 'static)) -> Error {
        // The outer errors name the whole address; the innermost cause does not.
        let causes = || std::iter::successors(Some(error), |error| error.source());
        let is_timeout = |error: &(dyn std::error::Error + 'static)| {
            error
                .downcast_ref::<reqwest::Error>()
                .is_some_and(reqwest::Error::is_timeout)
        };
        if causes().any(is_timeout) {
            return Error::TimedOut {
                url: self.redacted_url.clone(),
                within_ms: self.timeout.as_millis(),
            };
        }
        Error::Unreachable {
            url: self.redacted_url.clone(),
            reason: causes().last().map(ToString::to_string).unwrap_or_default(),
        }
    }

    /// Returns the header with the credentials, if there are any.
    pub(super) async fn authorization(&self) -> Result<Option<HeaderValue>, Error> {
        let text = match &self.credentials {
            Credentials::None => return Ok(None),
            Credentials::Bearer(token) => format!("Bearer {}", self.reveal(token).await?),
            Credentials::Basic(user, password) => {
                let pair = format!("{user}:{}", self.reveal(password).await?);
                format!("Basic {}", BASE64_STANDARD.encode(pair))
            }
            Credentials::Whole(text) => self.reveal(text).await?,
        };
        let mut value = HeaderValue::try_from(text).map_err(|_| Error::Address {
            url: self.redacted_url.clone(),
            reason: "its credentials cannot be sent in a header".to_owned(),
        })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    async fn reveal(&self, secret: &SecretSource) -> Result<String, Error> {
        let text = match secret {
            SecretSource::Text(text) => text.clone(),
            SecretSource::File(path) => {
                tokio::fs::read_to_string(path)
                    .await
                    .map_err(|error| Error::Unreachable {
                        url: self.redacted_url.clone(),
                        reason: format!("the file of its credentials cannot be read: {error}"),
                    })?
            }
        };
        Ok(text.trim().to_owned())
    }
}

/// Parses `text` as an HTTP address.
fn address(text: &str) -> Result<Url, Error> {
    let hidden = text.rsplit_once('@').map_or(text, |(_, host)| host);
    let refuse = |reason: &str| Error::Address {
        url: hidden.to_owned(),
        reason: reason.to_owned(),
    };
    let url = Url::parse(text.trim()).map_err(|e| refuse(&e.to_string()))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        other => Err(refuse(&format!("scheme {other:?} is not http"))),
    }
}

/// Returns an address without its secret parts.
fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    // These fail only for addresses that can hold neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_shown_without_its_secrets() {
        let server = |url: &str| SignalServer::new(&Access::open(url), Duration::from_secs(1));
        let server_of = |url: &str| server(url).unwrap().redacted_url().to_owned();
        assert_eq!(
            server_of("http://ann:very-secret@host:9090/x?token=very-secret#y"),
            "http://host:9090/x"
        );
        assert_eq!(server_of("http://very-secret@host/"), "http://host/");
        for wrong in [
            "ftp://ann:very-secret@host",
            "ann:very-secret@host",
            "http://ann:very-secret@",
            "http://ann:very-secret@h:x",
        ] {
            let reported = server(wrong).unwrap_err().to_string();
            assert!(!reported.contains("very-secret"), "{reported}");
        }
        let access = Access {
            credentials: Credentials::Bearer(SecretSource::Text("very-secret".into())),
            ..Access::open("http://host")
        };
        assert!(!format!("{access:?}").contains("very-secret"));
    }

    #[test]
    fn what_cannot_be_sent_or_trusted_is_refused_without_repeating_it() {
        let with = |headers: &[(&str, &str)], authorities: Option<&str>| {
            let headers = headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            let access = Access {
                headers,
                authorities: authorities.map(|pem| pem.into()),
                ..Access::open("https://host")
            };
            SignalServer::new(&access, Duration::from_secs(1))
                .map(|_| ())
                .map_err(|e| e.to_string())
        };
        assert_eq!(with(&[("X-Scope-OrgID", "team")], None), Ok(()));
        assert!(
            with(&[("a b", "very-secret")], None)
                .is_err_and(|e| e.contains("headers") && !e.contains("very-secret"))
        );
        assert!(
            with(&[("x-key", "very-secret\n")], None)
                .is_err_and(|e| e.contains("x-key") && !e.contains("very-secret"))
        );
        assert!(with(&[], Some("no certificate")).is_err_and(|e| e.contains("certificates")));
    }
}
