//! Named throttles: rates shared by all processes, with knobs that a person can turn while everything runs.
//!
//! The law of the bucket is pure ([`bucket`]) and exists a second time as Lua for Redis; a property test holds the two
//! together. This room knows nothing of jobs: whoever wants to do work asks for tokens and is told how many it may spend
//! now and, if fewer than asked, for how long to wait and which level says so.

pub mod knobs;
pub mod name;
pub mod postgres;
pub mod store;

pub use knobs::{Knobs, Mode, OnStoreLoss};
pub use name::Name;
pub use store::{Answer, Ask, Change, Error, Grant, LaneAsk, Limit, Status, Store};
