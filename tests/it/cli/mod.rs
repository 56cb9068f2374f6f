//! The program on the command line.

mod errors;
mod jobs;
mod messages;
mod recipients;
mod serve;
mod services;
mod shell;
mod throttles;
