//! Where documents go: anything that stores them in bulk and answers for each one.

mod elastic;
mod postgres;
mod written;

pub use elastic::ElasticSink;
pub use postgres::PostgresSink;
pub use written::{Sink, Trouble, Written};
