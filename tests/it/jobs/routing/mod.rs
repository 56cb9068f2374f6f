//! The columns by which a distributed Postgres would route the hot statements.

mod scanner;
mod statements;
