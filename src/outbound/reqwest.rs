//! A client for other kinds that speak HTTP: no redirects, no retries, no proxies, and only the addresses that the guard allows.

use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, redirect, retry};

use super::guard::Guard;
use super::resolve::Resolver;

/// Longest that connecting may take, within the request's own time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("the HTTP client cannot be set up: {0}")]
pub struct SetUpError(#[from] reqwest::Error);

/// A client that follows no redirects, never retries by itself, and connects only where the guard lets it. Addresses that
/// stand in a URL as such never reach its resolver: check those with [`check_url`](super::check_url).
pub fn guarded_client(guard: Guard, timeout: Duration) -> Result<Client, SetUpError> {
    let client = Client::builder()
        .user_agent(super::USER_AGENT)
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        // A proxy would resolve names itself, past the guard.
        .no_proxy()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(timeout)
        .pool_max_idle_per_host(64)
        .pool_idle_timeout(Duration::from_secs(30))
        .dns_resolver(Guarded(Resolver::new(guard, None)));
    Ok(client.build()?)
}

/// The resolver as this library wants it.
struct Guarded(Resolver);

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let resolver = self.0.clone();
        Box::pin(async move {
            let allowed = resolver.resolve(name.as_str().to_owned()).await?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}
