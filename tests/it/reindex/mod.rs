//! The kind `reindex`.

mod backfill;
mod fakes;
mod mongodb;
mod postgres;
mod rights;
