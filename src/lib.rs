//! Flyball: background work as fast as the systems that it calls can bear, and no faster.
//!
//! Jobs live in Postgres, in lanes; named throttles live in Redis, with knobs that a person can
//! turn while everything runs; a governor turns them automatically. `ARCHITECTURE.md` is the map of
//! the rooms below.
//!
//! Starting points for users of the library:
//!
//! - [`Runner::builder`] puts a runner with your kinds and schedules into your program;
//! - [`jobs::TypedHandler`] and [`jobs::Kinds::register_typed`] define a kind,
//!   [`jobs::HandlerError`] is its error, and [`jobs::Context`] is its interface to the running
//!   job;
//! - [`cron::NewSchedule`] creates jobs by the clock;
//! - [`testing::TestQueue`] runs due jobs inline in your tests.
//!
//! All features are on by default. A program that only enqueues or takes tokens needs none of them:
//! `docs/reference/features.md` lists what each adds.

// The façade, on which programs may rely. ARCHITECTURE.md lists it, and tests/it/library/facade.rs
// compares the two.

#[cfg(feature = "runner")]
#[warn(missing_docs)]
pub mod app;
#[cfg(feature = "runner")]
#[warn(missing_docs)]
pub mod config;
#[warn(missing_docs)]
pub mod cron;
#[warn(missing_docs)]
pub mod jobs;
#[warn(missing_docs)]
pub mod testing;
#[warn(missing_docs)]
pub mod throttle;

// The rooms behind it, open to the tests, the benchmarks and the binary of this package alone.

#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod admission;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod api;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod calibrate;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod control;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod gateway;
#[cfg(feature = "governor")]
#[doc(hidden)]
pub mod governor;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod inbox;
#[cfg_attr(
    not(feature = "cli"),
    allow(
        dead_code,
        reason = "the reader serves all entry points, of which fewer features have fewer"
    )
)]
mod input;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod notify;
#[cfg(feature = "http")]
#[doc(hidden)]
pub mod outbound;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod plot;
#[doc(hidden)]
pub mod postgres;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod providers;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod recipient;
#[cfg(feature = "reindex")]
#[doc(hidden)]
pub mod reindex;
/// The part of the room that the settings need in any case.
#[cfg(all(feature = "runner", not(feature = "reindex")))]
#[doc(hidden)]
pub mod reindex {
    pub mod catalogue;
    pub use catalogue::Catalogue;
}
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod replay;
#[cfg(feature = "runner")]
#[doc(hidden)]
pub mod runner;
#[doc(hidden)]
pub mod service;
#[cfg(feature = "governor")]
#[doc(hidden)]
pub mod signals;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod simulate;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod stack;

#[cfg(feature = "runner")]
pub use app::Runner;
pub use jobs::Client;

/// The examples of the README, compiled so that they stay true.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
