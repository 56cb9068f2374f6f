//! The order in which lanes are served, on a real Postgres and a real Redis.

mod fixture;
mod limits;
mod ownership;
mod shares;
