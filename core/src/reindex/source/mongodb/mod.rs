//! A collection in MongoDB as a source: a scan by `_id`, each page one query, and the collection's
//! change stream.

mod changed;
mod conversion;
mod error;
mod scan;
mod source;

pub use conversion::{document_id, document_json, lookalikes};
pub use source::MongoSource;
