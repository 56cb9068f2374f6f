//! The documents: WordNet's 117,659 entries, as the package `wordnet-base` (Debian, Ubuntu) or `wordnet` (Homebrew)
//! brings them.
//!
//! WordNet 3.0, copyright 2006 by Princeton University; its licence allows use, copying and distribution for any purpose
//! with the notice kept (`docs/demo.md`). Nothing of it is in this repository.

pub mod wordnet;

mod find;

pub use find::{FILES, find};
pub use wordnet::{Corpus, Document};
