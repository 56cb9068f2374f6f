//! The queue store in Postgres: one statement per function, every statement a constant.
//!
//! Hot paths are single statements, so that a caller who is cancelled half-way cannot leave a transaction open on a pooled
//! connection. What the tables mean is told in `migrations/`.

mod cancel;
mod checkpoint;
mod claim;
mod connect;
mod depth;
mod doorbell;
mod enqueue;
mod error;
mod finish;
mod lanes;
mod maintain;
mod promote;
mod read;
mod rescue;
mod workers;

pub use checkpoint::PgCheckpoints;
pub use claim::{Claimed, LaneClaim};
pub use connect::{MIGRATOR, Queue};
pub use finish::{Ending, Finish};
pub use lanes::ReadyLane;
pub use maintain::Maintained;
pub use rescue::Rescued;
pub use workers::{NewWorker, Pulse};

/// Every statement of this folder, so that a test can prepare each on the migrated schema.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("cancel", cancel::CANCEL),
    ("requeue", cancel::REQUEUE),
    ("checkpoint load", checkpoint::LOAD),
    ("checkpoint store", checkpoint::STORE),
    ("claim", claim::CLAIM),
    ("clock", depth::CLOCK),
    ("depths", depth::DEPTHS),
    ("enqueue", enqueue::ENQUEUE),
    ("finish", finish::FINISH),
    ("lanes", lanes::LANES),
    ("adopt", lanes::ADOPT),
    ("sleep", lanes::SLEEP),
    ("wake", lanes::WAKE),
    ("due days", maintain::ENSURE_DAYS),
    ("old days", maintain::OLD_DAYS),
    ("prune", maintain::PRUNE_DAY),
    ("forget unique keys", maintain::FORGET_UNIQUE),
    ("forget failures", maintain::FORGET_FAILURES),
    ("forget workers", maintain::FORGET_WORKERS),
    ("promote", promote::PROMOTE),
    ("get", read::GET),
    ("attempts", read::ATTEMPTS),
    ("list", read::LIST),
    ("list ready", read::LIST_READY),
    ("list running", read::LIST_RUNNING),
    ("list scheduled", read::LIST_SCHEDULED),
    ("list dead", read::LIST_DEAD),
    ("failures", read::FAILURES),
    ("rescue", rescue::RESCUE),
    ("register", workers::REGISTER),
    ("register kinds", workers::REGISTER_KINDS),
    ("pulse", workers::PULSE),
    ("live", workers::LIVE),
    ("hand back", workers::HAND_BACK),
    ("disown", workers::DISOWN),
    ("stop", workers::STOP),
];
