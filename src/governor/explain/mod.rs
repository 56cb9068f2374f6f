//! Explanations: one plain sentence and the numbers behind it, for every plan, and the governor as
//! people and pages see it.
//!
//! Everything here only reads.

pub mod cause;
pub mod format;
pub mod limits;
mod readings;
pub(in crate::governor) mod reason;
mod remedy;
mod terms;
pub mod view;
pub mod why;

pub use cause::Cause;
pub use format::{number, seconds, shell_word};
