//! Named throttles: rates shared by all processes, with knobs that a person can turn while
//! everything runs.
//!
//! The law of the bucket is pure ([`bucket`]) and exists a second time as Lua for Redis; a property
//! test checks that the two agree. This room knows nothing of jobs: a caller asks for tokens, and
//! the answer is the number that it may spend now and, if that is fewer than asked for, the wait
//! and the level that limits.

pub mod acquire;
pub mod admission;
pub mod api_limit;
pub mod bucket;
pub mod caller_knobs;
pub mod chain;
pub mod cost;
pub mod direct_change;
pub mod file;
pub mod foreign;
pub mod held;
pub mod holds;
mod knob_input;
pub mod knobs;
pub mod learned;
pub mod lease;
pub mod leased;
mod listing;
pub mod loss;
mod makers;
pub mod memory;
pub mod memory_notes;
mod missing;
mod modes;
pub mod name;
mod new_name;
pub mod notes;
pub mod on_demand;
pub mod pattern_store;
pub mod postgres;
pub mod quota_window;
mod rate_limit;
pub mod redis;
pub mod refusal;
pub mod restored;
pub mod rolling_window;
pub mod rules;
mod scope;
pub mod seed;
pub mod serve;
pub mod status;
pub mod store;
pub mod take;
pub mod tenant;
pub mod throttle_refusal;
pub mod tree;

pub use self::redis::{LUA_TEXT, RedisStore, reason_meaning};
pub use acquire::{
    AcquireRequest, AcquireResponse, Grant, Holder, LaneRequest, Limit, MAX_KEY_BYTES,
    MAX_LANES_PER_ASK, check_key,
};
pub use admission::{is_admission, is_of_admission};
pub use api_limit::{ApiLimit, OWN_API};
pub use caller_knobs::CallerKnobs;
pub use cost::{believed_cost, check_cost, check_settled, check_wanted, first_shared};
pub use file::KnobsFile;
pub use held::{HeldKeys, KeyBacklog, OverQuotaKey, SlowestKey};
pub use holds::{GUEST, MAX_HOLDERS};
pub use knobs::{
    Knobs, MAX_COST, Mode, On429, OnBacklog, OnStoreLoss, OverLimit, concurrency_number,
};
pub use leased::LeasedStore;
pub use listing::Listing;
pub use makers::Makers;
pub use memory::MemoryStore;
pub use memory_notes::MemoryNotes;
pub use missing::{
    ANOTHER_THROTTLE, made_from, nearly_called, no_throttle, no_throttle_of_job, refused_part,
};
pub use name::Name;
pub use notes::{Notes, NotesSnapshot};
pub use pattern_store::PatternStore;
pub use rate_limit::RateLimit;
pub use refusal::{
    KeyOutcomes, KeyState, MAX_PAUSE, Quota, RefusalEffect, SHARED_PAUSE_MAX, UpstreamRefusal,
};
pub use rules::KnobProblem;
pub use scope::Scope;
pub use seed::seed;
pub use status::{RefusalPause, Status, WrittenKnobs};
pub use store::{Change, Error, Refund, Store};
pub use take::{CallKnobs, TokenClient};
