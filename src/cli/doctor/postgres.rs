//! Checks of the database server and of the schema.

use std::time::Duration;

use jiff::Timestamp;
use sqlx::Row;
use sqlx::{Connection as _, PgConnection};

use super::finding::{Finding, Findings};
use super::judge::{self, PostgresFacts};
use crate::config::Settings;
use crate::jobs::Queue;
use crate::jobs::postgres::Schema;
use crate::postgres::{Db, Pooler, connect_options};

const CHECK: &str = "postgres";

/// Longest wait for a connection, and for each answer.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

// Settings that a role may not read are left out, not guessed.
const FACTS: &str = "
select current_setting('server_version_num')::int as version, current_setting('server_version') as version_text,
    pg_is_in_recovery() or current_setting('default_transaction_read_only') = 'on' as is_read_only, current_setting('max_connections')::bigint as max_connections,
    current_setting('superuser_reserved_connections')::bigint as reserved,
    (select count(*) from pg_stat_activity where backend_type = 'client backend') as used,
    current_setting('autovacuum')::bool as autovacuum, current_setting('synchronous_commit') as synchronous_commit,
    current_setting('fsync')::bool as fsync";

// A replica has the identifier of its primary. `to_regclass`, because a server without the schema
// must not fail the statement.
const COPY_FACTS: &str = "
select (select system_identifier from pg_control_system()) as server,
    to_regclass('flyball.migration') is not null as has_schema";

const VERSION: &str = "select coalesce(max(version), 0) from flyball.migration";

const CLOCK: &str = "select extract(epoch from clock_timestamp())::float8";

/// Facts about a server that tell whether it is a copy of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CopyFacts {
    /// The identifier of the server, which its replicas share.
    pub(super) server: i64,
    /// The number of the last migration; 0 without a schema.
    pub(super) version: i64,
}

/// Checks the server and the schema; returns the queue if jobs can be read from it.
pub(super) async fn check(settings: &Settings, report: &mut Findings) -> Option<Queue> {
    if let Err(finding) = reach(CHECK, "DATABASE_URL", &settings.database_url).await {
        report.add(finding);
        return None;
    }
    let connected = Queue::connect(settings.database(), 2, CONNECT_TIMEOUT).await;
    let queue = match connected {
        Ok(queue) => queue,
        Err(_) => {
            report.add(Finding::fail(
                CHECK,
                "it answers, but gives no connection for statements",
                "if a pooler in transaction mode is in between, set DATABASE_POOLER=transaction",
            ));
            return None;
        }
    };
    if queue.refuse_hidden_pooler().await.is_err() {
        report.add(Finding::fail(
            CHECK,
            "DATABASE_URL leads through a pooler in transaction mode, and the settings do not say so",
            "set DATABASE_POOLER=transaction",
        ));
        return None;
    }
    if settings.database().pooler == Pooler::Transaction && settings.database_direct_url.is_empty()
    {
        report.add(Finding::warn(
            CHECK,
            "behind the pooler producers cannot wake workers, so these poll for jobs all the time",
            "set DATABASE_DIRECT_URL to the server itself",
        ));
    }
    match facts(&queue).await {
        Ok(facts) => report.extend(judge::postgres(&facts, settings.database_connections)),
        Err(_) => report.add(Finding::fail(
            CHECK,
            "it does not tell its version and settings",
            "see its log for the refused statement",
        )),
    }
    if let Some(offset_s) = offset(&queue).await {
        report.add(judge::clock("Postgres", offset_s));
    }
    schema(&queue, report).await.then_some(queue)
}

/// Opens one connection to the URL of a variable, or says why there is none, without the place of
/// the server.
pub(super) async fn reach(check: &'static str, variable: &str, url: &str) -> Result<(), Finding> {
    let fail = |seen: &str, todo: &str| {
        let named = |text: &str| text.replace("{url}", variable);
        Finding::fail(check, named(seen), named(todo))
    };
    let Ok(options) = connect_options(url) else {
        return Err(fail(
            "{url} is not the URL of a Postgres",
            "write it as postgres://user:password@host:port/database",
        ));
    };
    // A pooler refuses startup parameters that it does not know.
    let options = options.extra_float_digits(None);
    let connecting = async {
        let mut connection = PgConnection::connect_with(&options).await?;
        // A pooler accepts clients while its server is away.
        sqlx::raw_sql("select 1").execute(&mut connection).await?;
        Ok::<_, sqlx::Error>(connection)
    };
    let error = match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
        Ok(Ok(connection)) => {
            let _ = tokio::time::timeout(Duration::from_secs(1), connection.close()).await;
            return Ok(());
        }
        Ok(Err(error)) => error,
        Err(_) => {
            return Err(fail(
                "it does not answer within 5 s",
                "check {url}, the server and the network between",
            ));
        }
    };
    let code = error
        .as_database_error()
        .and_then(|answer| answer.code())
        .unwrap_or_default()
        .into_owned();
    Err(match (&error, code.as_str()) {
        (sqlx::Error::Io(error), _) if judge::is_of_name(&error.to_string()) => fail(
            "the name of the host in {url} cannot be resolved",
            "check the name, and the name server of this host",
        ),
        (sqlx::Error::Io(_), _) => fail(
            "nothing answers where {url} leads",
            "start Postgres, or correct {url}",
        ),
        (sqlx::Error::Tls(_), _) => fail(
            "no encrypted connection can be made",
            "check sslmode and the certificates in {url}",
        ),
        (_, "3D000") => fail(
            "the database of {url} does not exist",
            "create it, or correct {url}",
        ),
        (_, "28P01") => fail("it refuses the password of {url}", "correct the password"),
        (_, "28000") => fail(
            "it refuses the role of {url}",
            "create the role with login, or allow it in pg_hba.conf",
        ),
        (_, "53100") => fail("its disk is full", "make room on it"),
        (_, code) if code.starts_with("53") => fail(
            "it has no connection left, for all or for this role",
            "raise max_connections or the role's connection limit, or lower FLYBALL_DATABASE_CONNECTIONS of the processes",
        ),
        (_, code) if code.starts_with("08") => fail(
            "the pooler of {url} reaches no server",
            "start the server behind it, or correct the pooler's settings",
        ),
        (_, code) if code.starts_with("57P") => fail(
            "it is starting or stopping",
            "wait, and see its log if that lasts",
        ),
        _ => fail("it refuses the connection", "see its log for the reason"),
    })
}

async fn facts(queue: &Queue) -> Result<PostgresFacts, sqlx::Error> {
    let row = sqlx::query(FACTS).fetch_one(&queue.pool).await?;
    Ok(PostgresFacts {
        version: row.try_get("version")?,
        version_text: row.try_get("version_text")?,
        is_read_only: row.try_get("is_read_only")?,
        max_connections: row.try_get("max_connections")?,
        reserved: row.try_get("reserved")?,
        used: row.try_get("used")?,
        autovacuum: row.try_get("autovacuum")?,
        synchronous_commit: row.try_get("synchronous_commit")?,
        fsync: row.try_get("fsync")?,
    })
}

/// Returns the facts by which a copy of a server is known; `None` if they cannot be read.
pub(super) async fn copy_facts(db: &Db) -> Option<CopyFacts> {
    let read = async {
        let row = sqlx::query(COPY_FACTS).fetch_one(db).await?;
        let version = match row.try_get("has_schema")? {
            true => sqlx::query_scalar(VERSION).fetch_one(db).await?,
            false => 0,
        };
        Ok::<_, sqlx::Error>(CopyFacts {
            server: row.try_get("server")?,
            version,
        })
    };
    tokio::time::timeout(CONNECT_TIMEOUT, read).await.ok()?.ok()
}

/// Returns the server's time minus ours, in seconds; the answer is taken for the middle of the
/// round trip.
async fn offset(queue: &Queue) -> Option<f64> {
    let before = seconds();
    let at: f64 = sqlx::query_scalar(CLOCK)
        .fetch_one(&queue.pool)
        .await
        .ok()?;
    Some(at - (before + seconds()) / 2.0)
}

/// Returns the time of this host, in unix seconds.
#[expect(
    clippy::disallowed_methods,
    reason = "this clock is compared with those of the servers"
)]
pub(super) fn seconds() -> f64 {
    Timestamp::now().as_microsecond() as f64 / 1e6
}

/// Checks the schema; returns true if this program can work on it.
async fn schema(queue: &Queue, report: &mut Findings) -> bool {
    const CHECK: &str = "schema";
    let (finding, is_usable) = match queue.schema().await {
        Ok(Some(Schema::Current)) => (Finding::ok(CHECK, "it is that of this program"), true),
        Ok(Some(Schema::Missing)) => (
            Finding::fail(CHECK, "there is none yet", "run flyball migrate"),
            false,
        ),
        Ok(Some(Schema::Older(missing))) => (
            Finding::fail(
                CHECK,
                format!(
                    "it is older than this program, which has {missing} more {migrations}",
                    migrations = if missing == 1 {
                        "migration"
                    } else {
                        "migrations"
                    }
                ),
                "run flyball migrate",
            ),
            false,
        ),
        Ok(Some(Schema::Newer(version))) => (
            Finding::warn(
                CHECK,
                format!(
                    "it is that of a newer program: this one does not know migration {version}, and can run beside it"
                ),
                "upgrade this program",
            ),
            true,
        ),
        Ok(Some(Schema::TooNew(version))) => (
            Finding::fail(
                CHECK,
                format!("it is too new for this program, which does not know migration {version}"),
                "upgrade this program",
            ),
            false,
        ),
        Ok(Some(Schema::Unreleased(version))) => (
            Finding::fail(
                CHECK,
                format!(
                    "it was made by a version that was not released: its migration {version} is not that of this program"
                ),
                "use a new database, or drop the schema with all of its jobs, and run flyball migrate",
            ),
            false,
        ),
        Ok(None) => (
            Finding::warn(
                CHECK,
                "this role may not read which migrations were applied",
                "run flyball doctor with the role of the server",
            ),
            true,
        ),
        Err(_) => (
            Finding::fail(
                CHECK,
                "it cannot be read",
                "see the log of Postgres for the refused statement",
            ),
            false,
        ),
    };
    report.add(finding);
    is_usable
}
