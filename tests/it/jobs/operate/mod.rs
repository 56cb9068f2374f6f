//! Operations on jobs that exist, on a real Postgres.

mod filters;
mod fixture;
mod lanes;
mod many_jobs;
mod one_job;
mod search;
mod unique_keys;
mod update;
mod update_races;
