//! Flyball: background work that goes as fast as the things it touches can bear, and no faster.
//!
//! Jobs live in Postgres, in lanes; named throttles live in Redis, with knobs that a person can turn while everything
//! runs; a governor turns them by itself. `ARCHITECTURE.md` is the map of the rooms below.
//!
//! Where to begin as a user of the library:
//!
//! - [`Runner::builder`] puts a runner with your kinds and schedules into your program;
//! - [`jobs::TypedHandler`] and [`jobs::Kinds::register_typed`] are how a kind is written, [`jobs::Fault`] is how it fails, and
//!   [`jobs::Context`] is what it is given;
//! - [`cron::NewSchedule`] makes jobs by the clock;
//! - [`testing::TestQueue`] runs due jobs inline in your tests.

pub mod calibrate;
pub mod control;
pub mod cron;
pub mod fakes;
pub mod governor;
pub mod jobs;
pub mod notify;
pub mod outbound;
pub mod postgres;
pub mod providers;
pub mod reindex;
pub mod replay;
pub mod runner;
pub mod service;
pub mod signals;
pub mod simulate;
pub mod stack;
pub mod testing;
pub mod throttle;

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod demo;

pub use app::Runner;
pub use jobs::Client;

/// The examples of the README, compiled so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
