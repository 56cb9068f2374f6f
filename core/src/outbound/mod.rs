//! The kind `http`: one request to another party's server, and the outcome of its answer for the
//! job.
//!
//! The job's arguments define the request ([`request`]), with a literal body or a template
//! ([`template`]), and the secret that signs it ([`signature`]). The answer becomes an outcome
//! ([`response`]): done, later, slower, or never. A quota in it goes to the throttle ([`quota`]),
//! and a host's push-back against jobs without a key concerns only that host ([`host_backoff`]).
//! The guard ([`guard`], [`resolve`]) keeps jobs away from internal addresses.
//!
//! Left out: cookies, retries of its own (the queue retries, through the same throttle), and
//! proxies, past which the guard could not see.

pub mod apart;
mod credentials;
pub mod deliver;
pub mod descriptors;
pub mod guard;
pub mod host_backoff;
pub mod hyper;
pub(crate) mod origins;
pub mod quota;
pub mod request;
pub mod reqwest;
pub mod resolve;
pub mod response;
pub mod retry_after;
pub mod signature;
pub mod template;

pub use deliver::{HttpConfig, HttpHandler};
pub use guard::Guard;
pub use hyper::headers;
pub use request::Request;
pub use reqwest::{SetUpError, client_that_trusts, guarded_client};
pub use resolve::{Lookup, check_url};
pub use signature::Secrets;

/// The `user-agent` of requests.
const USER_AGENT: &str = concat!("flyball/", env!("CARGO_PKG_VERSION"));
