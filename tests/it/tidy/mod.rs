//! Source conventions: imports point down and form no cycle, a file is pure unless listed, a
//! technology appears only in its own files, and names and comments follow the conventions.
//!
//! [`sources`] reads the files, [`scanner`] finds the paths in them, and [`modules`] resolves these
//! paths; every other file holds one rule with its list. Everything depends on the standard library
//! alone, so `rustc --test` can compile it without the program.

mod circles;
mod conventions;
mod modules;
mod purity;
mod rooms;
mod scanner;
mod sleeps;
mod sources;
mod technologies;
