//! The pages under `docs/`, compared with the program.

mod command_line;
mod doors;
mod handler;
mod interfaces;
mod languages;
mod page;
mod pages;
mod providers;
mod settings;

pub use page::{blocks, code, read, rows, section};
