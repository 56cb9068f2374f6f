//! The integration tests: one binary, one private stack of Postgres, Redis and Prometheus for the whole run.

mod outbound;
mod throttle;
mod throttle_redis;
mod throttle_same_law;
