//! The kind `http`: one request to somebody else's server, and what its answer means for the job.
//!
//! A job says what to send ([`request`]), as it stands or by a template ([`template`]), and by which secret it is signed
//! ([`signature`]). The answer becomes an outcome ([`response`]): done, later, slower, or never; what it tells of a quota is
//! handed on ([`quota`]), and what a host says to jobs without a key concerns that host ([`rests`]). The guard ([`guard`], [`resolve`]) keeps jobs away from addresses inside. What is left out: cookies,
//! retries of our own (the queue retries, through the same throttle), and proxies, past which the guard could not see.

pub mod apart;
mod credentials;
pub mod deliver;
pub mod descriptors;
pub mod guard;
pub mod hyper;
pub mod quota;
pub mod request;
pub mod reqwest;
pub mod resolve;
pub mod response;
pub mod rests;
pub mod retry_after;
pub mod signature;
pub mod template;

pub use deliver::{Config, HttpHandler};
pub use guard::Guard;
pub use hyper::headers;
pub use request::Request;
pub use reqwest::{SetUpError, client_that_trusts, guarded_client};
pub use resolve::{Lookup, check_url};
pub use signature::Secrets;

/// What we call ourselves.
const USER_AGENT: &str = concat!("flyball/", env!("CARGO_PKG_VERSION"));
