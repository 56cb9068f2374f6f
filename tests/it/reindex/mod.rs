//! The kind `reindex`.

mod backfill;
mod elasticsearch;
mod fakes;
mod follow;
mod mongodb;
mod pace;
mod postgres;
mod publish;
mod refused;
mod resumed;
mod rights;
mod twins;
