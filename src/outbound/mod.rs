//! The kind `http`: one request to somebody else's server, and what its answer means for the job.
//!
//! A job says what to send ([`request`]); the answer becomes an outcome ([`response`]): done, later, slower, or never. The
//! guard ([`guard`]) keeps jobs away from addresses inside. What is left out: following redirects, cookies, retries of our
//! own (the queue retries, through the same throttle), and proxies, past which the guard could not see.

pub mod deliver;
pub mod guard;
pub mod request;
pub mod reqwest;
pub mod response;
pub mod retry_after;

pub use deliver::HttpHandler;
pub use guard::Config;
pub use request::Request;
pub use reqwest::{SetUpError, check_url, guarded_client, headers};
