//! The API's own statements in Postgres: the audit log, the workers, and the kinds.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::api::audit::entry::AuditEntry;
use crate::api::read_error::ReadError;
use crate::jobs;
use crate::postgres::Db;

/// A worker process that has sent a heartbeat within its TTL.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Worker {
    /// The number of the process, new at each start.
    pub id: i64,
    /// The name of the worker.
    pub name: String,
    /// True for a worker in another program, which claims over HTTP.
    pub remote: bool,
    /// The host of the worker.
    pub host: String,
    /// The start of the process.
    pub started_at: Timestamp,
    /// The last heartbeat.
    pub heartbeat_at: Timestamp,
    /// Jobs that the worker runs now.
    pub running: i64,
    /// Throttles that the worker was told to serve, as patterns; empty for all.
    pub throttles: Vec<String>,
    /// Kinds that the worker runs.
    pub kinds: Vec<String>,
    /// The capabilities of the worker, such as `channel sms`, each with a digest of its settings.
    pub capabilities: BTreeMap<String, String>,
}

/// All statements of this room, for the test that prepares them on the migrated schema.
pub const STATEMENTS: [(&str, &str); 7] = [
    ("write audit", WRITE_AUDIT),
    ("read audit", READ_AUDIT),
    ("read workers", READ_WORKERS),
    ("read kinds", READ_KINDS),
    ("read public kinds", READ_PUBLIC_KINDS),
    ("read signed out", READ_SIGNED_OUT),
    ("write signed out", WRITE_SIGNED_OUT),
];

/// Adds an entry to the audit log.
const WRITE_AUDIT: &str = "
    insert into flyball.audit (actor, action, subject, before, after, why, token, tenant)
    values ($1, $2, $3, $4, $5, $6, $7, $8)";

/// Reads the audit log, of a tenant or all of it, newest first by the primary
/// key.
const READ_AUDIT: &str = "
    select id, at, actor, token, tenant, action, subject, before, after, why
    from flyball.audit
    where $2::text is null or tenant = $2
    order by id desc
    limit $1";

/// Reads the live workers with the number of jobs that each runs. Leases are narrow and at most as
/// many as the slots of all workers, so counting them is cheap.
const READ_WORKERS: &str = "
    with running as (
        select worker_id, count(*) as jobs
        from flyball.lease
        group by worker_id
    )
    select w.id::bigint as id, w.name, w.role = 'remote' as remote, w.host, w.started_at, w.heartbeat_at, w.kinds, w.throttles, w.capabilities, coalesce(r.jobs, 0) as running
    from flyball.worker w
    left join running r on r.worker_id = w.id
    where w.stopped_at is null
      and w.heartbeat_at + w.ttl >= clock_timestamp()
      and w.role <> 'broker'
    order by w.id
    limit 1000";

/// Reads the kinds that a worker has announced or that were registered manually.
const READ_KINDS: &str = "
    select name
    from flyball.kind
    order by name
    limit 1000";

/// Reads the public kinds, which every token with the scope to enqueue may enqueue.
const READ_PUBLIC_KINDS: &str = "
    select name
    from flyball.kind
    where public
    order by name
    limit 1000";

/// Reads the sessions that were ended before their expiry.
const READ_SIGNED_OUT: &str = "
    select digest, until_s
    from flyball.revoked_session
    order by until_s desc
    limit 10000";

/// Adds an ended session, and deletes those that have expired.
const WRITE_SIGNED_OUT: &str = "
    with over as (
        delete from flyball.revoked_session where until_s <= $3
    )
    insert into flyball.revoked_session (digest, until_s) values ($1, $2)
    on conflict do nothing";

/// Adds an entry to the audit log.
pub async fn write_audit(pool: &Db, entry: &AuditEntry) -> Result<(), ReadError> {
    sqlx::query(WRITE_AUDIT)
        .bind(&entry.actor)
        .bind(&entry.action)
        .bind(&entry.subject)
        .bind(&entry.before)
        .bind(&entry.after)
        .bind(&entry.why)
        .bind(&entry.token)
        .bind(&entry.tenant)
        .execute(pool)
        .await
        .map(drop)
        .map_err(ReadError::from)
}

/// Returns the last entries of the audit log, newest first; with a tenant those that its tokens
/// made.
pub async fn read_audit(
    pool: &Db,
    tenant: Option<&str>,
    limit: i64,
) -> Result<Vec<AuditEntry>, ReadError> {
    let rows = sqlx::query(READ_AUDIT)
        .bind(limit)
        .bind(tenant)
        .fetch_all(pool)
        .await
        .map_err(ReadError::from)?;
    rows.iter()
        .map(entry)
        .collect::<Result<_, _>>()
        .map_err(ReadError::from)
}

/// Returns the live workers.
pub async fn read_workers(pool: &Db) -> Result<Vec<Worker>, ReadError> {
    let rows = sqlx::query(READ_WORKERS)
        .fetch_all(pool)
        .await
        .map_err(ReadError::from)?;
    rows.iter()
        .map(worker)
        .collect::<Result<_, _>>()
        .map_err(ReadError::from)
}

/// Returns the kinds that can be enqueued.
pub async fn read_kinds(pool: &Db) -> Result<Vec<String>, ReadError> {
    sqlx::query_scalar(READ_KINDS)
        .fetch_all(pool)
        .await
        .map_err(ReadError::from)
}

/// Returns the public kinds, which every token with the scope to enqueue may enqueue.
pub async fn read_public_kinds(pool: &Db) -> Result<Vec<String>, ReadError> {
    sqlx::query_scalar(READ_PUBLIC_KINDS)
        .fetch_all(pool)
        .await
        .map_err(ReadError::from)
}

/// Returns the digests of ended sessions, each with the unix second of its expiry.
pub async fn read_signed_out(pool: &Db) -> Result<Vec<(String, i64)>, ReadError> {
    sqlx::query_as(READ_SIGNED_OUT)
        .fetch_all(pool)
        .await
        .map_err(ReadError::from)
}

/// Stores the end of a session.
pub async fn write_signed_out(
    pool: &Db,
    digest: &str,
    until_s: i64,
    now_s: i64,
) -> Result<(), ReadError> {
    sqlx::query(WRITE_SIGNED_OUT)
        .bind(digest)
        .bind(until_s)
        .bind(now_s)
        .execute(pool)
        .await
        .map(drop)
        .map_err(ReadError::from)
}

fn entry(row: &PgRow) -> Result<AuditEntry, sqlx::Error> {
    Ok(AuditEntry {
        id: row.try_get("id")?,
        at: time(row, "at")?,
        actor: row
            .try_get::<Option<String>, _>("actor")?
            .unwrap_or_default(),
        token: row.try_get("token")?,
        tenant: row.try_get("tenant")?,
        action: row.try_get("action")?,
        subject: row
            .try_get::<Option<String>, _>("subject")?
            .unwrap_or_default(),
        before: row.try_get::<Option<Value>, _>("before")?,
        after: row.try_get::<Option<Value>, _>("after")?,
        why: row.try_get::<Option<String>, _>("why")?.unwrap_or_default(),
    })
}

fn worker(row: &PgRow) -> Result<Worker, sqlx::Error> {
    Ok(Worker {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        remote: row.try_get("remote")?,
        host: row.try_get("host")?,
        started_at: time(row, "started_at")?,
        heartbeat_at: time(row, "heartbeat_at")?,
        running: row.try_get("running")?,
        throttles: row.try_get("throttles")?,
        kinds: row
            .try_get::<Option<Vec<String>>, _>("kinds")?
            .unwrap_or_default(),
        capabilities: row
            .try_get::<sqlx::types::Json<BTreeMap<String, String>>, _>("capabilities")?
            .0,
    })
}

fn time(row: &PgRow, column: &str) -> Result<Timestamp, sqlx::Error> {
    row.try_get::<jiff_sqlx::Timestamp, _>(column)
        .map(jiff_sqlx::Timestamp::to_jiff)
}

impl From<sqlx::Error> for ReadError {
    fn from(error: sqlx::Error) -> Self {
        jobs::Error::from(error).into()
    }
}
