//! Changes of accounts' breakers: a row for each, and a job that sends an alert if the pool has an
//! address for alerts.

use std::time::Duration;

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use serde_json::json;

use crate::jobs::{NewJob, Queue};
use crate::postgres::Db;
use crate::providers::Pool;
use crate::providers::pool::Change;

/// The throttle of the jobs that send alerts.
///
/// Every process creates it, because a stall of another throttle must not hold alerts back.
pub const ALERTS: &str = "flyball:alerts";

/// Most changes on one page.
const PAGE_MAX: i64 = 200;

/// The time for which a repeated alert counts as the same one.
const ALERT_UNIQUE_FOR: Duration = Duration::from_secs(86_400);

const INSERT: &str = "\
insert into flyball.account_event (pool, account, from_state, to_state, reason, changed_at) values ($1, $2, $3, $4, $5, $6)";

const NEWEST_EVENTS: &str = "\
select account, from_state, to_state, reason, changed_at from flyball.account_event where pool = $1 order by id desc limit $2";

/// Every statement of this file, for the test that prepares them all.
pub const STATEMENTS: &[&str] = &[INSERT, NEWEST_EVENTS];

/// A recorded change of an account's breaker.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct AccountEvent {
    /// The account.
    pub account: String,
    /// The breaker's previous state: `closed`, `open` or `half_open`.
    pub from: String,
    /// The breaker's new state.
    pub to: String,
    /// The reason for the change.
    pub reason: String,
    /// The time of the change, by the clock of the throttle store.
    pub at: Timestamp,
}

/// Records changes of breakers and sends alerts.
#[derive(Clone)]
pub struct Alarms {
    queue: Queue,
    db: Db,
}

impl Alarms {
    /// Creates one that records changes in the database of `queue`.
    pub fn new(queue: Queue) -> Self {
        Self {
            db: queue.pool.clone(),
            queue,
        }
    }

    /// Enqueues the alert of a change if the pool has an address for alerts, and records the
    /// change.
    ///
    /// # Errors
    ///
    /// Fails if Postgres does not answer.
    pub async fn record_change(
        &self,
        pool: &Pool,
        change: &Change,
    ) -> Result<(), crate::jobs::Error> {
        let at = Timestamp::from_millisecond(change.at_ms).unwrap_or_default();
        if let Some(url) = &pool.alert_url {
            let body = json!({
                "type": format!("account.breaker.{}", change.to.as_str()),
                "timestamp": at.to_string(),
                "data": {
                    "pool": pool.name, "provider": pool.provider.as_str(), "account": change.account,
                    "from": change.from.as_str(), "to": change.to.as_str(), "reason": change.why,
                    "until": Timestamp::from_millisecond(change.until_ms).ok().filter(|_| change.until_ms > 0).map(|at| at.to_string()),
                },
            });
            let mut args = json!({"method": "POST", "url": url, "body": body});
            if let Some(secret) = &pool.alert_secret {
                args["secret"] = json!(secret);
            }
            // If Postgres fails before the row is written, this runs again and finds the job there.
            let once = format!(
                "account.breaker:{}:{}:{}:{}",
                pool.name,
                change.account,
                change.at_ms,
                change.to.as_str()
            );
            let job = NewJob::new("http", args)
                .throttle(ALERTS)
                .key(format!("alerts:{}", pool.name))
                .priority(0);
            let job = job.unique(once).unique_for(ALERT_UNIQUE_FOR);
            self.queue.enqueue(&[job]).await?;
        }
        sqlx::query(INSERT)
            .bind(&pool.name)
            .bind(&change.account)
            .bind(change.from.as_str())
            .bind(change.to.as_str())
            .bind(&change.why)
            .bind(at.to_sqlx())
            .execute(&self.db)
            .await?;
        Ok(())
    }

    /// Returns the newest changes of a pool, at most `most`.
    ///
    /// # Errors
    ///
    /// Fails if Postgres does not answer.
    pub async fn newest(
        &self,
        pool: &str,
        most: i64,
    ) -> Result<Vec<AccountEvent>, crate::jobs::Error> {
        type AlarmRow = (String, String, String, String, jiff_sqlx::Timestamp);
        let rows: Vec<AlarmRow> = sqlx::query_as(NEWEST_EVENTS)
            .bind(pool)
            .bind(most.clamp(1, PAGE_MAX))
            .fetch_all(&self.db)
            .await?;
        let event = |(account, from, to, reason, at): AlarmRow| AccountEvent {
            account,
            from,
            to,
            reason,
            at: at.to_jiff(),
        };
        Ok(rows.into_iter().map(event).collect())
    }
}
