//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the
//! whole run.

mod support;

mod admission;
mod api;
mod calibrate;
mod cli;
mod cron;
mod dependencies;
mod docs;
mod fakes;
mod features;
mod gateway;
mod governor;
mod inbox;
mod jobs;
mod library;
mod notify;
mod outbound;
mod packaging;
mod postgres;
mod providers;
mod recipient;
mod reindex;
mod replay;
mod runner;
mod schema;
mod signals;
mod simulate;
mod throttle;
mod tidy;
