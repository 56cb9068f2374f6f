//! The kind `reindex`.

mod backfill;
mod fakes;
mod postgres;
mod rights;
