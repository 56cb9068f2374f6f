//! The demo's search store: a process that speaks Elasticsearch's `_bulk` and really indexes.
//!
//! Its engine is a private Postgres of its own: each document becomes a `tsvector` under a GIN index (written at once,
//! `fastupdate=off`) and trigrams under a GiST index, which costs the engine about half a millisecond for some dictionary
//! entries and ten times as much for a long thread of them. It has few engine connections; further requests queue, as
//! the threads of a search engine's write pool do. So it becomes slow when it is pushed, for real reasons.
//!
//! It exports how many bulk requests are running or queued as a short exponential average, like a load average
//! ([`load`]). Its documents survive `kill -9`, not a power cut: it is a demo.
//!
//! Left out: mappings, analysis settings, updates by script, aliases, clusters.

pub mod bulk;
pub mod load;

mod answer;
mod http;
mod postgres;
mod serve;

pub use serve::serve;
