//! The pages under `docs/`, compared with the program.

mod handler;
mod languages;
mod pages;
mod providers;

pub use pages::{blocks, code, read, rows, section};
