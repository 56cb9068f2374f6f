//! Noticing a pooler in transaction mode that nobody has told us of.

use sqlx::Row;

use super::{Db, Pooler};

/// Which server process answers; asked by the simple protocol, which works everywhere.
const BACKEND: &str = "select pg_backend_pid()";

/// A pooler hands its server connections out in turns of its own, so one look may miss it.
const LOOKS: usize = 4;

/// What helps.
const HELP: &str = "the database URL leads through a pooler in transaction mode, such as PgBouncer; \
     set DATABASE_POOLER=transaction (database_pooler)";

/// Fails, naming the setting, if two connections at once are answered by one server process: then it is not we who own them,
/// and prepared statements would run on the wrong connection.
pub async fn refuse_hidden_pooler(db: &Db) -> Result<(), sqlx::Error> {
    if db.pooler() != Pooler::None || db.pool().options().get_max_connections() < 2 {
        return Ok(());
    }
    let (mut one, mut other) = (db.acquire().await?, db.acquire().await?);
    for _ in 0..LOOKS {
        let mut seen: [i32; 2] = [0; 2];
        for (connection, seen) in [&mut one, &mut other].into_iter().zip(&mut seen) {
            *seen = sqlx::raw_sql(BACKEND).fetch_one(&mut **connection).await?.try_get(0)?;
        }
        if seen[0] == seen[1] {
            return Err(sqlx::Error::Configuration(HELP.into()));
        }
    }
    Ok(())
}

/// The sentence that helps, if this error is what such a pooler makes of prepared statements or of our greeting.
pub fn is_hidden_pooler(error: &sqlx::Error) -> Option<&'static str> {
    let error = error.as_database_error()?;
    let code = error.code()?;
    let found = match &*code {
        // One of that name exists already, or exists no more.
        "42P05" | "26000" => true,
        "08P01" => ["startup parameter", "bind message supplies"].iter().any(|words| error.message().contains(words)),
        _ => false,
    };
    found.then_some(HELP)
}
