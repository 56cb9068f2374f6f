//! Databases that a reindex reads or writes, and names in them.

use sqlx::PgPool;
use sqlx::postgres::PgConnectOptions;

/// How a database is reached; connections are opened by those who use it.
#[derive(Clone, Debug)]
pub struct Database {
    pub(super) options: PgConnectOptions,
}

impl Database {
    /// The database of a pool, such as the queue's.
    pub fn of(pool: &PgPool) -> Self {
        Self { options: (*pool.connect_options()).clone() }
    }

    /// The database whose URL an environment variable holds. The URL itself never appears in an error.
    pub fn named(variable: &str) -> Result<Self, String> {
        let url =
            std::env::var(variable).map_err(|_| format!("the environment variable {variable} is not set on this worker"))?;
        let options = url.parse().map_err(|_| format!("the environment variable {variable} does not hold a Postgres URL"))?;
        Ok(Self { options })
    }
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
