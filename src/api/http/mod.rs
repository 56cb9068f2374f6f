//! Connections, authentication, limits, bodies, queries and problems: the common part of all
//! routes.

pub mod auth;
pub mod body;
pub mod budget;
pub mod caller;
mod code;
pub mod connection_slots;
pub mod connections;
pub mod denied;
pub mod encoding;
pub mod event_stream;
pub mod fields;
pub mod gate;
pub mod guard;
pub mod jwt;
pub mod lagging;
pub mod limits;
pub mod link;
pub mod listen;
pub mod login;
pub mod metrics;
pub mod operate;
pub mod places;
pub mod problem;
pub mod query;
pub mod remaining;
pub mod scopes;
pub mod server_span;
pub mod sessions;
pub mod timeout;
pub mod token_metrics;
pub mod token_scope;
pub mod token_secret;
