//! Detection of a pooler in transaction mode that the settings do not name.

use sqlx::Row;

use super::{Db, Pooler};

/// The process id of the server backend, queried by the simple protocol, which works behind any
/// pooler.
const BACKEND: &str = "select pg_backend_pid()";

/// The number of comparisons, because a pooler rotates its server connections and one may miss it.
const COMPARISONS: usize = 4;

/// The error text that names the remedy.
const HELP: &str = "the database URL leads through a pooler in transaction mode, such as PgBouncer; \
     set DATABASE_POOLER=transaction (database_pooler)";

/// Fails, naming the setting, if one server process answers two open connections: a pooler lends it
/// to both, and prepared statements would run on the wrong connection.
pub async fn refuse_hidden_pooler(db: &Db) -> Result<(), sqlx::Error> {
    if db.pooler() != Pooler::None || db.pool().options().get_max_connections() < 2 {
        return Ok(());
    }
    let (mut one, mut other) = (db.acquire().await?, db.acquire().await?);
    for _ in 0..COMPARISONS {
        let mut seen: [i32; 2] = [0; 2];
        for (connection, seen) in [&mut one, &mut other].into_iter().zip(&mut seen) {
            *seen = sqlx::raw_sql(BACKEND)
                .fetch_one(&mut **connection)
                .await?
                .try_get(0)?;
        }
        if seen[0] == seen[1] {
            return Err(sqlx::Error::Configuration(HELP.into()));
        }
    }
    Ok(())
}

/// Returns the text that names the remedy if `error` is typical of prepared statements or of our
/// startup packet behind such a pooler.
pub fn is_hidden_pooler(error: &sqlx::Error) -> Option<&'static str> {
    let error = error.as_database_error()?;
    let code = error.code()?;
    let found = match &*code {
        // A prepared statement of that name already exists, or no longer exists.
        "42P05" | "26000" => true,
        "08P01" => ["startup parameter", "bind message supplies"]
            .iter()
            .any(|words| error.message().contains(words)),
        _ => false,
    };
    found.then_some(HELP)
}
