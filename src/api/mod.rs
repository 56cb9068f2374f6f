//! The HTTP interface: the API, the live stream, the metrics and the dashboard's files.
//!
//! One file per noun holds its routes; [`router`] lists all of them on one page and `/openapi.json`
//! is generated from the same declarations. Pure functions ([`jobs_input`], [`fields`], [`query`])
//! check requests and list every wrong field, and every error of every route is an RFC 9457 problem
//! ([`problem`]).
//!
//! This room decides nothing about rates and runs no jobs: it calls the queue, the throttles and
//! the governor's journal, which the composition root passes in [`Deps`]. It renders no pages
//! either: the dashboard is files in `dashboard/`.

pub mod acquire;
pub mod assets;
pub mod audit;
pub mod auth;
pub mod body;
pub mod budget;
pub mod clock;
pub mod connection_slots;
pub mod connections;
pub mod crons;
pub mod decisions;
pub mod denied;
pub mod fields;
pub mod gate;
pub mod guard;
pub mod health;
pub mod held;
pub mod jobs;
pub mod jobs_input;
pub mod json;
pub mod keys;
pub mod lane_list;
pub mod lanes;
pub mod limits;
pub mod listen;
pub mod live;
pub mod many;
pub mod metrics;
pub mod moves;
pub mod notifications;
pub mod notifications_input;
pub mod obstacles;
pub mod openapi;
mod openapi_bounds;
mod openapi_examples;
mod openapi_problems;
pub mod operate;
mod operation_id;
pub mod pace;
pub mod pause;
pub mod permissions;
pub mod pools;
pub mod postgres;
pub mod problem;
pub mod provider_events;
pub mod query;
pub mod read_error;
pub mod redact;
pub mod router;
pub mod sample;
pub mod scopes;
pub mod serve;
pub mod sessions;
pub mod state;
pub mod stream;
pub mod suppressions;
pub mod throttle_delete;
pub mod throttle_view;
pub mod throttles;
pub mod timeout;
pub mod wait_queue;
pub mod waiting;
pub mod workers;

pub use audit::AuditEntry;
pub use auth::{AuthToken, TokenSecret};
pub use connections::Connections;
pub use held::{closed_above, held_keys};
pub use jobs::why_job_waits;
pub use limits::{DEFAULT_TENANT, seed as seed_limits};
pub use listen::{ListenError, bind};
pub use live::Live;
pub use obstacles::Obstacles;
pub use read_error::ReadError;
pub use scopes::{Permissions, TokenScope};
pub use serve::{serve, serve_within};
pub use state::{
    Decision, Decisions, Deps, FindingState, GovernorState, ManualOverrideState, NoDecisions,
    QuotaState, ShadowState, SignalState, Trip,
};
