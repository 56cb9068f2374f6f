//! Sources of documents: they are read in pages, in the order of a key.

mod page;
mod postgres;

pub use page::{DocumentPage, DocumentSource, Error};
pub use postgres::PostgresSource;
