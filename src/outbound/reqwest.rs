//! The HTTP client: no redirects, no retries, no proxies, bounded reading, and only the addresses that the guard allows.

use std::error::Error as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::HeaderMap;
use reqwest::{Client, Url, redirect, retry};

use super::guard::{Config, Refused, is_public};
use super::response::{EXCERPT_BYTES, Response, is_success};
use super::retry_after::Headers;
use super::{Request, response};

/// Longest that connecting may take, within the request's own time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a body is read once the status is known: that decides, the body does not.
const BODY_TIMEOUT: Duration = Duration::from_millis(500);

/// Most of a good answer's body that is read, so that the connection can be used again.
const DRAIN_BYTES: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The guard does not let the job there.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The request cannot be made as it stands.
    #[error("the request cannot be sent: {0}")]
    Unsendable(String),
    /// The server did not answer, or not to the end.
    #[error("{0}")]
    Broken(String),
}

/// The client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up: {0}")]
pub struct SetUpError(#[from] reqwest::Error);

/// A client that follows no redirects, never retries by itself, and connects only where the guard lets it. Addresses that
/// stand in a URL as such never reach its resolver: check those with [`check_url`].
pub fn guarded_client(config: Config, timeout: Option<Duration>) -> Result<Client, SetUpError> {
    let builder = Client::builder()
        .user_agent(concat!("flyball/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        // A proxy would resolve names itself, past the guard.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(64)
        .pool_idle_timeout(Duration::from_secs(30))
        .dns_resolver(GuardedResolver { config });
    Ok(match timeout {
        Some(timeout) => builder.timeout(timeout),
        None => builder,
    }
    .build()?)
}

/// What is wrong with a URL that looks good on paper: it cannot be parsed, or it names an address inside.
pub fn check_url(url: &str, config: Config) -> Result<(), String> {
    parse_url(url, config).map(drop).map_err(|failure| failure.to_string())
}

fn parse_url(url: &str, config: Config) -> Result<Url, Failure> {
    let url = Url::parse(url).map_err(|error| Failure::Unsendable(format!("the URL is not valid: {error}")))?;
    // Addresses in the URL never reach the resolver. The parser has already turned 2130706433 and 0x7f.1 into 127.0.0.1.
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    match address {
        Ok(address) if !config.allow_private && !is_public(address) => Err(Failure::Refused(Refused { host: host.to_owned() })),
        _ => Ok(url),
    }
}

/// The client of a process.
pub struct HttpClient {
    client: Client,
    config: Config,
}

impl HttpClient {
    /// Sets up the client.
    pub fn new(config: Config) -> Result<Self, SetUpError> {
        Ok(Self { client: guarded_client(config, None)?, config })
    }

    /// What is wrong with a URL that looks good on paper.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        check_url(url, self.config)
    }

    /// Sends a request and reads what is needed of the answer, all within the request's time.
    pub async fn send(&self, request: &Request) -> Result<Response, Failure> {
        let timed_out = |_| Failure::Broken(format!("no answer within {} ms", request.timeout.as_millis()));
        tokio::time::timeout(request.timeout, self.exchange(request)).await.map_err(timed_out)?
    }

    async fn exchange(&self, request: &Request) -> Result<Response, Failure> {
        let unsendable = |what: String| Failure::Unsendable(what);
        let method = request.method.parse().map_err(|_| unsendable("the method is not valid".to_owned()))?;
        let mut call = self.client.request(method, parse_url(&request.url, self.config)?);
        if request.body_is_json && !request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-type")) {
            call = call.header("content-type", "application/json");
        }
        for (name, value) in &request.headers {
            call = call.header(name, value.as_bytes());
        }
        if let Some(body) = &request.body {
            call = call.body(body.clone());
        }
        let answer = call.send().await.map_err(failure_of)?;
        let status = answer.status().as_u16();
        let headers = headers(answer.headers());
        let done = is_success(&request.success, status);
        let excerpt = read(answer, if done { DRAIN_BYTES } else { EXCERPT_BYTES }).await;
        Ok(response::Response { status, headers, excerpt })
    }
}

/// A server's headers as [`Headers`]: repeated ones joined.
pub fn headers(map: &HeaderMap) -> Headers {
    let mut headers = Headers::new();
    for (name, value) in map {
        let value = String::from_utf8_lossy(value.as_bytes());
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|joined| *joined = format!("{joined}, {value}"))
            .or_insert_with(|| value.clone().into_owned());
    }
    headers
}

/// The beginning of a body; what breaks off or takes too long is as long as it is.
async fn read(mut answer: reqwest::Response, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = async {
        while let Ok(Some(chunk)) = answer.chunk().await {
            bytes.extend_from_slice(&chunk[..chunk.len().min(most - bytes.len())]);
            if bytes.len() >= most {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(BODY_TIMEOUT, reading).await;
    bytes
}

/// The failure in words, without the URL, which may hold a secret.
fn failure_of(error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut chain = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next {
        if let Some(refused) = cause.downcast_ref::<Refused>() {
            return Failure::Refused(refused.clone());
        }
        chain.push(cause.to_string());
        next = cause.source();
    }
    let reason = chain.pop().unwrap_or_else(|| error.to_string());
    match () {
        () if error.is_builder() => Failure::Unsendable(reason),
        () if error.is_timeout() => Failure::Broken(format!("no connection within {} s", CONNECT_TIMEOUT.as_secs())),
        () if error.is_connect() => Failure::Broken(format!("could not connect: {reason}")),
        () => Failure::Broken(format!("the connection broke: {reason}")),
    }
}

/// Resolves names and keeps only the addresses that the guard allows: those are connected to, and no others.
struct GuardedResolver {
    config: Config,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let allow_private = self.config.allow_private;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|found| allow_private || is_public(found.ip())).collect();
            if allowed.is_empty() {
                return Err(Refused { host: name.as_str().to_owned() }.into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
