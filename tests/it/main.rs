//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the whole run.

mod support;

mod api;
mod chaos;
mod cli;
mod demo;
mod docs;
mod docs_handler;
mod governor;
mod jobs;
mod outbound;
mod packaging;
mod reindex;
mod reindex_fakes;
mod reindex_postgres;
mod runner;
mod services;
mod signals;
mod throttle;
mod throttle_redis;
mod throttle_same_law;
mod tidy;

mod process;
mod process_governor;
mod process_stores;
