//! The statements and the log of a round, for tuning; the statistics cost a few per cent.

use sqlx::PgPool;

use crate::statements;
use crate::world::NotifyServers;

const HERE: &str = "select pg_current_wal_insert_lsn()::text";

const RECORDS: &str = "
select \"resource_manager/record_type\", count, combined_size::float8 from pg_get_wal_stats($1::pg_lsn, pg_current_wal_flush_lsn(), true)
where count > 0 order by combined_size desc limit 14";

/// A round that is watched.
pub struct Watch {
    pool: PgPool,
    from: String,
}

impl Watch {
    /// Begins to watch, if somebody asked for it.
    pub async fn begin(world: &mut NotifyServers, is_wanted: bool) -> anyhow::Result<Option<Self>> {
        if !is_wanted {
            return Ok(None);
        }
        let pool = world.watch().await?;
        let mut watch = Self {
            pool,
            from: String::new(),
        };
        watch.again().await?;
        Ok(Some(watch))
    }

    /// Forgets what was so far.
    pub async fn again(&mut self) -> anyhow::Result<()> {
        statements::reset(&self.pool).await?;
        self.from = sqlx::query_scalar(HERE).fetch_one(&self.pool).await?;
        Ok(())
    }

    /// Prints to standard error the statements that took longest, and the records of the log, each
    /// per message.
    pub async fn print(&self, messages: f64) -> anyhow::Result<()> {
        statements::print(&self.pool, messages).await?;
        let records: Vec<(String, i64, f64)> = sqlx::query_as(RECORDS)
            .bind(&self.from)
            .fetch_all(&self.pool)
            .await?;
        eprintln!("  {:>9} {:>9}  record", "each", "bytes");
        for (name, count, bytes) in records {
            let (each, bytes) = (count as f64 / messages, bytes / messages);
            eprintln!("  {each:>9.2} {bytes:>9.1}  {name}");
        }
        Ok(())
    }
}
