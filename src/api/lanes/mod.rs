//! Lanes of a throttle, one per rate-limit key.

pub mod keys;
pub mod lane;
pub mod list;
