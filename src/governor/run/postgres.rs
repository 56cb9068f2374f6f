//! The journal: a governor's state and its decisions, in Postgres.
//!
//! Every write of a state carries the leader's term, and a later term's state is never overwritten:
//! of two processes that both believe they lead, the older one gets an error here before its tick
//! writes a knob. A decision of an older term is not appended.

use std::time::Duration;

use jiff_sqlx::{Timestamp, ToSqlx};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::governor::decision::Decision;
use crate::governor::law::Phase;
use crate::postgres::Db;
use crate::throttle::{Mode, RateLimit};

/// Selects the newest state of a throttle's governor.
const LOAD: &str = "select term, state from flyball.governor where throttle = $1";

/// Selects the newest states of all governors.
const LOAD_ALL: &str = "select throttle, state from flyball.governor order by throttle";

/// Saves a state unless a later term has written.
///
/// One row per throttle, so the upsert locks nothing else.
const SAVE: &str = "
insert into flyball.governor as kept (throttle, term, state, updated_at)
values ($1, $2, $3, now())
on conflict (throttle) do update
   set term = excluded.term, state = excluded.state, updated_at = excluded.updated_at
 where kept.term <= excluded.term";

/// Appends a decision, unless a later term has written, and keeps the throttle's newest thousand.
///
/// Both parts read the index (throttle, id desc).
const APPEND: &str = "
with expired as (
  delete from flyball.decision
   where throttle = $1
     and id <= (select id from flyball.decision where throttle = $1 order by id desc offset 999 limit 1)
)
insert into flyball.decision (throttle, at, rps, previous_rps, breaker, mode, limiting, reason, terms)
select $1, $2, $3, $4, $5, $6, $7, $8, $9
 where not exists (select from flyball.governor where throttle = $1 and term > $10)
returning id";

/// Selects the newest decisions of one throttle.
const RECENT_OF: &str = "
select id, throttle, at, rps, previous_rps, breaker, mode, limiting, reason, terms
  from flyball.decision
 where throttle = $1
 order by id desc
 limit $2";

/// Selects the newest decisions of all throttles.
const RECENT: &str = "
select id, throttle, at, rps, previous_rps, breaker, mode, limiting, reason, terms
  from flyball.decision
 order by id desc
 limit $1";

/// All statements of this file, for the test that prepares them on the migrated schema.
pub const STATEMENTS: &[&str] = &[LOAD, LOAD_ALL, SAVE, APPEND, RECENT_OF, RECENT];

/// The maximum number of decisions in one query.
pub const RECENT_MAX: i64 = 1000;

/// The reason why a journal operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A later leader has written.
    #[error("a newer leader governs {throttle}; term {term} has ended")]
    Fenced {
        throttle: String,
        /// The caller's term, which has ended.
        term: u64,
    },
    /// Postgres failed or timed out.
    #[error("the governor's journal in Postgres failed")]
    Postgres(#[from] sqlx::Error),
}

/// Access to the stored states and decisions.
#[derive(Clone, Debug)]
pub struct Journal {
    pool: Db,
    patience: Duration,
}

/// The default timeout of a call.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

impl Journal {
    /// Creates a journal in the database of `pool`.
    pub fn new(pool: impl Into<Db>) -> Self {
        Self {
            pool: pool.into(),
            patience: READ_TIMEOUT,
        }
    }

    /// Sets the timeout of every call, because a connection may hang in the middle of a response.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Error> {
        Ok(tokio::time::timeout(self.patience, call)
            .await
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))?)
    }

    /// Returns the newest state of a throttle's governor, with the term that wrote it.
    pub async fn load(&self, throttle: &str) -> Result<Option<(u64, Value)>, Error> {
        let row = self
            .bounded(sqlx::query(LOAD).bind(throttle).fetch_optional(&self.pool))
            .await?;
        row.map(|row| Ok((row.try_get::<i64, _>("term")? as u64, row.try_get("state")?)))
            .transpose()
    }

    /// Returns the newest states of all governors, by throttle.
    pub async fn load_all(&self) -> Result<Vec<(String, Value)>, Error> {
        let rows = self
            .bounded(sqlx::query(LOAD_ALL).fetch_all(&self.pool))
            .await?;
        rows.iter()
            .map(|row| Ok((row.try_get("throttle")?, row.try_get("state")?)))
            .collect()
    }

    /// Saves `state`, unless a later term than `term` has written.
    pub async fn save(&self, throttle: &str, term: u64, state: &Value) -> Result<(), Error> {
        let saved = sqlx::query(SAVE)
            .bind(throttle)
            .bind(term as i64)
            .bind(state)
            .execute(&self.pool);
        let saved = self.bounded(saved).await?;
        if saved.rows_affected() == 0 {
            return Err(Error::Fenced {
                throttle: throttle.to_owned(),
                term,
            });
        }
        Ok(())
    }

    /// Appends a decision and returns its number, unless a later term than `term` has written.
    ///
    /// The newest 1000 decisions of each throttle are kept.
    pub async fn append(&self, term: u64, decision: &Decision) -> Result<i64, Error> {
        let appended = sqlx::query(APPEND)
            .bind(&decision.throttle)
            .bind(decision.at.to_sqlx())
            .bind(decision.rps)
            .bind(decision.previous_rps.number())
            .bind(variant_name(&decision.breaker))
            .bind(variant_name(&decision.mode))
            .bind(&decision.limiting)
            .bind(&decision.reason)
            .bind(&decision.terms)
            .bind(term as i64)
            .fetch_optional(&self.pool);
        match self.bounded(appended).await? {
            Some(row) => Ok(row.try_get("id")?),
            None => Err(Error::Fenced {
                throttle: decision.throttle.clone(),
                term,
            }),
        }
    }

    /// Returns the newest decisions of one throttle or of all, newest first: at most `limit` and at
    /// most [`RECENT_MAX`].
    pub async fn recent(&self, throttle: Option<&str>, limit: i64) -> Result<Vec<Decision>, Error> {
        let limit = limit.clamp(0, RECENT_MAX);
        let rows = match throttle {
            Some(throttle) => {
                self.bounded(
                    sqlx::query(RECENT_OF)
                        .bind(throttle)
                        .bind(limit)
                        .fetch_all(&self.pool),
                )
                .await?
            }
            None => {
                self.bounded(sqlx::query(RECENT).bind(limit).fetch_all(&self.pool))
                    .await?
            }
        };
        rows.iter().map(|row| Ok(decision(row)?)).collect()
    }
}

fn decision(row: &PgRow) -> Result<Decision, sqlx::Error> {
    let at: Timestamp = row.try_get("at")?;
    Ok(Decision {
        id: row.try_get("id")?,
        throttle: row.try_get("throttle")?,
        at: at.to_jiff(),
        rps: row.try_get("rps")?,
        previous_rps: row
            .try_get::<Option<f64>, _>("previous_rps")?
            .map_or(RateLimit::Stopped, RateLimit::new),
        breaker: of_word::<Phase>(row.try_get("breaker")?),
        mode: of_word::<Mode>(row.try_get("mode")?),
        limiting: row.try_get("limiting")?,
        reason: row.try_get("reason")?,
        terms: row.try_get("terms")?,
    })
}

/// Returns the serialized name of a unit variant.
fn variant_name<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|v| v.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Returns the variant of a name; the default if a later release wrote an unknown one.
fn of_word<T: serde::de::DeserializeOwned + Default>(word: String) -> T {
    serde_json::from_value(Value::String(word)).unwrap_or_default()
}
