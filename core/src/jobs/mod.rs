//! Jobs, lanes and their outcomes; the queue store in Postgres.
//!
//! This room covers the waiting, running and ending of jobs. It knows neither rates (see
//! [`crate::throttle`]) nor the work of a handler.

#[doc(hidden)]
pub mod activity;
#[doc(hidden)]
pub mod check;
pub mod claim;
mod claimed_days;
pub mod context;
pub mod depth_counter;
pub mod ending;
pub mod group;
pub mod handler;
pub mod handler_error;
pub mod job;
pub mod kinds;
pub mod operate;
pub mod outcome;
pub mod postgres;
pub mod ready_lane;
pub mod record;
pub mod redact;
pub mod remote;
pub mod retry;
pub mod secret;
pub mod serving;
pub mod shard;
pub mod tally;
pub mod typed;
pub mod webhook;

pub use claim::{Claimed, LaneClaim, LaneCursor};
pub(crate) use claimed_days::ClaimedDays;
pub use context::{AttemptReport, Checkpoint, CheckpointError, Checkpoints, Context, JobInfo};
pub use ending::{Ending, Finish};
pub use group::*;
pub use handler::{Handler, PreparedJob, TenantRule};
pub use handler_error::{HandlerError, IntoOutcome};
pub use job::{AFTER_MAX, AfterFailure, Job, NewJob, State, TAG_BYTES_MAX, TAGS_MAX, WEBHOOKS};
pub use kinds::{Kinds, Tuning};
pub use operate::*;
pub use outcome::{OnAmbiguous, Outcome};
pub use postgres::{Client, NewMessage, Queue, SentMessage};
pub use ready_lane::{ReadyLane, ReadyPriorities};
pub use record::*;
pub use retry::JobRetry;
pub use secret::{KeysError, SecretKeys};
pub use serving::WorkerCapabilities;
pub use shard::{SHARDS, lanes_of, shard_of};
pub use tally::Tally;
pub use typed::TypedHandler;

pub use crate::input::Issue;
pub use crate::throttle::{Quota, Scope};
