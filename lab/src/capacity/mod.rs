//! The capacity model of `docs/scale.md`: what a load costs each part, and how many machines bear it.
//!
//! The model is pure. Its numbers come from `docs/benchmarks.md`; its tests hold the tables of the
//! page against it, and it against figures to which it was not fitted.

mod model;
mod table;

pub use table::{CapacityOptions, print};
