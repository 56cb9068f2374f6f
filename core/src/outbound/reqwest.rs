//! A client for other kinds that use HTTP: no redirects, no retries, no proxies, and only the
//! addresses that the guard allows.

use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Certificate, Client, ClientBuilder, redirect, retry};

use super::guard::Guard;
use super::resolve::Resolver;

/// Longest time for connecting, within the request's own time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The HTTP client could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("setting up the HTTP client failed: {0}")]
pub struct SetUpError(#[from] reqwest::Error);

/// Builds a client that follows no redirects, never retries by itself, and connects only to allowed
/// addresses.
///
/// A literal address in a URL never reaches its resolver: check it with
/// [`check_url`](super::check_url).
pub fn guarded_client(guard: Guard, timeout: Duration) -> Result<Client, SetUpError> {
    Ok(builder(guard, timeout).build()?)
}

/// Builds a client for an address that the operator has set, which may be anywhere. It trusts the
/// certificates of `ca_file`, in PEM form, besides the system's.
pub fn client_that_trusts(ca_file: &str, timeout: Duration) -> Result<Client, String> {
    let pem = std::fs::read(ca_file)
        .map_err(|_| format!("the file {ca_file} cannot be read on this worker"))?;
    let certificates = Certificate::from_pem_bundle(&pem)
        .ok()
        .filter(|some| !some.is_empty());
    let certificates = certificates
        .ok_or_else(|| format!("the file {ca_file} contains no certificates in PEM form"))?;
    let client = builder(Guard::open(), timeout).tls_certs_merge(certificates);
    client
        .build()
        .map_err(|_| format!("the certificates in {ca_file} are not valid"))
}

fn builder(guard: Guard, timeout: Duration) -> ClientBuilder {
    Client::builder()
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
        .dns_resolver(Guarded(Resolver::new(guard, None)))
}

/// The resolver in the form that reqwest requires.
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
