//! The documents: WordNet's 117,659 entries, from the package `wordnet-base` (Debian, Ubuntu) or
//! `wordnet` (Homebrew).
//!
//! WordNet 3.0, copyright 2006 by Princeton University; its licence allows use, copying and
//! distribution for any purpose with the notice kept (`docs/demo.md`). This repository contains no
//! part of it.

pub mod wordnet;

mod find;

pub use find::{FILES, find};
pub use wordnet::{Corpus, Document};
