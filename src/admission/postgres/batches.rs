//! Batches of messages: acceptance, state, pause, resume and cancellation.

use std::collections::BTreeMap;

use jiff::Timestamp;
use jiff_sqlx::{Timestamp as SqlTimestamp, ToSqlx};
use serde::Serialize;
use sqlx::Row;
use sqlx::types::Json;

use super::requests::{Acceptance, Digests, repeated};
use crate::jobs::{Error, NewJob, Queue};

/// The most recipients of a batch.
pub const RECIPIENTS_MAX: usize = 500;

/// The most recipients whose messages are enqueued with the request; more are left to a job.
pub const INLINE_MAX: usize = 100;

const ACCEPT_BATCH: &str = "
select answer, job_id, batch_id, used, jobs
from flyball.accept_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

const EXPAND: &str = "select flyball.expand_batch($1)";

const PAUSE: &str = "select flyball.pause_batch($1, $2)";

const RESUME: &str = "select flyball.resume_batch($1, $2)";

const CANCEL: &str = "select state, sent, cancelled, too_late from flyball.cancel_batch($1, $2)";

// One probe of an index for each message, of which there are a few hundred.
const SHOW: &str = "
with batch as materialized (
    select * from flyball.batch b where b.id = $2 and ($1::text is null or b.tenant = $1)
),
mine as materialized (
    select m.job_id, n.waits,
        case when m.cancelled or n.state = 'failed' and n.reason = 'cancelled' then 'cancelled'
            when n.waits then 'waiting' else n.state end as state
    from batch b
    cross join lateral (select * from flyball.batch_message where batch_id = b.id) m
    cross join lateral (
        select v.state, v.reason, v.state = 'queued' and flyball.awaits_admission(v.job_id) as waits
        from flyball.notification v where v.job_id = m.job_id limit 1
    ) n
)
select b.id, b.tenant, b.module, b.state, b.recipients, b.unsent, jsonb_array_length(b.messages) as expanding, b.created_at,
    b.updated_at, (select coalesce(jsonb_object_agg(s.state, s.jobs), '{}') from (select state, count(*) as jobs from mine group by 1) s)
        as counts,
    (select max(job_id) from mine where waits) as last_waiting
from batch b";

/// The statements of this file.
pub const BATCH_STATEMENTS: &[(&str, &str)] = &[
    ("accept batch", ACCEPT_BATCH),
    ("expand batch", EXPAND),
    ("pause batch", PAUSE),
    ("resume batch", RESUME),
    ("cancel batch", CANCEL),
    ("show batch", SHOW),
];

/// A batch to accept.
#[derive(Clone, Debug)]
pub struct BatchRequest<'a> {
    /// The tenant.
    pub tenant: &'a str,
    /// Its module.
    pub module: &'a str,
    /// The digests of the request.
    pub digests: &'a Digests,
    /// The number of slots that were taken.
    pub admitted: u32,
    /// The jobs of the messages, one for each recipient; all of one pool, priority and time.
    pub jobs: &'a [NewJob],
}

/// The result of a request to accept a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum BatchAcceptance {
    /// The batch was accepted.
    Accepted {
        /// Its id.
        batch_id: i64,
        /// The number of slots that its first messages used.
        used: u32,
        /// The jobs of its messages; empty if a job enqueues them.
        jobs: Vec<i64>,
    },
    /// The request repeats an earlier one, or cannot be handled now.
    Repeated(Acceptance),
}

/// A batch as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct Batch {
    /// Its id.
    pub id: i64,
    /// The tenant that sent it; empty for operators.
    pub tenant: String,
    /// The module that sent it.
    pub module: String,
    /// The state: `expanding`, `running`, `paused`, `cancelled` or `done`.
    pub state: String,
    /// The number of its recipients.
    pub recipients: i64,
    /// The number of messages in each state: `expanding` for those that are not enqueued yet,
    /// `waiting` for those that wait for the limits of the tenant, `duplicate` for those whose unique
    /// key another message holds, `cancelled`, or the state of the delivery. They add up to the
    /// recipients.
    #[cfg_attr(feature = "api", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<String, i64>,
    /// The time at which the last of those that wait is admitted, as estimated; `null` if none waits or
    /// it cannot be estimated.
    pub estimate: Option<Timestamp>,
    /// The time at which it was accepted.
    pub created_at: Timestamp,
    /// The time of the last change of its state.
    pub updated_at: Timestamp,
    /// The last message that waits.
    #[serde(skip)]
    pub(in crate::admission) last_waiting: Option<i64>,
}

/// The result of a cancellation; the numbers add up to the recipients.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct CancelledBatch {
    /// The state: `cancelled`.
    pub state: String,
    /// Messages that had ended before.
    pub sent: i64,
    /// Messages that will not be sent.
    pub cancelled: i64,
    /// Messages that are being sent and were asked to stop.
    pub too_late: i64,
}

/// The batches in Postgres. `tenant` is the tenant whose batches are meant, `None` for all.
#[derive(Clone)]
pub struct Batches {
    queue: Queue,
}

impl Batches {
    /// Uses this queue.
    pub fn new(queue: Queue) -> Self {
        Self { queue }
    }

    /// Accepts a batch, or finds the earlier request that it repeats.
    pub async fn accept(&self, request: &BatchRequest<'_>) -> Result<BatchAcceptance, Error> {
        let Some(first) = request.jobs.first() else {
            return Err(Error::Refused {
                index: None,
                field: "recipients".to_owned(),
                message: "must not be empty".to_owned(),
            });
        };
        let message = |job: &NewJob| serde_json::json!({"args": job.args, "key": job.key, "unique_key": job.unique_key});
        let messages: Vec<_> = request.jobs.iter().map(message).collect();
        let row = sqlx::query(ACCEPT_BATCH)
            .bind(request.tenant)
            .bind(request.module)
            .bind(&request.digests.request)
            .bind(&request.digests.body)
            .bind(request.digests.has_key)
            .bind(request.admitted as i32)
            .bind(&first.throttle)
            .bind(first.priority)
            .bind(first.run_at.map(|at| at.to_sqlx()))
            .bind(Json(messages))
            .bind(first.priority == 0)
            .fetch_one(&self.queue.pool)
            .await?;
        if let Some(repeated) = repeated(&row)? {
            return Ok(BatchAcceptance::Repeated(repeated));
        }
        Ok(BatchAcceptance::Accepted {
            batch_id: row.try_get("batch_id")?,
            used: row.try_get::<i32, _>("used")?.unsigned_abs(),
            jobs: row
                .try_get::<Option<Vec<i64>>, _>("jobs")?
                .unwrap_or_default(),
        })
    }

    /// Enqueues the messages of a batch that are not enqueued yet, if it is neither paused nor cancelled.
    pub async fn expand(&self, id: i64) -> Result<(), Error> {
        sqlx::query(EXPAND)
            .bind(id)
            .execute(&self.queue.pool)
            .await?;
        Ok(())
    }

    /// Returns a batch.
    pub async fn show(&self, tenant: Option<&str>, id: i64) -> Result<Option<Batch>, Error> {
        let show = sqlx::query(SHOW).bind(tenant).bind(id);
        let Some(row) = show.fetch_optional(&self.queue.pool).await? else {
            return Ok(None);
        };
        let Json(mut counts): Json<BTreeMap<String, i64>> = row.try_get("counts")?;
        let recipients = i64::from(row.try_get::<i32, _>("recipients")?);
        let expanding = i64::from(row.try_get::<i32, _>("expanding")?);
        let unsent = i64::from(row.try_get::<i32, _>("unsent")?);
        let mut add = |state: &str, messages: i64| {
            if messages > 0 {
                *counts.entry(state.to_owned()).or_default() += messages;
            }
        };
        add("expanding", expanding);
        add("cancelled", unsent);
        let known: i64 = counts.values().sum();
        if recipients > known {
            counts.insert("duplicate".to_owned(), recipients - known);
        }
        let mut state: String = row.try_get("state")?;
        let is_open = ["expanding", "waiting", "queued"]
            .iter()
            .any(|open| counts.contains_key(*open));
        if state == "running" && !is_open {
            "done".clone_into(&mut state);
        }
        let moment = |column| -> Result<Timestamp, sqlx::Error> {
            Ok(row.try_get::<SqlTimestamp, _>(column)?.to_jiff())
        };
        Ok(Some(Batch {
            id: row.try_get("id")?,
            tenant: row.try_get("tenant")?,
            module: row.try_get("module")?,
            state,
            recipients,
            counts,
            estimate: None,
            created_at: moment("created_at")?,
            updated_at: moment("updated_at")?,
            last_waiting: row.try_get("last_waiting")?,
        }))
    }

    /// Pauses a batch; returns its state.
    pub async fn pause(&self, tenant: Option<&str>, id: i64) -> Result<Option<String>, Error> {
        self.turn(PAUSE, tenant, id).await
    }

    /// Resumes a paused batch; returns its state.
    pub async fn resume(&self, tenant: Option<&str>, id: i64) -> Result<Option<String>, Error> {
        self.turn(RESUME, tenant, id).await
    }

    async fn turn(
        &self,
        statement: &'static str,
        tenant: Option<&str>,
        id: i64,
    ) -> Result<Option<String>, Error> {
        let turn = sqlx::query_scalar(statement).bind(tenant).bind(id);
        Ok(turn.fetch_one(&self.queue.pool).await?)
    }

    /// Cancels a batch.
    pub async fn cancel(
        &self,
        tenant: Option<&str>,
        id: i64,
    ) -> Result<Option<CancelledBatch>, Error> {
        let cancel = sqlx::query(CANCEL).bind(tenant).bind(id);
        let row = cancel.fetch_one(&self.queue.pool).await?;
        let Some(state) = row.try_get::<Option<String>, _>("state")? else {
            return Ok(None);
        };
        let number = |column| row.try_get::<i32, _>(column).map(i64::from);
        Ok(Some(CancelledBatch {
            state,
            sent: number("sent")?,
            cancelled: number("cancelled")?,
            too_late: number("too_late")?,
        }))
    }
}
