//! Destinations of documents: they store documents in bulk and answer for each one.

mod alias;
mod elastic;
mod postgres;
mod written;

pub use elastic::ElasticSink;
pub use postgres::PostgresSink;
pub use written::{Sink, WriteError, WriteOutcome};
