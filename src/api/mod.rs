//! The HTTP front door: the API, the live stream, the metrics and the dashboard's files.
//!
//! One file per noun holds its routes; [`router`] lists all of them on one page and `/openapi.json` is generated from the
//! same declarations. What a request says is checked by pure functions ([`jobs_input`], [`fields`], [`query`]) that list
//! every wrong field, and every error of every route is an RFC 9457 problem ([`problem`]).
//!
//! This room decides nothing about rates and runs no jobs: it asks the queue, the throttles and the governor's journal
//! that the composition root hands over in [`Deps`]. It renders no page either: the dashboard is files in `dashboard/`.

pub mod acquire;
pub mod assets;
pub mod audit;
pub mod auth;
pub mod body;
pub mod budget;
pub mod clock;
pub mod connections;
pub mod crons;
pub mod crowd;
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
pub mod leave;
pub mod limits;
pub mod line;
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
pub mod pace;
pub mod pause;
pub mod pools;
pub mod postgres;
pub mod problem;
pub mod provider_events;
pub mod query;
pub mod router;
pub mod sample;
pub mod scopes;
pub mod serve;
pub mod sessions;
pub mod shown;
pub mod state;
pub mod stream;
pub mod suppressions;
pub mod throttle_delete;
pub mod throttle_view;
pub mod throttles;
pub mod waiting;
pub mod within;
pub mod workers;

pub use audit::Entry;
pub use auth::{Secret, Token};
pub use connections::Connections;
pub use held::{closed_above, held_keys};
pub use jobs::why_job_waits;
pub use limits::{DEFAULT_TENANT, seed as seed_limits};
pub use listen::{ListenError, bind};
pub use live::Live;
pub use obstacles::Obstacles;
pub use scopes::{Leave, TokenScope};
pub use serve::{serve, serve_within};
pub use state::{
    Decision, Decisions, Deps, FindingState, GovernorState, HandState, NoDecisions, QuotaState,
    ReadError, ShadowState, SignalState, Trip,
};
