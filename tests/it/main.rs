//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the whole run.
mod governor;
mod signals;
