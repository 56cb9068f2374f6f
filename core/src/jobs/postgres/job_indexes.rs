//! Indexes over jobs that an operator adds: by a value in the arguments, or by the trace.
//!
//! They are made while the queue works: each day's part is built without a lock that stops writers,
//! and joins an index over all days, of which the coming days get their parts by themselves.

use std::time::Duration;

use jiff_sqlx::Timestamp;
use sqlx::{AssertSqlSafe, Executor, PgPool, Row};

use super::Queue;
use crate::jobs::{Error, JobIndex};

/// The name of the index by trace.
const TRACE: &str = "job_by_trace";

/// The most added indexes, because each is written with every job.
const INDEXES_MAX: i64 = 8;

/// The settings of the session. A lock is waited for a short time, because all claims and producers
/// would wait behind it. An index with a function that somebody has planted in another schema would
/// call it with the rights of the schema's owner for each job.
const SESSION: &str = "set search_path = pg_catalog, pg_temp; set lock_timeout = '100ms'";

/// The attempts at a lock, and the pause between two of them.
const LOCK_ATTEMPTS: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(300);

pub(super) const LIST: &str = "
select i.name, i.path, i.created_at, coalesce(x.indisvalid, false) as is_ready,
    (select coalesce(sum(pg_relation_size(p.inhrelid)), 0)::bigint from pg_inherits p where p.inhparent = c.oid) as bytes
from flyball.job_index i
left join pg_class c on c.relname = i.name and c.relnamespace = 'flyball'::regnamespace
left join pg_index x on x.indexrelid = c.oid
order by i.created_at, i.name";

pub(super) const ADD: &str = "
insert into flyball.job_index (name, path)
select $1, $2
where (select count(*) from flyball.job_index) < $3 or exists (select from flyball.job_index where name = $1)
on conflict (name) do update set created_at = flyball.job_index.created_at";

pub(super) const REMOVE: &str = "delete from flyball.job_index where name = $1";

// The days whose part of the index is missing or was left unfinished.
pub(super) const MISSING: &str = "
select substr(t.relname, 5)::bigint as day, c.oid is not null as is_left
from pg_inherits i
join pg_class t on t.oid = i.inhrelid
left join pg_class c on c.relname = $1 || substr(t.relname, 4) and c.relnamespace = 'flyball'::regnamespace
where i.inhparent = 'flyball.job'::regclass
    and not exists (
        select from pg_index n
        join pg_inherits h on h.inhrelid = n.indexrelid
        join pg_class p on p.oid = h.inhparent
        where n.indrelid = t.oid and p.relname = $1
    )
order by day desc";

impl Queue {
    /// Lists the added indexes.
    pub async fn job_indexes(&self) -> Result<Vec<JobIndex>, Error> {
        let rows = sqlx::query(LIST).fetch_all(&self.pool).await?;
        let index = |row: &sqlx::postgres::PgRow| {
            Ok(JobIndex {
                path: row.try_get("path")?,
                created_at: row.try_get::<Timestamp, _>("created_at")?.to_jiff(),
                is_ready: row.try_get("is_ready")?,
                bytes: row.try_get("bytes")?,
            })
        };
        Ok(rows.iter().map(index).collect::<Result<_, sqlx::Error>>()?)
    }

    /// Adds an index by the value at a path of the arguments, or by the trace if there is no path.
    /// A second call completes one that was broken off.
    pub async fn create_job_index(&self, path: Option<&[String]>) -> Result<(), Error> {
        let name = name_of(path)?;
        let session = self.session(path)?;
        let added = sqlx::query(ADD)
            .bind(&name)
            .bind(path)
            .bind(INDEXES_MAX)
            .execute(&self.pool)
            .await?;
        if added.rows_affected() == 0 {
            return Err(refused(
                path,
                format!(
                    "is one more than the {INDEXES_MAX} that are allowed, because each is written with every job; drop another first"
                ),
            ));
        }
        let (columns, condition) = definition(path);
        let whole = format!(
            "create index if not exists {name} on only flyball.job ({columns}) where {condition}"
        );
        patiently(&session, &whole).await?;
        let missing: Vec<(i64, bool)> = sqlx::query_as(MISSING)
            .bind(&name)
            .fetch_all(&self.pool)
            .await?;
        for (day, is_left) in missing {
            let part = format!("flyball.{name}_{day}");
            if is_left {
                patiently(&session, &format!("drop index if exists {part}")).await?;
            }
            let built = format!(
                "create index concurrently {name}_{day} on flyball.job_{day} ({columns}) where {condition}"
            );
            // It waits for older transactions of the day and holds up neither claims nor producers, so
            // it has all the time it needs; broken off, it would leave a part that is not valid.
            run(&session, "set lock_timeout = 0").await?;
            let built = run(&session, &built).await;
            run(&session, SESSION).await?;
            match built {
                // The day was removed meanwhile.
                Err(error) if is_gone(&error) => continue,
                built => built?,
            }
            let joined = format!("alter index flyball.{name} attach partition {part}");
            match patiently(&session, &joined).await {
                Err(error) if is_gone(&error) => continue,
                joined => joined?,
            }
        }
        session.close().await;
        Ok(())
    }

    /// Drops an added index; returns false if there is none.
    pub async fn drop_job_index(&self, path: Option<&[String]>) -> Result<bool, Error> {
        let name = name_of(path)?;
        let session = self.session(path)?;
        let removed = sqlx::query(REMOVE).bind(&name).execute(&self.pool).await?;
        let whole = format!("drop index if exists flyball.{name}");
        patiently(&session, &whole).await?;
        session.close().await;
        Ok(removed.rows_affected() > 0)
    }

    /// Returns a session of its own, which a pooler in transaction mode does not give.
    fn session(&self, path: Option<&[String]>) -> Result<PgPool, Error> {
        let Some(sessions) = &self.sessions else {
            return Err(refused(
                path,
                "needs a session, which the pooler does not give; set DATABASE_DIRECT_URL"
                    .to_owned(),
            ));
        };
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        let options = options.after_connect(|connection, _| {
            Box::pin(async move { connection.execute(SESSION).await.map(drop) })
        });
        Ok(options.connect_lazy_with((*sessions.connect_options()).clone()))
    }
}

/// Runs a statement that waits for locks, for a tenth of a second at a time.
async fn patiently(session: &PgPool, statement: &str) -> Result<(), Error> {
    let mut attempts = 0;
    loop {
        match run(session, statement).await {
            Err(Error::Store(error)) if is_locked(&error) && attempts < LOCK_ATTEMPTS => {
                attempts += 1;
            }
            ran => return ran,
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
}

async fn run(session: &PgPool, statement: &str) -> Result<(), Error> {
    let ran = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
    Ok(ran.execute(session).await.map(drop)?)
}

/// Returns true if a lock was not free in time.
pub(super) fn is_locked(error: &sqlx::Error) -> bool {
    code_of(error) == "55P03"
}

fn code_of(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    code.unwrap_or_default().into_owned()
}

fn is_gone(error: &Error) -> bool {
    matches!(error, Error::Store(error) if code_of(error) == "42P01")
}

/// Returns the columns and the condition of an index; the search has the same expressions.
fn definition(path: Option<&[String]>) -> (String, String) {
    let Some(path) = path else {
        return (
            "substr(traceparent, 4, 32), id".to_owned(),
            "traceparent is not null".to_owned(),
        );
    };
    let at = format!("args #> '{{{}}}'::text[]", path.join(","));
    (
        format!("jsonb_hash_extended({at}, 0), id"),
        format!("({at}) is not null"),
    )
}

/// Returns the name of an index, or what is wrong with its path.
fn name_of(path: Option<&[String]>) -> Result<String, Error> {
    let Some(path) = path else {
        return Ok(TRACE.to_owned());
    };
    let is_name = |part: &String| {
        let mut bytes = part.bytes();
        bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let is_short = path.iter().map(String::len).sum::<usize>() <= 200;
    if !(1..=8).contains(&path.len()) || !is_short || !path.iter().all(is_name) {
        return Err(refused(
            Some(path),
            "is not a path that can have an index; allowed are 1 to 8 names of letters, digits and _, such as $.customer.id"
                .to_owned(),
        ));
    }
    let digest = path
        .join(".")
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    Ok(format!("job_by_args_{digest:016x}"))
}

/// Returns the refusal of an index, which names the option that chose it.
fn refused(path: Option<&[String]>, message: String) -> Error {
    let field = if path.is_some() { "args" } else { "trace" };
    Error::Refused {
        index: None,
        field: field.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_names_only_and_two_paths_have_two_indexes() {
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        let name = |text: &str| name_of(Some(&path(text)));
        for bad in ["", "a.", "1", "a.0", "a'b", "a b", "ä", "a.b.c.d.e.f.g.h.i"] {
            assert!(name(bad).is_err(), "{bad}");
        }
        assert_ne!(name("a.b").unwrap(), name("a_b").unwrap());
        assert!(name("customer.id").unwrap().len() < 40);
    }
}
