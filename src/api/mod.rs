//! The HTTP interface: the API, the live stream, the metrics and the dashboard's files.
//!
//! One file or folder per noun holds its routes, and [`http`] the common part of all routes.
//! [`router`] lists the routes on one page, and `/openapi.json` is generated from the same
//! declarations. Pure functions ([`jobs::input`], [`http::fields`], [`http::query`]) check requests
//! and list every wrong field, and every error of every route is an RFC 9457 problem
//! ([`http::problem`]).
//!
//! Each handler takes the part of the state that it needs; [`deps`] alone puts the parts together.
//!
//! This room decides nothing about rates and runs no jobs: it calls the queue, the throttles and
//! the governor's journal, which the composition root passes in [`Deps`]. It renders no pages
//! either: the dashboard is files in `dashboard/`.

pub mod audit;
pub mod clock;
mod cron_masks;
pub mod cron_next;
pub mod crons;
pub mod dashboard;
pub mod decisions;
pub mod deps;
pub mod gates;
pub mod gateway;
pub mod groups;
pub mod health;
pub mod http;
pub mod jobs;
pub mod journal;
pub mod kinds;
pub mod lanes;
pub mod metrics;
pub mod notifications;
pub mod openapi;
pub mod pools;
pub mod postgres;
pub mod read_error;
pub mod recipients;
pub mod router;
mod routes;
pub mod serve;
pub mod starting;
pub mod stream;
pub mod tenants;
pub mod throttles;
pub mod waiting;
pub mod work;
pub mod workers;

pub use audit::entry::AuditEntry;
pub use deps::Deps;
pub use gates::accounts::waits_at_pool;
pub use gates::explain::{add_admission, add_pause, add_wait_of_job};
pub use http::auth::AuthToken;
pub use http::connections::Connections;
pub use http::jwt::algorithm::SigningAlgorithm;
pub use http::jwt::authenticate::JwtAuth;
pub use http::jwt::claims::ClaimRules;
pub use http::jwt::jwks::JwksSource;
pub use http::jwt::verify::{JwtRules, LEEWAY_S};
pub use http::limits::{DEFAULT_TENANT, own_throttles, seed as seed_limits, seed_api_limits};
pub use http::listen::{ListenError, addresses_of, bind};
pub use http::token_scope::{ALL_TENANTS, Permissions, TokenScope};
pub use http::token_secret::TokenSecret;
pub use jobs::show::why_job_waits;
pub use journal::{Decisions, NoDecisions};
pub use pools::add_limits;
pub use read_error::ReadError;
pub use serve::{serve, serve_metrics, serve_within};
pub use starting::StartingServer;
pub use stream::live::Live;
pub use throttles::held::{
    full_slots, has_free_token, has_idle_token, held_keys, wait_for_grant, wait_of_keys,
    with_those_above,
};
pub use throttles::obstacles::Obstacles;
pub use throttles::served;
