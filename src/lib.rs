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
#[doc(inline)]
pub use flyball_core::config;
#[cfg(feature = "notifications")]
#[doc(inline)]
pub use flyball_core::messages;
#[doc(inline)]
pub use flyball_core::{cron, jobs, testing, throttle};

// The rooms behind it, open to the tests, the benchmarks and the binary of this package alone.

#[cfg(feature = "api")]
#[doc(hidden)]
pub mod api;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod calibrate;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "governor")]
#[doc(hidden)]
pub mod governor;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod replay;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod simulate;

#[cfg(feature = "api")]
#[doc(hidden)]
pub use flyball_core::gateway;
#[cfg(feature = "http")]
#[doc(hidden)]
pub use flyball_core::outbound;
#[cfg(feature = "governor")]
#[doc(hidden)]
pub use flyball_core::signals;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub use flyball_core::{admission, inbox, notify, providers, recipient};
#[doc(hidden)]
pub use flyball_core::{control, input, postgres, service, trace};
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use flyball_core::{plot, stack};
#[cfg(feature = "runner")]
#[doc(hidden)]
pub use flyball_core::{reindex, runner};

#[cfg(feature = "runner")]
pub use app::Runner;
pub use jobs::Client;

/// The examples of the README, compiled so that they stay true.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
