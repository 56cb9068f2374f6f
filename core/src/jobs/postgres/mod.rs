//! The queue store in Postgres: one statement per function, every statement a constant.
//!
//! Hot paths are single statements, so that a caller that is cancelled half-way cannot leave a
//! transaction open on a pooled connection. The tables are documented in
//! `core/migrations/0001_schema.sql`.

mod after;
mod cancel;
mod checkpoint;
mod claim;
mod claim_failures;
mod client;
mod connect;
mod costs;
mod counts;
mod deepest;
mod depth;
mod depth_cache;
mod depth_throttles;
mod drop;
mod due;
mod enqueue;
mod error;
mod failing;
mod feedback;
mod finish;
mod groups;
mod job_indexes;
mod kinds;
mod lagging;
mod lane;
mod lane_arrivals;
mod lanes;
mod list;
mod listen;
mod lock_holders;
mod look;
mod maintenance;
mod migrate;
mod notify;
mod once;
mod overdue;
mod pause;
mod promote;
mod publish;
mod read;
mod release;
mod remote;
mod requeue;
mod rescue;
pub(crate) mod secrets;
mod shards;
mod states;
mod tenants;
mod unserved;
mod update;
mod workers;

pub use after::ReleasedJobs;
pub use checkpoint::PgCheckpoints;
pub use claim::Batch;
pub use claim_failures::ClaimFailure;
pub use client::Client;
pub use connect::Queue;
pub use costs::{EndedAttempts, KindCost};
pub use depth::Sweeper;
pub use depth_cache::Depths;
pub use due::DueParts;
pub(crate) use enqueue::refuse_unstorable;
pub use error::{DISK_FULL, DISK_FULL_REMEDY, READ_ONLY, READ_ONLY_REMEDY, is_disk_full, within};
pub use failing::CountedWorkers;
pub use feedback::{Feedbacks, WorkerReport};
pub use groups::{GroupCounts, Settled, wants_end};
pub use lagging::{LaggingError, with_lag};
pub use lanes::{Arrivals, Slice};
pub use lock_holders::LockHolder;
pub use look::SeenJob;
pub use maintenance::{FailedStep, KindRetention, MaintenanceReport, Retention};
pub use migrate::{MIGRATOR, Schema};
pub use notify::{NewMessage, SentMessage};
pub use overdue::OverdueHousekeeping;
pub use promote::{Promoted, PromotionCursor};
pub(crate) use read::{retry, waits};
pub use release::Released;
pub use remote::{CountedJob, HandOver, HandedRow, HeldLease, JobToHand, RemoteRow};
pub use rescue::Rescued;
pub use secrets::{NeededKey, nonce};
pub use unserved::UnservedSweeper;
pub use workers::{NewWorker, Pulse};

pub use crate::jobs::{Claimed, Ending, Finish, LaneClaim, LaneCursor, Tally};

/// Every statement of this folder, so that a test can prepare each on the migrated schema.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("cancel", cancel::CANCEL),
    ("cancel jobs", cancel::CANCEL_JOBS),
    ("carry out cancels", cancel::CARRY_OUT),
    ("retry", requeue::RETRY),
    ("discard", requeue::DISCARD),
    ("reschedule", requeue::RESCHEDULE),
    ("update", update::UPDATE),
    ("kind and tenant of job", update::KIND_AND_TENANT),
    ("requeue dead", requeue::REQUEUE_DEAD),
    ("discard dead", requeue::DISCARD_DEAD),
    ("pause all", pause::PAUSE_ALL),
    ("resume all", pause::RESUME_ALL),
    ("paused", pause::PAUSED),
    ("status of the queue", pause::STATUS),
    ("set weight", lane::SET_WEIGHT),
    ("purge lane", lane::PURGE_LANE),
    ("checkpoint load", checkpoint::LOAD),
    ("checkpoint store", checkpoint::STORE),
    ("claim", claim::CLAIM),
    ("claim looked at", claim::CLAIM_LOOKED_AT),
    ("read claimed", claim::READ_CLAIMED),
    ("look", look::LOOK),
    ("end missing", claim::END_MISSING),
    ("clock", depth::CLOCK),
    ("depths", depth::DEPTHS),
    ("ended jobs", counts::ENDED),
    ("deepest lanes", deepest::DEEPEST),
    ("lanes by key", deepest::BY_KEY),
    ("first lanes by key", deepest::BY_KEY_FIRST),
    ("one lane", deepest::ONE_KEY),
    ("lane arrivals", lane_arrivals::LANE_ARRIVALS),
    ("walk all", depth::WALK_ALL),
    ("walk ready", depth::WALK_READY),
    ("walk scheduled", depth::WALK_SCHEDULED),
    ("walk running", depth::WALK_RUNNING),
    ("walk dead", depth::WALK_DEAD),
    ("lanes' throttles", depth::NAMES),
    ("page of lanes", depth::PAGE_OF_LANES),
    ("written lanes", depth::WRITTEN_LANES),
    ("written throttles", depth::WRITTEN_THROTTLES),
    ("write lanes", depth::WRITE_LANES),
    ("write throttles", depth_throttles::WRITE_THROTTLES),
    ("write sweep", depth::WRITE_SWEEP),
    ("drop ready", drop::DROP_READY),
    ("drop looked at", drop::DROP_LOOKED_AT),
    ("enqueue", enqueue::ENQUEUE),
    ("enqueue one", enqueue::ENQUEUE_ONE),
    ("enqueue as", enqueue::ENQUEUE_AS),
    ("enqueue once", once::ENQUEUE_ONCE),
    ("complete", finish::COMPLETE),
    ("complete with result", finish::COMPLETE_WITH_RESULT),
    ("finish", finish::FINISH),
    ("create group", groups::CREATE),
    ("create group as", groups::CREATE_AS),
    ("seal group", groups::SEAL),
    ("seal group of", groups::SEAL_OF),
    ("show group", groups::SHOW),
    ("list groups", groups::LIST),
    ("list groups of tenant", groups::LIST_OF_TENANT),
    ("list filtered groups", groups::LIST_FILTERED),
    (
        "list filtered groups of tenant",
        groups::LIST_FILTERED_OF_TENANT,
    ),
    ("list open groups", groups::LIST_OPEN),
    ("count open groups", groups::COUNT_OPEN),
    ("cancel group", groups::CANCEL),
    ("settle groups", groups::SETTLE),
    ("counts of groups", groups::COUNTS),
    ("release waiting", after::RELEASE),
    ("forget groups", groups::FORGET),
    ("read reports", feedback::READ_REPORTS),
    ("delete old reports", feedback::DELETE_OLD_REPORTS),
    ("sweep", lanes::SWEEP),
    ("arrivals", lanes::ARRIVALS),
    ("writing", lanes::WRITING),
    ("newest", lanes::NEWEST_JOB_ID),
    ("known names", lanes::KNOWN),
    ("names", lanes::NAMES),
    ("adopt", lanes::ADOPT),
    ("weights", lanes::WEIGHTS),
    ("sleep", lanes::SLEEP),
    ("wake", lanes::WAKE),
    ("due days", maintenance::ENSURE_DAYS),
    ("old days", maintenance::OLD_DAYS),
    ("prune", maintenance::PRUNE_DAY),
    ("thin", maintenance::THIN_DAY),
    ("forget unique keys", maintenance::FORGET_UNIQUE),
    ("forget failures", maintenance::FORGET_FAILURES),
    ("forget audit", maintenance::FORGET_AUDIT),
    ("forget workers", maintenance::FORGET_WORKERS),
    ("forget cancels", maintenance::FORGET_CANCELS),
    ("forget unreadable leases", maintenance::FORGET_UNREADABLE),
    ("forget dead", maintenance::FORGET_DEAD),
    ("retentions of kinds", maintenance::KIND_RETENTIONS),
    ("expire jobs", maintenance::EXPIRE_JOBS),
    ("expire dead", maintenance::EXPIRE_DEAD),
    ("expire other dead", maintenance::EXPIRE_OTHER_DEAD),
    ("set retention", maintenance::SET_RETENTION),
    ("forget lanes", maintenance::FORGET_LANES),
    ("forget depths", maintenance::FORGET_DEPTHS),
    ("forget batches", maintenance::FORGET_BATCHES),
    ("lock holders", lock_holders::LOCK_HOLDERS),
    ("overdue housekeeping", overdue::OVERDUE),
    ("kinds", kinds::KINDS),
    ("register kind", kinds::REGISTER_KIND),
    ("kind", kinds::KIND),
    ("learn costs", costs::LEARN),
    ("mean costs", costs::MEANS),
    ("due work", due::DUE),
    ("what the database lacks", migrate::LACKING),
    ("applied migrations", migrate::APPLIED),
    ("versions of the schema", migrate::VERSIONS),
    ("oldest program of the schema", migrate::OLDEST_PROGRAM),
    ("apply migration", migrate::APPLY),
    ("promote", promote::PROMOTE),
    ("promote crowd", promote::PROMOTE_CROWD),
    ("release", release::RELEASE),
    ("urgent", release::URGENT),
    ("set tenants' queues", tenants::SET_QUEUE_MAX),
    ("sweep pending", tenants::SWEEP_PENDING),
    ("forget requests", tenants::FORGET_REQUESTS),
    ("settle expansions", tenants::SETTLE_EXPANSIONS),
    ("notify", notify::NOTIFY),
    ("as tenant", notify::AS_TENANT),
    ("publish to a channel", publish::PUBLISH),
    ("get", read::GET),
    ("attempts", read::ATTEMPTS),
    ("list", list::LIST),
    ("list job indexes", job_indexes::LIST),
    ("add job index", job_indexes::ADD),
    ("remove job index", job_indexes::REMOVE),
    ("missing parts of a job index", job_indexes::MISSING),
    ("failures", read::FAILURES),
    ("failing", failing::FAILING),
    ("workers and failing", failing::WORKERS_AND_FAILING),
    ("last error", failing::LAST_ERROR),
    ("was lost", read::WAS_LOST),
    ("tenant of job", secrets::TENANT_OF),
    ("store encrypted arguments", secrets::STORE_ENCRYPTED_ARGS),
    ("needed keys", secrets::KEYS_NEEDED),
    ("dead workers", rescue::DEAD_WORKERS),
    ("orphaned", rescue::ORPHANED),
    ("rescue", rescue::RESCUE),
    ("rescue expired", rescue::RESCUE_EXPIRED),
    ("register broker", remote::REGISTER_BROKER),
    ("register remote worker", remote::REGISTER_REMOTE),
    ("hand over", remote::HAND_OVER),
    ("held lease", remote::HELD),
    ("beat of lease", remote::BEAT),
    ("counted jobs", remote::COUNTED),
    ("adopt leases", remote::ADOPT),
    ("forget results", maintenance::FORGET_RESULTS),
    ("hold shards", shards::HOLD_SHARDS),
    ("release shards", shards::RELEASE),
    ("let shards go", shards::LET_GO),
    ("leave shards", shards::LEAVE),
    ("unserved", unserved::UNSERVED),
    ("walk unserved", unserved::WALK),
    ("write unserved", unserved::WRITE),
    ("has met unserved", unserved::HAS_MET),
    ("register", workers::REGISTER),
    ("register kinds", workers::REGISTER_KINDS),
    ("declare kinds", workers::DECLARE_KINDS),
    ("offer", workers::OFFER),
    ("serving", workers::SERVING),
    ("settings of others", workers::SETTINGS_OF_OTHERS),
    ("met unserved", workers::MET_UNSERVED),
    ("note claim failure", claim_failures::NOTE),
    ("claim failures", claim_failures::CURRENT),
    ("put back", workers::PUT_BACK),
    ("pulse", workers::PULSE),
    ("live", workers::LIVE),
    ("hand back", workers::HAND_BACK),
    ("disown", workers::DISOWN),
    ("old claims", workers::OLD_CLAIMS),
    ("stop", workers::STOP),
];
