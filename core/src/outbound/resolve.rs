//! Resolves the hosts of URLs to the addresses that the guard allows.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use url::Url;

use super::guard::{BlockedAddress, Guard};

/// A function that looks up the addresses of a name.
pub type Lookup =
    Arc<dyn Fn(String) -> BoxFuture<'static, std::io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The reason for which a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    /// The text is not a URL.
    #[error("the URL is not valid: {0}")]
    Invalid(#[from] url::ParseError),
    /// The guard does not allow the address.
    #[error(transparent)]
    Refused(#[from] BlockedAddress),
}

/// Resolves names and returns only the addresses that the guard allows; connections go to no
/// others.
#[derive(Clone)]
pub struct Resolver {
    guard: Guard,
    lookup: Option<Lookup>,
}

impl Resolver {
    /// Creates a resolver that uses `lookup`, or the system's if it is `None`.
    pub fn new(guard: Guard, lookup: Option<Lookup>) -> Self {
        Self { guard, lookup }
    }

    /// Returns the allowed addresses of a name, with port 0.
    pub async fn resolve(
        &self,
        name: String,
    ) -> Result<Vec<SocketAddr>, Box<dyn std::error::Error + Send + Sync>> {
        let found: Vec<IpAddr> = match &self.lookup {
            Some(lookup) => lookup(name.clone()).await?,
            None => tokio::net::lookup_host((name.as_str(), 0))
                .await?
                .map(|found| found.ip())
                .collect(),
        };
        let is_allowed =
            |address: &IpAddr| self.guard.allows_name(&name) || self.guard.allows_address(*address);
        let allowed: Vec<SocketAddr> = found
            .into_iter()
            .filter(is_allowed)
            .map(|address| (address, 0).into())
            .collect();
        match allowed.is_empty() {
            true => Err(BlockedAddress { host: name }.into()),
            false => Ok(allowed),
        }
    }
}

/// Parses a URL and checks a literal address in it, which never reaches a resolver.
///
/// The parser turns 2130706433 and 0x7f.1 into 127.0.0.1. Names are judged when they are connected
/// to.
pub fn parse_url(url: &str, guard: &Guard) -> Result<Url, ResolveError> {
    let url = Url::parse(url)?;
    let host = url.host_str().unwrap_or_default();
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<IpAddr>();
    match address {
        Ok(address) if !guard.allows_address(address) => Err(BlockedAddress {
            host: host.to_owned(),
        }
        .into()),
        _ => Ok(url),
    }
}

/// Checks a URL before it is used: it must parse, and must not name an internal address.
pub fn check_url(url: &str, guard: &Guard) -> Result<(), String> {
    parse_url(url, guard)
        .map(drop)
        .map_err(|astray| astray.to_string())
}
