//! Connections to Postgres, straight to the server or through a pooler in transaction mode.
//!
//! A room that stores data in Postgres takes a [`Db`]. It runs single statements as an sqlx pool
//! does, and makes each a transaction of its own behind a pooler that lends a server connection for
//! one transaction only. The data and the statements are the business of the rooms that store them.

mod columns;
mod connections;
mod db;
mod held;
mod hidden;
mod options;
mod reach;
mod replica;
mod replica_lag;
mod tenant_queues;
mod text;
mod transaction;
mod unnamed;

// Only a feature of it is wanted, which its entry in `Cargo.toml` explains.
use sqlx_postgres as _;

pub use columns::{Columns, json_or_text, json_text};
pub use db::{Access, Db, Pooler};
pub use hidden::{is_hidden_pooler, refuse_hidden_pooler};
pub use options::{PARAMETERS, connect_options, unknown_parameters};
pub use reach::{UnusablePostgres, reach};
pub use replica::{Replica, ReplicaReads, ReplicaState, STATEMENTS};
pub use replica_lag::ReplicaFacts;
pub use tenant_queues::{TenantPlace, TenantQueues};
pub use text::storable;
pub use transaction::Transaction;
