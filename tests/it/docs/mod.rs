//! The pages under `docs/`, compared with the program.

mod command_line;
mod handler;
mod interfaces;
mod languages;
mod page;
mod pages;
mod providers;
mod settings;
mod verbs;

pub use page::{blocks, code, read, rows, section};
