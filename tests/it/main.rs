//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the whole run.

mod support;

mod api;
mod chaos;
mod cli;
mod conservation;
mod cron;
mod demo;
mod depth;
mod docs;
mod docs_handler;
mod enqueue;
mod enqueue_replace;
mod fairness;
mod governor;
mod housekeeping;
mod jobs;
mod library;
mod operate;
mod operate_doors;
mod outbound;
mod packaging;
mod plans;
mod pooler;
mod reindex;
mod reindex_fakes;
mod reindex_postgres;
mod runner;
mod services;
mod signals;
mod throttle;
mod throttle_cluster;
mod throttle_concurrency;
mod throttle_loss;
mod throttle_redis;
mod throttle_same_law;
mod tidy;

mod process;
mod process_governor;
mod process_stores;
