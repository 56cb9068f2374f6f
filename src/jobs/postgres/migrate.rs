//! Bringing the schema up to date: each migration and its record in one transaction, under a lock that ends with it.
//!
//! The driver's own way takes a lock of the session and prepares statements, and a pooler in transaction mode would leave
//! both on a connection that somebody else is given next. Its record of what was run is kept as it would keep it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use sqlx::Row;
use sqlx::migrate::{MigrateError, Migration, Migrator};

use super::Queue;
use crate::postgres::Transaction;

/// The migrations, embedded; safe to run twice and beside running workers.
///
/// Their record lives in our own schema under its full name: a bare name would be looked up in another schema as soon as
/// the database's user is called `flyball`, and everything would be run a second time.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.create_schema("flyball");
    migrator.dangerous_set_table_name("flyball.migration");
    migrator
});

// Nothing is looked at before the lock, so that of two who start at once the second finds what the first has done.
const LOCK: &str = "select pg_advisory_xact_lock(hashtext('flyball.migration'))";

const RECORD: &str = "
create schema if not exists flyball;
create table if not exists flyball.migration (
    version bigint primary key,
    description text not null,
    installed_on timestamptz not null default now(),
    success boolean not null,
    checksum bytea not null,
    execution_time bigint not null
)";

pub(super) const APPLIED: &str = "select version, checksum, success from flyball.migration order by version";

pub(super) const APPLY: &str = "
insert into flyball.migration (version, description, success, checksum, execution_time)
values ($1, $2, true, $3, (extract(epoch from clock_timestamp() - now()) * 1e9)::bigint)";

/// How the schema stands beside this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// There is none.
    Missing,
    /// So many migrations have not been run.
    Older(usize),
    /// It is what this program knows.
    Current,
    /// A later program has run this migration, which is not known here.
    Newer(i64),
}

pub(super) const VERSIONS: &str = "select version from flyball.migration where success order by version";

impl Queue {
    /// Looks at how the schema stands; `None` where this role may not look.
    pub async fn schema(&self) -> Result<Option<Schema>, sqlx::Error> {
        let rows = match sqlx::query(VERSIONS).persistent(false).fetch_all(&self.pool).await {
            Ok(rows) => rows,
            Err(sqlx::Error::Database(said)) => {
                return match said.code().unwrap_or_default().as_ref() {
                    // No such table, no such schema.
                    "42P01" | "3F000" => Ok(Some(Schema::Missing)),
                    "42501" => Ok(None),
                    _ => Err(sqlx::Error::Database(said)),
                };
            }
            Err(error) => return Err(error),
        };
        let run = rows.iter().map(|row| row.try_get("version")).collect::<Result<BTreeSet<i64>, _>>()?;
        if let Some(newest) = run.iter().rev().find(|version| !MIGRATOR.version_exists(**version)) {
            return Ok(Some(Schema::Newer(*newest)));
        }
        let missing = MIGRATOR.iter().filter(|migration| !run.contains(&migration.version)).count();
        Ok(Some(match (run.is_empty(), missing) {
            (true, _) => Schema::Missing,
            (false, 0) => Schema::Current,
            (false, missing) => Schema::Older(missing),
        }))
    }

    /// Brings the schema up to date. Answers how many migrations were run now.
    pub async fn migrate(&self) -> Result<usize, MigrateError> {
        let mut done = 0;
        // One transaction for each, so that the locks of one are not held through the next.
        while self.migrate_once().await? {
            done += 1;
        }
        Ok(done)
    }

    /// Runs the first migration that has not been run; false if there is none.
    async fn migrate_once(&self) -> Result<bool, MigrateError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::raw_sql(LOCK).execute(&mut *transaction).await?;
        sqlx::raw_sql(RECORD).execute(&mut *transaction).await?;
        let applied = applied(&mut transaction).await?;
        if let Some(version) = applied.keys().find(|version| !MIGRATOR.version_exists(**version)) {
            return Err(MigrateError::VersionMissing(*version));
        }
        for migration in MIGRATOR.iter() {
            match applied.get(&migration.version) {
                Some(checksum) if **checksum != *migration.checksum => {
                    return Err(MigrateError::VersionMismatch(migration.version));
                }
                Some(_) => {}
                None => {
                    apply(&mut transaction, migration).await?;
                    transaction.commit().await?;
                    return Ok(true);
                }
            }
        }
        transaction.commit().await?;
        Ok(false)
    }
}

/// Version and checksum of what was run.
async fn applied(transaction: &mut Transaction) -> Result<BTreeMap<i64, Vec<u8>>, MigrateError> {
    let rows = sqlx::query(APPLIED).persistent(false).fetch_all(&mut **transaction).await?;
    let mut applied = BTreeMap::new();
    for row in rows {
        let version = row.try_get("version")?;
        if !row.try_get::<bool, _>("success")? {
            return Err(MigrateError::Dirty(version));
        }
        applied.insert(version, row.try_get("checksum")?);
    }
    Ok(applied)
}

async fn apply(transaction: &mut Transaction, migration: &Migration) -> Result<(), MigrateError> {
    let run = sqlx::raw_sql(migration.sql.clone()).execute(&mut **transaction).await;
    run.map_err(|error| MigrateError::ExecuteMigration(error, migration.version))?;
    sqlx::query(APPLY)
        .persistent(false)
        .bind(migration.version)
        .bind(&*migration.description)
        .bind(&*migration.checksum)
        .execute(&mut **transaction)
        .await?;
    Ok(())
}
