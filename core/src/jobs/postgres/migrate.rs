//! Schema migration: each migration and its record in one transaction, under a lock that ends with
//! it.
//!
//! The driver's own migrator takes a session lock and prepares statements, and a transaction pooler
//! would leave both on a connection that another client gets next. The record of applied migrations
//! has the driver's format.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};
use sqlx::{Executor, Postgres, Row, SqlStr};

use super::Queue;
use super::job_indexes::is_locked;
use crate::postgres::Transaction;

/// The version, the description and the statements of each file in `migrations/`.
const MIGRATIONS: &[(i64, &str, &str)] = include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// The embedded migrations, safe to run twice and beside running workers. Those of a released
/// version are never edited: what was applied is compared with its text here.
///
/// Their record is in our own schema under its full name: a bare name would be looked up in another
/// schema as soon as the database's user is called `flyball`, and every migration would run a
/// second time.
pub static MIGRATOR: LazyLock<Migrator> = LazyLock::new(|| {
    let migrations = MIGRATIONS.iter().map(|&(version, description, sql)| {
        Migration::new(
            version,
            description.into(),
            MigrationType::Simple,
            SqlStr::from_static(sql),
            false,
        )
    });
    let mut migrator = Migrator::with_migrations(migrations.collect());
    migrator.create_schema("flyball");
    migrator.dangerous_set_table_name("flyball.migration");
    migrator
});

// Pending ones are read behind the lock, so that the second of two processes that start at once
// finds the work of the first. Every role that may connect can keep it, so it is taken only if
// something is pending.
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

pub(super) const APPLIED: &str =
    "select version, checksum, success from flyball.migration order by version";

pub(super) const APPLY: &str = "
insert into flyball.migration (version, description, success, checksum, execution_time)
values ($1, $2, true, $3, (extract(epoch from clock_timestamp() - now()) * 1e9)::bigint)";

/// Names what the database lacks, and the remedy; null if nothing.
///
/// Texts of jobs are Unicode, and days that are pruned are copied by way of temporary tables.
pub(super) const LACKING: &str = "
select case
    when current_setting('server_encoding') <> 'UTF8' then
        format('the encoding of the database %I is %s, and Flyball needs UTF8; create one with: create database %I encoding ''UTF8'' template template0',
            current_database(), current_setting('server_encoding'), current_database())
    when not has_database_privilege(current_database(), 'TEMPORARY') then
        format('the role %I may not create temporary tables, without which old jobs are not deleted; run: grant temporary on database %I to %I',
            current_user, current_database(), current_user)
    end";

/// The longest wait of a migration for one lock. Behind a migration that waits for a long reader, a
/// backup for instance, claims would wait as well; so it gives way and comes again.
const LOCK_TIMEOUT: &str = "set local lock_timeout = '500ms'";

/// The pause before a migration that gave way comes again.
const LOCK_PAUSE: Duration = Duration::from_secs(1);

/// The time after which a migration that finds no lock fails.
const LOCK_PATIENCE: Duration = Duration::from_secs(300);

/// The state of the schema relative to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// There is no schema.
    Missing,
    /// The schema lacks this many migrations.
    Older(usize),
    /// The schema is the one that this program knows.
    Current,
    /// A later program has applied this migration, which this program does not know, and this
    /// program can still work beside it.
    Newer(i64),
    /// A later program has applied this migration, and the schema lacks what this program needs.
    TooNew(i64),
    /// This migration was applied with another text, so no released program made the schema.
    Unreleased(i64),
}

pub(super) const VERSIONS: &str =
    "select version, checksum from flyball.migration where success order by version";

pub(super) const OLDEST_PROGRAM: &str = "select oldest_program from flyball.compatibility";

impl Queue {
    /// Compares the schema with this program; returns `None` if this role may not read it.
    pub async fn schema(&self) -> Result<Option<Schema>, sqlx::Error> {
        let rows = match sqlx::query(VERSIONS)
            .persistent(false)
            .fetch_all(&self.pool)
            .await
        {
            Ok(rows) => rows,
            Err(sqlx::Error::Database(answer)) => {
                return match answer.code().unwrap_or_default().as_ref() {
                    // No such table, no such schema.
                    "42P01" | "3F000" => Ok(Some(Schema::Missing)),
                    "42501" => Ok(None),
                    _ => Err(sqlx::Error::Database(answer)),
                };
            }
            Err(error) => return Err(error),
        };
        let mut run: BTreeMap<i64, Vec<u8>> = BTreeMap::new();
        for row in &rows {
            run.insert(row.try_get("version")?, row.try_get("checksum")?);
        }
        if let Some(version) = first_other(&run) {
            return Ok(Some(Schema::Unreleased(version)));
        }
        if let Some(newest) = run.keys().rev().find(|version| is_unknown(**version)) {
            let oldest = oldest_program(&self.pool).await?;
            return Ok(Some(if is_served(oldest) {
                Schema::Newer(*newest)
            } else {
                Schema::TooNew(*newest)
            }));
        }
        Ok(Some(match (run.is_empty(), pending(&run).count()) {
            (true, _) => Schema::Missing,
            (false, 0) => Schema::Current,
            (false, missing) => Schema::Older(missing),
        }))
    }

    /// Brings the schema up to date; returns the number of migrations applied.
    ///
    /// A schema with migrations of a later program is left as it is, if this program can work
    /// beside it. One that no released program made is refused.
    pub async fn migrate(&self) -> Result<usize, MigrateError> {
        let mut done = 0;
        let mut last = Instant::now();
        self.refuse_lacking().await?;
        if self.has_all().await.unwrap_or(false) {
            return Ok(done);
        }
        // One transaction for each, so that the locks of one are not held through the next.
        loop {
            match self.migrate_once().await {
                Ok(true) => {
                    done += 1;
                    last = Instant::now();
                }
                Ok(false) => return Ok(done),
                Err(error) if gave_way(&error) && last.elapsed() < LOCK_PATIENCE => {
                    tracing::debug!(%error, "a migration waits for a lock");
                    tokio::time::sleep(LOCK_PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Fails, naming the remedy, if the database lacks what no migration can give it.
    async fn refuse_lacking(&self) -> Result<(), MigrateError> {
        let lacking: Option<String> = sqlx::query_scalar(LACKING)
            .persistent(false)
            .fetch_one(&self.pool)
            .await?;
        match lacking {
            Some(lacking) => Err(sqlx::Error::Configuration(lacking.into()).into()),
            None => Ok(()),
        }
    }

    /// Returns true if every migration of this program is applied as it is here, and the program can
    /// work beside those that it does not know.
    async fn has_all(&self) -> Result<bool, MigrateError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::raw_sql(LOCK_TIMEOUT)
            .execute(&mut *transaction)
            .await?;
        let applied = applied(&mut transaction).await?;
        let are_applied = first_other(&applied).is_none() && pending(&applied).next().is_none();
        let is_beside = !applied.keys().any(|version| is_unknown(*version))
            || is_served(oldest_program(&mut *transaction).await?);
        transaction.commit().await?;
        Ok(are_applied && is_beside)
    }

    /// Applies the first pending migration; returns false if there is none.
    async fn migrate_once(&self) -> Result<bool, MigrateError> {
        let mut transaction = self.pool.begin().await?;
        sqlx::raw_sql(LOCK_TIMEOUT)
            .execute(&mut *transaction)
            .await?;
        sqlx::raw_sql(LOCK).execute(&mut *transaction).await?;
        sqlx::raw_sql(RECORD).execute(&mut *transaction).await?;
        let applied = applied(&mut transaction).await?;
        if let Some(version) = first_other(&applied) {
            return Err(MigrateError::VersionMismatch(version));
        }
        if let Some(version) = applied.keys().find(|version| is_unknown(**version))
            && !is_served(oldest_program(&mut *transaction).await?)
        {
            return Err(MigrateError::VersionMissing(*version));
        }
        let next = pending(&applied).next();
        if let Some(migration) = next {
            apply(&mut transaction, migration).await?;
        }
        transaction.commit().await?;
        Ok(next.is_some())
    }
}

/// Returns true if a migration ended because a lock was not free in time.
fn gave_way(error: &MigrateError) -> bool {
    match error {
        MigrateError::Execute(cause) | MigrateError::ExecuteMigration(cause, _) => is_locked(cause),
        _ => false,
    }
}

/// Returns the migrations of this program that are not applied, in their order.
fn pending(applied: &BTreeMap<i64, Vec<u8>>) -> impl Iterator<Item = &'static Migration> {
    let migrations = MIGRATOR.iter();
    migrations.filter(move |migration| !applied.contains_key(&migration.version))
}

/// Returns the first migration of this program that was applied with another text.
fn first_other(applied: &BTreeMap<i64, Vec<u8>>) -> Option<i64> {
    let is_other = |migration: &&Migration| {
        let checksum = applied.get(&migration.version);
        checksum.is_some_and(|checksum| **checksum != *migration.checksum)
    };
    let other = MIGRATOR.iter().find(is_other)?;
    Some(other.version)
}

/// Returns true for a migration of a later program.
fn is_unknown(version: i64) -> bool {
    !MIGRATOR.version_exists(version)
}

/// Returns true if this program knows the migration that the oldest program must know.
fn is_served(oldest_program: i64) -> bool {
    MIGRATOR.version_exists(oldest_program)
}

/// Returns the newest migration of the oldest program that can work on the schema.
async fn oldest_program(connection: impl Executor<'_, Database = Postgres>) -> sqlx::Result<i64> {
    sqlx::query_scalar(OLDEST_PROGRAM)
        .persistent(false)
        .fetch_one(connection)
        .await
}

/// Returns the version and the checksum of each applied migration.
async fn applied(transaction: &mut Transaction) -> Result<BTreeMap<i64, Vec<u8>>, MigrateError> {
    let rows = sqlx::query(APPLIED)
        .persistent(false)
        .fetch_all(&mut **transaction)
        .await?;
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
    let run = sqlx::raw_sql(migration.sql.clone())
        .execute(&mut **transaction)
        .await;
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
