//! Batches of messages: acceptance, state, pause, resume and cancellation.

use std::collections::{BTreeMap, HashSet};

use jiff::Timestamp;
use jiff_sqlx::{Timestamp as SqlTimestamp, ToSqlx};
use serde::Serialize;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use super::requests::{Acceptance, Digests, repeated};
use crate::jobs::{Attribution, Error, NewJob, Queue};

/// The most recipients of a batch.
pub const RECIPIENTS_MAX: usize = 500;

/// The most recipients whose messages are enqueued with the request; more are left to a job.
pub const INLINE_MAX: usize = 100;

const ACCEPT_BATCH: &str = "
select answer, job_id, batch_id, used, jobs
from flyball.accept_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";

const OTHERS: &str = "
select g.job_id from unnest($2::bigint[]) as g(job_id)
where not exists (select from flyball.batch_message m where m.job_id = g.job_id and m.batch_id = $1)";

const EXPAND: &str = "select flyball.expand_batch($1)";

const PAUSE: &str = "select flyball.pause_batch($1, $2, $3, $4)";

const RESUME: &str = "select flyball.resume_batch($1, $2, $3, $4)";

const PAUSE_OF: &str = "select flyball.batch_pause($1)";

const CANCEL: &str =
    "select state, sent, cancelled, too_late, ended from flyball.cancel_batch($1, $2, $3, $4)";

// The chosen batches with the counts of their messages: some probes of indexes for each message.
// The limits keep a planner from reading the whole of a table in place of a probe.
macro_rules! batches {
    ($($chosen:tt)*) => {
        concat!(
            "
with ",
            $($chosen)*,
            ",
members as materialized (
    select b.id as batch_id, m.job_id, w.waits is true as waits,
        case when m.cancelled or n.state = 'failed' and n.reason = 'cancelled' then 'cancelled'
            when h.is_held then 'held' when w.waits then 'waiting' else coalesce(n.state, 'forgotten') end as state
    from chosen b
    cross join lateral (select * from flyball.batch_message where batch_id = b.id) m
    left join lateral (
        select v.state, v.reason from flyball.notification v where v.job_id = m.job_id limit 1
    ) n on true
    left join lateral (
        select true as waits
        from flyball.job j
        where n.state = 'queued' and j.id = m.job_id and j.admission_lane is not null
            and coalesce(
                (select true from flyball.ready r
                 where r.lane_id = j.admission_lane and r.priority = j.priority and r.job_id = j.id limit 1),
                (select true from flyball.scheduled s where s.job_id = j.id and s.lane_id = j.admission_lane limit 1))
        limit 1
    ) w on true
    left join lateral (
        select true as is_held
        from flyball.message_plan p
        where n.state = 'queued' and p.job_id = m.job_id and p.state = 'held'
            and exists (select from flyball.scheduled s where s.job_id = p.job_id)
        limit 1
    ) h on true
),
counted as materialized (
    select s.batch_id, jsonb_object_agg(s.state, s.jobs) as counts, max(s.last_waiting) as last_waiting
    from (
        select batch_id, state, count(*) as jobs, max(job_id) filter (where waits) as last_waiting from members group by 1, 2
    ) s
    group by 1
)
select p.walked, p.last_walked, b.id, b.tenant, b.module, b.state, b.paused_by_operators, b.problem, b.recipients, b.not_enqueued,
    jsonb_array_length(b.messages) as expanding, b.created_at, b.updated_at, coalesce(c.counts, '{}') as counts, c.last_waiting
from (select count(*) as walked, min(id) as last_walked from page) p
left join chosen b on true
left join counted c on c.batch_id = b.id
order by b.id desc"
        )
    };
}

// A page of the index; what does not fit the filter is passed over.
macro_rules! list {
    ($tenant:literal) => {
        batches!(concat!(
            "page as materialized (
    select b.id, b.module, b.state from flyball.batch b where b.id < $2 and ",
            $tenant,
            " order by b.id desc limit $3
),
chosen as materialized (
    select b.*
    from (
        select p.id from page p
        where ($4::text is null or p.module = $4) and ($5::text is null or p.state = $5) order by p.id desc limit $6
    ) f
    cross join lateral (select * from flyball.batch where id = f.id) b
)"
        ))
    };
}

const SHOW: &str = batches!(
    "chosen as materialized (
    select * from flyball.batch b where b.id = $2 and ($1::text is null or b.tenant = $1)
),
page as materialized (select c.id from chosen c)"
);

const LIST: &str = list!("$1::text is null");

const LIST_OF_TENANT: &str = list!("b.tenant = $1");

/// The most batches that one page walks over.
const WALKED_MAX: i64 = 1000;

/// The statements of this file.
pub const BATCH_STATEMENTS: &[(&str, &str)] = &[
    ("accept batch", ACCEPT_BATCH),
    ("messages of others", OTHERS),
    ("expand batch", EXPAND),
    ("pause batch", PAUSE),
    ("resume batch", RESUME),
    ("cancel batch", CANCEL),
    ("pause of a message", PAUSE_OF),
    ("show batch", SHOW),
    ("list batches", LIST),
    ("list batches of a tenant", LIST_OF_TENANT),
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

/// A message of a batch as `flyball.accept_batch` takes it.
#[derive(Serialize)]
struct BatchMessage<'a> {
    args: &'a Value,
    key: &'a str,
    unique_key: Option<&'a str>,
}

impl<'a> BatchMessage<'a> {
    fn of(job: &'a NewJob) -> Self {
        Self {
            args: &job.args,
            key: &job.key,
            unique_key: job.unique_key.as_deref(),
        }
    }
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

/// A batch, as shown to clients.
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
    /// True if it is `paused` by operators, who alone resume it then.
    pub paused_by_operators: bool,
    /// The reason for which its messages could not be enqueued, so that it is `cancelled`; `null`
    /// for none.
    pub problem: Option<String>,
    /// The number of its recipients.
    pub recipients: i64,
    /// The number of messages in each state: `expanding` for those that are not enqueued yet,
    /// `held` for those that a gate of their recipient holds, `waiting` for those that wait for the
    /// limits of the tenant, `duplicate` for those whose unique key another message holds or whose
    /// content went before, `cancelled`, `forgotten` for those whose records were deleted after
    /// their retention, or the state of the delivery, such as `capped`. They add up to the
    /// recipients.
    #[cfg_attr(feature = "api", schema(value_type = BTreeMap<String, u64>))]
    pub counts: BTreeMap<String, i64>,
    /// The time at which the last of those that wait is admitted, as estimated; `null` if none
    /// waits, while it is paused, or if it cannot be estimated.
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
    /// Messages that a provider had accepted before.
    pub sent: i64,
    /// Messages that will not be sent.
    pub cancelled: i64,
    /// Messages that are being sent and were asked to stop.
    pub too_late: i64,
    /// Messages that had ended otherwise, by their states, such as `capped` or `duplicate`.
    #[cfg_attr(feature = "api", schema(value_type = BTreeMap<String, u64>))]
    pub ended: BTreeMap<String, i64>,
}

/// The batches that a list shows.
#[derive(Clone, Copy, Debug)]
pub struct BatchFilter<'a> {
    /// Only those of this tenant; `None` for all.
    pub tenant: Option<&'a str>,
    /// Only those of this module.
    pub module: Option<&'a str>,
    /// Only those in this state, a word of [`Batches::STATES`].
    pub state: Option<&'a str>,
    /// Only those older than this one.
    pub before: Option<i64>,
    /// The most batches of the page.
    pub limit: i64,
}

/// A page of batches, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BatchPage {
    /// The batches. The page may be short or empty although more follow.
    pub batches: Vec<Batch>,
    /// The id before which the next page begins; `None` at the end.
    pub next: Option<i64>,
}

/// The batches in Postgres. A tenant, or that of a signature, reaches its own; `None` reaches all.
#[derive(Clone)]
pub struct Batches {
    queue: Queue,
}

impl Batches {
    /// The states of a batch.
    pub const STATES: [&str; 5] = ["expanding", "running", "paused", "cancelled", "done"];

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
        let messages: Vec<BatchMessage<'_>> = request.jobs.iter().map(BatchMessage::of).collect();
        let _place = self.queue.tenant_place(request.tenant).await;
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

    /// Returns those of these messages that belong to another batch than this one.
    pub async fn others(&self, id: i64, jobs: &[i64]) -> Result<HashSet<i64>, Error> {
        let others = sqlx::query_scalar(OTHERS).bind(id).bind(jobs);
        let others: Vec<i64> = others.fetch_all(&self.queue.pool).await?;
        Ok(others.into_iter().collect())
    }

    /// Enqueues the messages of a batch that are not enqueued yet, if it is neither paused nor
    /// cancelled.
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
        let row = show.fetch_one(&self.queue.pool).await?;
        match row.try_get::<Option<i64>, _>("id")? {
            Some(_) => batch_of(&row).map(Some),
            None => Ok(None),
        }
    }

    /// Returns a page of batches, newest first.
    pub async fn list(&self, wanted: BatchFilter<'_>) -> Result<BatchPage, Error> {
        let statement = match wanted.tenant {
            Some(_) => LIST_OF_TENANT,
            None => LIST,
        };
        // The table does not know which ones are done.
        let stored = wanted.state.map(|state| match state {
            "done" => "running",
            other => other,
        });
        let rows = sqlx::query(statement)
            .bind(wanted.tenant)
            .bind(wanted.before.unwrap_or(i64::MAX))
            .bind(WALKED_MAX)
            .bind(wanted.module)
            .bind(stored)
            .bind(wanted.limit)
            .fetch_all(&self.queue.pool)
            .await?;
        let mut batches = Vec::with_capacity(rows.len());
        let mut next: Option<i64> = None;
        for row in &rows {
            if row.try_get::<i64, _>("walked")? >= WALKED_MAX {
                next = row.try_get("last_walked")?;
            }
            if row.try_get::<Option<i64>, _>("id")?.is_some() {
                batches.push(batch_of(row)?);
            }
        }
        if batches.len() as i64 >= wanted.limit {
            next = batches.last().map(|last| last.id);
        }
        batches.retain(|batch| wanted.state.is_none_or(|state| batch.state == state));
        Ok(BatchPage { batches, next })
    }

    /// Pauses a batch; returns its state.
    pub async fn pause(&self, id: i64, signed: &Attribution) -> Result<Option<String>, Error> {
        self.turn(PAUSE, id, signed).await
    }

    /// Resumes a paused batch; returns its state, which stays `paused` for a tenant if operators
    /// have paused it.
    pub async fn resume(&self, id: i64, signed: &Attribution) -> Result<Option<String>, Error> {
        self.turn(RESUME, id, signed).await
    }

    /// Returns the reason for which a message does not go, if its batch is paused: the batch, who
    /// paused it, and since when.
    pub async fn pause_of(&self, job_id: i64) -> Result<Option<String>, Error> {
        let pause = sqlx::query_scalar(PAUSE_OF).bind(job_id);
        Ok(pause.fetch_one(&self.queue.pool).await?)
    }

    async fn turn(
        &self,
        statement: &'static str,
        id: i64,
        signed: &Attribution,
    ) -> Result<Option<String>, Error> {
        let turn = sqlx::query_scalar(statement)
            .bind(&signed.identity.tenant)
            .bind(id)
            .bind(signed.line())
            .bind(&signed.why);
        Ok(turn.fetch_one(&self.queue.pool).await?)
    }

    /// Cancels a batch.
    pub async fn cancel(
        &self,
        id: i64,
        signed: &Attribution,
    ) -> Result<Option<CancelledBatch>, Error> {
        let cancel = sqlx::query(CANCEL)
            .bind(&signed.identity.tenant)
            .bind(id)
            .bind(signed.line())
            .bind(&signed.why);
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
            ended: row.try_get::<Json<_>, _>("ended")?.0,
        }))
    }
}

/// Reads a batch; the counts are completed so that they add up to the recipients.
fn batch_of(row: &PgRow) -> Result<Batch, Error> {
    let Json(mut counts): Json<BTreeMap<String, i64>> = row.try_get("counts")?;
    let recipients = i64::from(row.try_get::<i32, _>("recipients")?);
    let expanding = i64::from(row.try_get::<i32, _>("expanding")?);
    let not_enqueued = i64::from(row.try_get::<i32, _>("not_enqueued")?);
    let mut add = |state: &str, messages: i64| {
        if messages > 0 {
            *counts.entry(state.to_owned()).or_default() += messages;
        }
    };
    add("expanding", expanding);
    add("cancelled", not_enqueued);
    let known: i64 = counts.values().sum();
    if recipients > known {
        *counts.entry("duplicate".to_owned()).or_default() += recipients - known;
    }
    let mut state: String = row.try_get("state")?;
    let is_open = ["expanding", "held", "waiting", "queued"]
        .iter()
        .any(|open| counts.contains_key(*open));
    if state == "running" && !is_open {
        "done".clone_into(&mut state);
    }
    let moment = |column| -> Result<Timestamp, sqlx::Error> {
        Ok(row.try_get::<SqlTimestamp, _>(column)?.to_jiff())
    };
    Ok(Batch {
        id: row.try_get("id")?,
        tenant: row.try_get("tenant")?,
        module: row.try_get("module")?,
        // A cancelled batch keeps the column as it was.
        paused_by_operators: state == "paused" && row.try_get("paused_by_operators")?,
        state,
        problem: row.try_get("problem")?,
        recipients,
        counts,
        estimate: None,
        created_at: moment("created_at")?,
        updated_at: moment("updated_at")?,
        last_waiting: row.try_get("last_waiting")?,
    })
}
