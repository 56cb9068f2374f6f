//! Connections to Postgres, straight to the server or through a pooler in transaction mode.
//!
//! Whoever stores something in Postgres takes a [`Db`]: it runs single statements like a pool of sqlx does, and where the
//! pooler lends a server connection for one transaction only, it makes each of them such a transaction. What is stored, and
//! with which statements, is the business of the rooms that store it.

mod columns;
mod db;
mod hidden;
mod reach;
mod transaction;

pub use columns::{Columns, shown};
pub use db::{Access, Db, Pooler};
pub use hidden::{is_hidden_pooler, refuse_hidden_pooler};
pub use reach::{Unusable, reach};
pub use transaction::Transaction;
