//! The record of messages on a real Postgres.

mod deadlines;
mod fixture;
mod recipients;
mod states;
