//! Flyball: background work that goes as fast as the things it touches can bear, and no faster.
//!
//! Jobs live in Postgres, in lanes; named throttles live in Redis, with knobs that a person can turn while everything
//! runs; a governor turns them by itself. `ARCHITECTURE.md` is the map of the rooms below.

pub mod control;
pub mod governor;
pub mod jobs;
pub mod outbound;
pub mod reindex;
pub mod runner;
pub mod service;
pub mod signals;
pub mod stack;
pub mod throttle;

pub mod api;
pub mod app;
pub mod cli;
pub mod config;
pub mod demo;

/// The examples of the README, compiled so that they stay true.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
