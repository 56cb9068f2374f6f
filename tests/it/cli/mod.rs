//! The program as a person runs it.

mod errors;
mod jobs;
mod serve;
mod services;
mod shell;
mod throttles;
