//! Keeps the sources in order: imports point down only and in no circle, a file is pure unless it is
//! listed, a technology appears in its own files only, and names and comments keep the conventions.
//!
//! [`sources`] reads the files, [`scanner`] finds the paths that they name, and [`modules`] resolves
//! these; each other file holds one rule with its list. All of it depends on the standard library
//! alone, so that `rustc --test` compiles it without the program.

mod circles;
mod conventions;
mod modules;
mod purity;
mod rooms;
mod scanner;
mod sources;
mod technologies;
