//! The kind `reindex`.

mod backfill;
mod elasticsearch;
mod fakes;
mod mongodb;
mod postgres;
mod rights;
