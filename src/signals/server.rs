//! An HTTP server that is queried for readings: its address, the credentials, and the trusted
//! certificates.
//!
//! Errors show the address without user, password and query. No error shows credentials, and
//! redirects, which could carry them elsewhere, are not followed.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Certificate, RequestBuilder, StatusCode, Url};

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

/// A server that is queried at one path.
#[derive(Clone, Debug)]
pub(super) struct SignalServer {
    client: reqwest::Client,
    url: Url,
    shown: String,
    credentials: Credentials,
}

impl SignalServer {
    /// Creates a client of the server at that address and `path` below it, with the timeout
    /// `within`.
    pub(super) fn new(access: &Access, path: &str, within: Duration) -> Result<Self, Error> {
        let mut url = address(&access.url)?;
        if !path.is_empty() {
            url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
            url.set_query(None);
        }
        let shown = shown(&url);
        let refuse = |reason: &str| Error::Address {
            url: shown.clone(),
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
            .timeout(within)
            .connect_timeout(within)
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
            shown,
            credentials: access.credentials.clone(),
        })
    }

    /// Returns the address without secrets.
    pub(super) fn redacted_url(&self) -> &str {
        &self.shown
    }

    /// Builds a request, with a form in its body or without.
    pub(super) fn question(&self, form: Option<&[(&str, &str)]>) -> RequestBuilder {
        match form {
            Some(form) => self.client.post(self.url.clone()).form(form),
            None => self.client.get(self.url.clone()),
        }
    }

    /// Sends a request and reads at most `most` bytes. Returns the server's clock, if it has a
    /// `Date`, and the body.
    pub(super) async fn ask(
        &self,
        question: RequestBuilder,
        within: Duration,
        most: usize,
    ) -> Result<(Option<f64>, Vec<u8>), Error> {
        let url = || self.shown.clone();
        let lost = |e: reqwest::Error| {
            if e.is_timeout() {
                return Error::TimedOut {
                    url: url(),
                    within_ms: within.as_millis(),
                };
            }
            // The outer error names the whole address; its causes do not.
            let e = e.without_url();
            let mut reason: &dyn std::error::Error = &e;
            while let Some(source) = reason.source() {
                reason = source;
            }
            Error::Unreachable {
                url: url(),
                reason: reason.to_string(),
            }
        };
        let question = match &self.credentials {
            Credentials::None => question,
            Credentials::Bearer(token) => question.bearer_auth(self.reveal(token).await?),
            Credentials::Basic(user, password) => {
                question.basic_auth(user, Some(self.reveal(password).await?))
            }
        };
        let mut response = question.send().await.map_err(lost)?;
        let date = response
            .headers()
            .get("date")
            .and_then(|d| httpdate::parse_http_date(d.to_str().ok()?).ok());
        let clock = date
            .and_then(|d| d.duration_since(SystemTime::UNIX_EPOCH).ok())
            .map(|d| d.as_secs_f64());
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(lost)? {
            if body.len() + chunk.len() > most {
                return Err(Error::Garbled {
                    url: url(),
                    reason: format!("more than {most} bytes"),
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
                url: url(),
                status,
                message: message.chars().take(500).collect(),
            });
        }
        Ok((clock, body))
    }

    async fn reveal(&self, secret: &SecretSource) -> Result<String, Error> {
        let text = match secret {
            SecretSource::Text(text) => text.clone(),
            SecretSource::File(path) => {
                tokio::fs::read_to_string(path)
                    .await
                    .map_err(|error| Error::Unreachable {
                        url: self.shown.clone(),
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
fn shown(url: &Url) -> String {
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
        let server = |url: &str| SignalServer::new(&Access::open(url), "", Duration::from_secs(1));
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
            let told = server(wrong).unwrap_err().to_string();
            assert!(!told.contains("very-secret"), "{told}");
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
            SignalServer::new(&access, "", Duration::from_secs(1))
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
