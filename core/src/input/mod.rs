//! Reading of all input: arguments of jobs, bodies and queries of requests, and settings.
//!
//! One [`Reader`] reads an object field by field, whether it was JSON or TOML, and reports every
//! problem as an [`Issue`] in one wording: `must be …, not …` or `is not a known …; allowed: …`.
//! [`json`] parses a text of which nothing may be lost on the way.

pub mod file;
pub mod issue;
pub mod json;
pub mod long_integers;
pub mod patterns;
pub mod reader;
pub mod toml;
pub mod wording;

#[cfg(any(test, feature = "pinned"))]
pub mod pinned;

pub use file::{FileError, FileProblem};
pub use issue::{Issue, listed, pointer};
pub use reader::Reader;
pub use toml::TomlDocument;
