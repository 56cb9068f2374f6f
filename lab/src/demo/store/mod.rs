//! The demo's search store: a process that speaks Elasticsearch's `_bulk` and really indexes.
//!
//! Its engine is a private Postgres. Each document becomes a `tsvector` under a GIN index (updated
//! at once, `fastupdate=off`) and trigrams under a GiST index. This costs the engine about half a
//! millisecond for a few dictionary entries, and ten times as much for a long thread of them. The
//! engine has few connections; further requests queue, as in the write thread pool of a search
//! engine. Overload therefore slows it down for real reasons.
//!
//! It exports the number of running and queued bulk requests as a short exponential average,
//! similar to a load average ([`load`]). Its documents survive `kill -9`, but not a power cut,
//! because it is a demo.
//!
//! Not supported: mappings, analysis settings, updates by script, aliases, clusters.

pub mod bulk;
pub mod load;

mod answer;
mod http;
mod postgres;
mod serve;

pub use serve::serve;
