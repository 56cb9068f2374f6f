//! Reindexing: one long job that copies documents from a source to a search index, at the pace of
//! its throttle.
//!
//! ```text
//!   source ──pages by key──▶ buffer ──▶ tokens (1 = 1 document) ──▶ bulk requests ──▶ sink
//!                                          ▲                            │
//!                                          └──── documents to retry ◀───┤ answers, per document
//!                                                                       ▼
//!                                       cursor: the key up to which everything is stored
//! ```
//!
//! Read [`backfill`] first. The nouns are pure: [`Catalogue`] (the sources and sinks that jobs may
//! name), [`Args`], [`Window`] (the documents ahead of the cursor), [`BulkPacer`] (the number of
//! tokens to ask for), [`Progress`]. Technologies are in [`source`] and [`sink`].
//!
//! Its promise: every row that the source had when its page was read is sent at least once, under
//! an id that does not change, so that a second copy overwrites the first. The checkpoint is a key
//! up to which *every* document is stored or listed as refused, and nothing is sent more than some
//! seconds beyond it: a killed worker repeats no more than that.
//!
//! It does not follow changes behind its cursor (run it again, or write new documents where they
//! change), does not delete from the index, and does not create mappings.

mod arg_fields;
pub mod args;
pub mod backfill;
pub mod catalogue;
pub mod document;
pub mod pace;
pub mod postgres;
pub mod progress;
pub mod sink;
pub mod sink_args;
pub mod source;
pub mod source_args;
pub mod window;

mod connect;
mod flight;
mod handler;
mod hidden;
mod reader;
mod shared_settings;

pub use args::Args;
pub use catalogue::Catalogue;
pub use document::{Action, Document};
pub use handler::{BackfillConfig, ReindexHandler};
pub use pace::BulkPacer;
pub use postgres::ReindexDatabase;
pub use progress::{Progress, ReindexCursor};
pub use window::Window;

/// The name of the kind.
pub const KIND: &str = "reindex";
