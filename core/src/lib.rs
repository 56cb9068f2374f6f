//! The lower half of the crate [flyball](https://docs.rs/flyball), which exports these rooms.
//!
//! The governor, and all that is built on it, is in the upper crate, so that a change there compiles
//! nothing here. Programs depend on `flyball` and not on this crate: `ARCHITECTURE.md` has the map.

// The rooms of the façade of `flyball`.

#[cfg(feature = "runner")]
#[warn(missing_docs)]
pub mod config;
#[warn(missing_docs)]
pub mod cron;
#[warn(missing_docs)]
pub mod jobs;
#[cfg(feature = "notifications")]
#[warn(missing_docs)]
pub mod messages;
#[warn(missing_docs)]
pub mod testing;
#[warn(missing_docs)]
pub mod throttle;

// The rooms behind it.

#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod admission;
#[doc(hidden)]
pub mod control;
#[cfg(feature = "api")]
#[doc(hidden)]
pub mod gateway;
#[cfg(feature = "notifications")]
#[doc(hidden)]
pub mod inbox;
#[doc(hidden)]
pub mod input;
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
pub mod stack;
#[doc(hidden)]
pub mod trace;

pub use jobs::Client;
