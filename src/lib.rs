//! Flyball: background work as fast as the systems that it calls can bear, and no faster.
//!
//! Jobs live in Postgres, in lanes; named throttles live in Redis, with knobs that a person can
//! turn while everything runs; a governor turns them automatically. `ARCHITECTURE.md` is the map of
//! the rooms below.
//!
//! Starting points for users of the library:
//!
//! - [`Runner::builder`] puts a runner with your kinds and schedules into your program;
//! - [`jobs::TypedHandler`] and [`jobs::Kinds::register_typed`] define a kind, [`jobs::HandlerError`] is
//!   its error, and [`jobs::Context`] is its interface to the running job;
//! - [`cron::NewSchedule`] creates jobs by the clock;
//! - [`testing::TestQueue`] runs due jobs inline in your tests.

// The façade: what a program that uses the library may rely on. ARCHITECTURE.md lists it, and
// tests/it/library.rs holds the two together.

#[warn(missing_docs)]
pub mod app;
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

#[doc(hidden)]
pub mod api;
#[doc(hidden)]
pub mod calibrate;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod control;
#[doc(hidden)]
pub mod demo;
#[doc(hidden)]
pub mod fakes;
#[doc(hidden)]
pub mod governor;
mod input;
#[doc(hidden)]
pub mod notify;
#[doc(hidden)]
pub mod outbound;
#[doc(hidden)]
pub mod postgres;
#[doc(hidden)]
pub mod providers;
#[doc(hidden)]
pub mod reindex;
#[doc(hidden)]
pub mod replay;
#[doc(hidden)]
pub mod runner;
#[doc(hidden)]
pub mod service;
#[doc(hidden)]
pub mod signals;
#[doc(hidden)]
pub mod simulate;
#[doc(hidden)]
pub mod stack;

pub use app::Runner;
pub use jobs::Client;

/// The examples of the README, compiled so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
