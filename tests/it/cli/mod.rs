//! The program as a person runs it.

mod commands;
mod services;
