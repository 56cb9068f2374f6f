//! Drivers of message providers, and pools of accounts.

mod conformance;
mod pool;
