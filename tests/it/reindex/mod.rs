//! The kind `reindex`.

mod backfill;
mod elasticsearch;
mod fakes;
mod follow;
mod lost;
mod mongodb;
mod pace;
mod postgres;
mod publish;
mod refused;
mod rights;
mod twins;
