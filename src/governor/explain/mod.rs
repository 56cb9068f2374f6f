//! Explanations: one plain sentence and the numbers behind it, for every plan, and the governor as
//! people and pages see it.
//!
//! Everything here only reads.

pub(in crate::governor) mod cause;
pub mod format;
pub(in crate::governor) mod reason;
mod terms;
pub mod view;
pub mod why;

pub use format::{number, seconds};
