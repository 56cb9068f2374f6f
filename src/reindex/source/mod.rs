//! Sources of documents: they are read in pages, in the order of a key.

mod page;
mod postgres;

pub use page::{Error, Page, Source};
pub use postgres::PostgresSource;
