//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the whole run.

mod support;

mod services;
mod reindex;
mod reindex_fakes;
mod reindex_postgres;
mod demo;
