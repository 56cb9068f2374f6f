//! The program on the command line.

mod doctor;
mod dry_run;
mod errors;
mod files;
mod groups;
mod job_fields;
mod jobs;
mod messages;
mod operators;
mod recipient_rules;
mod recipients;
mod redis_refuses;
mod secrets;
mod serve;
mod services;
mod shell;
mod start_checks;
mod streams;
mod throttle_names;
mod throttles;
