//! Sources of documents: they are read in pages, in the order of a key.

#[cfg(feature = "mongodb")]
pub mod mongodb;

mod page;
mod postgres;

#[cfg(feature = "mongodb")]
pub use mongodb::MongoSource;
pub use page::{ChangePage, DocumentPage, DocumentSource, Error};
pub use postgres::PostgresSource;
