//! Databases that a reindex reads or writes, and names in them.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::postgres::{Db, Pooler};

/// How a database is reached; connections are opened by those who use it.
#[derive(Clone, Debug)]
pub struct Database {
    options: PgConnectOptions,
    pooler: Pooler,
}

impl Database {
    /// The database of a pool, such as the queue's.
    pub fn of(db: impl Into<Db>) -> Self {
        let db = db.into();
        Self { options: (*db.pool().connect_options()).clone(), pooler: db.pooler() }
    }

    /// The database whose URL an environment variable holds. The URL itself never appears in an error.
    pub fn named(variable: &str) -> Result<Self, String> {
        let url =
            std::env::var(variable).map_err(|_| format!("the environment variable {variable} is not set on this worker"))?;
        let options = url.parse().map_err(|_| format!("the environment variable {variable} does not hold a Postgres URL"))?;
        Ok(Self { options, pooler: Pooler::None })
    }

    /// Connections that may write.
    pub(super) fn writer(self, connections: u32, patience: Duration) -> Db {
        let pool = pool(connections, patience);
        let options = self.options.application_name(APPLICATION);
        match self.pooler {
            Pooler::None => pool.connect_lazy_with(options).into(),
            Pooler::Transaction => Db::lent(pool, options, "begin"),
        }
    }

    /// Connections that may only read.
    pub(super) fn reader(self, connections: u32, patience: Duration) -> Db {
        let pool = pool(connections, patience);
        let options = self.options.application_name(APPLICATION);
        match self.pooler {
            Pooler::None => {
                pool.connect_lazy_with(options.options([("default_transaction_read_only", "on"), ("jit", "off")])).into()
            }
            Pooler::Transaction => Db::lent(pool, options, "begin read only; set local jit = off"),
        }
    }
}

/// What the connections of a reindex are called in `pg_stat_activity`.
const APPLICATION: &str = "flyball reindex";

fn pool(connections: u32, patience: Duration) -> PgPoolOptions {
    PgPoolOptions::new().max_connections(connections).acquire_timeout(patience)
}

/// `"schema"."table"`.
pub(super) fn qualified(parts: &[String]) -> String {
    parts.iter().map(|p| quoted(p)).collect::<Vec<_>>().join(".")
}

/// A name as a quoted identifier.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The class of an error's code, e.g. `42` for syntax, names and rights; empty where there is none.
pub(super) fn class(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|e| e.code()).unwrap_or_default();
    code.chars().take(2).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_so_that_none_can_end_the_statement() {
        assert_eq!(qualified(&["public".into(), "a\"; drop table b; --".into()]), "\"public\".\"a\"\"; drop table b; --\"");
    }
}
