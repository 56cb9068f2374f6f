//! Groups: created, sealed, shown, cancelled, and settled, which is where they end.

use std::time::Duration;

use jiff_sqlx::ToSqlx;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::types::Json;
use sqlx::{PgExecutor, Row};

use super::Queue;
use super::client::Client;
use super::enqueue::{refuse_unstorable, tenant_of};
use crate::jobs::operate::Attribution;
use crate::jobs::{
    CancelledGroup, CreatedGroup, Error, GroupFilter, GroupJob, GroupState, JobGroup, NewGroup,
    NewJob, OpenGroups, SealAnswer, check, redact, secret,
};
use crate::postgres::json_or_text;

pub(super) const CREATE: &str = "
select group_id, job_ids, duplicates from flyball.create_group($1, $2, $3)";

/// The statement for an owner of unique keys whose jobs have already been checked.
pub(super) const CREATE_AS: &str = "
select group_id, job_ids, duplicates from flyball.create_group_as($1, $2, $3, $4, $5)";

pub(super) const SEAL: &str = "select flyball.seal_group($1)";

pub(super) const SEAL_OF: &str = "
select flyball.seal_group_of($1, case when $2::text is not null then 'tenant:' || $2 end)";

// The arguments of a callback stand apart: Postgres keeps what cannot be read here, such as lists in
// lists by the hundred, and one such group must hide no other.
macro_rules! view {
    ($group:literal) => {
        concat!(
            "
select flyball.group_view(",
            $group,
            ") #- '{callback,args}' as shown,
    flyball.shown_args((",
            $group,
            ").callback ->> 'kind', (",
            $group,
            ").callback -> 'args') as args"
        )
    };
}

pub(super) const SHOW: &str = concat!(
    view!("g"),
    "
from flyball.job_group g where g.id = $1 and ($2::text is null or g.tenant = $2)"
);

pub(super) const LIST: &str = concat!(
    view!("g"),
    "
from flyball.job_group g where g.id < $1 order by g.id desc limit $2"
);

pub(super) const LIST_OF_TENANT: &str = concat!(
    view!("g"),
    "
from flyball.job_group g
where g.tenant = $3 and g.tenant <> '' and g.id < $1
order by g.id desc
limit $2"
);

// A filter is held against a bounded number of groups, however many there are.
macro_rules! filtered {
    ($of:literal) => {
        concat!(
            view!("w.g"),
            "
from (select o.id, o as g from flyball.job_group o where o.id < $1 and ",
            $of,
            " order by o.id desc limit 20000) w
where ($3::text is null or (w.g).tenant = $3) and ($4::timestamptz is null or (w.g).created_at < $4)
    and ($5::text is null or $5 = case when (w.g).ended_at is not null then 'ended'
        when (w.g).sealed_at is not null then 'running' else 'open' end)
order by w.id desc
limit $2"
        )
    };
}

pub(super) const LIST_FILTERED: &str = filtered!("true");

pub(super) const LIST_FILTERED_OF_TENANT: &str = filtered!("o.tenant = $3 and o.tenant <> ''");

// Open groups are few among those that ended, and have an index of their own.
pub(super) const LIST_OPEN: &str = filtered!("o.sealed_at is null");

// The oldest ones: the number is for people, and stops at a bound.
pub(super) const COUNT_OPEN: &str = "
select count(*) as groups, min(o.created_at) as oldest_at
from (select g.created_at from flyball.job_group g where g.sealed_at is null order by g.id limit 1000) o
where o.created_at < clock_timestamp() - make_interval(secs => $1)";

pub(super) const CANCEL: &str = "
select cancelled, requested, more from flyball.cancel_group($1, $2, $3, $4, $5)";

pub(super) const SETTLE: &str = "select ended, more, calls from flyball.settle_groups()";

// All but the first are few, and each count reads one small index.
pub(super) const COUNTS: &str = "
select (select count(*) from (select 1 from flyball.job_group where ended_at is null limit 10000) g) as open,
    (select count(*) from (select 1 from flyball.job_group where retry_at is not null limit 10000) g) as callbacks_refused,
    (select count(*) from (select 1 from flyball.webhook_call where retry_at > now() limit 10000) c) as calls_refused,
    (select count(*) from (select 1 from flyball.cron where problem is not null and not paused limit 10000) s) as schedules_with_problems";

// The rest of a group past its retention: dead letters that nobody requeued. A group stays as long
// as the kind that is kept longest.
pub(super) const FORGET: &str = "
with old as materialized (
    select id from flyball.job_group
    where ended_at < now() - greatest(make_interval(days => $2), (select max(retention) from flyball.kind_retention))
    order by ended_at
    limit $1
),
members as (
    delete from flyball.group_member where group_id = any(array(select id from old))
),
changes as (
    delete from flyball.group_change where group_id = any(array(select id from old))
)
delete from flyball.job_group where id = any(array(select id from old))";

/// The most jobs of a group that one call cancels.
const CANCELLED_MAX: i32 = 5_000;

impl Client {
    /// Creates a group, as part of the caller's own work in Postgres.
    ///
    /// ```no_run
    /// # use flyball_core as flyball;
    /// use flyball::Client;
    /// use flyball::jobs::{NewGroup, NewJob};
    /// use serde_json::json;
    ///
    /// # async fn import(pool: sqlx::PgPool, rows: Vec<i64>) -> Result<(), flyball::jobs::Error> {
    /// let group = Client.create_group(&pool, &NewGroup::then(NewJob::new("report", json!({})))).await?;
    /// let jobs: Vec<NewJob> = rows.iter().map(|row| NewJob::new("import", json!({"row": row})).group(group.id)).collect();
    /// Client.enqueue_many(&pool, &jobs).await?;
    /// Client.seal_group(&pool, group.id).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn create_group(
        &self,
        executor: impl PgExecutor<'_>,
        group: &NewGroup,
    ) -> Result<CreatedGroup, Error> {
        refuse(group)?;
        let row = sqlx::query(CREATE)
            .bind(group.callback.as_ref().map(template))
            .bind(&group.name)
            .bind(group.jobs.as_deref().map(members))
            .fetch_one(executor)
            .await?;
        created(&row)
    }

    /// Says that no more jobs join a group: when all have ended, its callback is enqueued.
    ///
    /// It waits for transactions that add jobs to the group.
    pub async fn seal_group(
        &self,
        executor: impl PgExecutor<'_>,
        group: i64,
    ) -> Result<SealAnswer, Error> {
        let answer: String = sqlx::query_scalar(SEAL)
            .bind(group)
            .fetch_one(executor)
            .await?;
        Ok(seal_answer(&answer))
    }
}

impl Queue {
    /// Creates a group for a caller with unique keys of its own, as [`Queue::enqueue_for`] enqueues
    /// jobs.
    pub async fn create_group_for(
        &self,
        owner: &str,
        module: &str,
        group: &NewGroup,
    ) -> Result<CreatedGroup, Error> {
        let group = self.encrypted_group(group, tenant_of(owner))?;
        refuse(&group)?;
        let row = sqlx::query(CREATE_AS)
            .bind(owner)
            .bind(module)
            .bind(&group.name)
            .bind(group.callback.as_ref().map(template))
            .bind(group.jobs.as_deref().map(members))
            .fetch_one(&self.pool)
            .await?;
        created(&row)
    }

    /// Seals a group like [`Client::seal_group`]; with a tenant, only if the group belongs to it.
    pub async fn seal_group(&self, id: i64, tenant: Option<&str>) -> Result<SealAnswer, Error> {
        let answer: String = sqlx::query_scalar(SEAL_OF)
            .bind(id)
            .bind(tenant)
            .fetch_one(&self.pool)
            .await?;
        Ok(seal_answer(&answer))
    }

    /// Returns a group with its counts; with a tenant, only if the group belongs to it.
    pub async fn group(&self, id: i64, tenant: Option<&str>) -> Result<Option<JobGroup>, Error> {
        let found = sqlx::query(SHOW)
            .bind(id)
            .bind(tenant)
            .fetch_optional(&self.pool)
            .await?;
        found.as_ref().map(shown).transpose()
    }

    /// Returns a page of groups, newest first. A state or a time is looked for among the next 20,000
    /// groups only.
    pub async fn groups(&self, filter: &GroupFilter) -> Result<Vec<JobGroup>, Error> {
        let before = filter.before.unwrap_or(i64::MAX);
        let limit = filter.limit.clamp(1, 1000);
        let is_filtered = filter.state.is_some() || filter.created_before.is_some();
        let statement = match (&filter.tenant, is_filtered) {
            (Some(_), false) => LIST_OF_TENANT,
            (Some(_), true) => LIST_FILTERED_OF_TENANT,
            (None, false) => LIST,
            (None, true) if filter.state == Some(GroupState::Open) => LIST_OPEN,
            (None, true) => LIST_FILTERED,
        };
        let mut query = sqlx::query(statement).bind(before).bind(limit);
        if filter.tenant.is_some() || is_filtered {
            query = query.bind(&filter.tenant);
        }
        if is_filtered {
            query = query
                .bind(filter.created_before.map(ToSqlx::to_sqlx))
                .bind(filter.state.map(GroupState::as_str));
        }
        let found = query.fetch_all(&self.pool).await?;
        found.iter().map(shown).collect()
    }

    /// Counts the groups that nobody has sealed for this long, up to 1000, and returns the time at
    /// which the oldest was created. They stay open until somebody seals or cancels them.
    pub async fn count_open_groups(&self, age: Duration) -> Result<OpenGroups, Error> {
        let row = sqlx::query(COUNT_OPEN)
            .bind(age.as_secs_f64())
            .fetch_one(&self.pool)
            .await?;
        let oldest: Option<jiff_sqlx::Timestamp> = row.try_get("oldest_at")?;
        Ok(OpenGroups {
            groups: row.try_get("groups")?,
            oldest_at: oldest.map(jiff_sqlx::Timestamp::to_jiff),
        })
    }

    /// Cancels jobs of a group, some thousands in one call, and seals it: waiting jobs end at once,
    /// running ones are asked to stop. `None` if there is no such group.
    pub async fn cancel_group(
        &self,
        id: i64,
        signed: &Attribution,
    ) -> Result<Option<CancelledGroup>, Error> {
        let row = sqlx::query(CANCEL)
            .bind(id)
            .bind(signed.line())
            .bind(&signed.why)
            .bind(&signed.identity.tenant)
            .bind(CANCELLED_MAX)
            .fetch_one(&self.pool)
            .await?;
        let Some(cancelled) = row.try_get("cancelled")? else {
            return Ok(None);
        };
        Ok(Some(CancelledGroup {
            cancelled,
            requested: row.try_get("requested")?,
            more: row.try_get("more")?,
        }))
    }

    /// Adds the ends of jobs to the counts of their groups, and ends the groups that are sealed and
    /// have no job left: their callbacks are enqueued in the same transaction. Enqueues the calls of
    /// webhooks. Returns the number of groups that ended.
    pub async fn settle_groups(&self) -> Result<u64, Error> {
        Ok(self.settle().await?.groups)
    }

    /// Returns the figures of groups and webhooks.
    pub async fn group_counts(&self) -> Result<GroupCounts, Error> {
        let row = sqlx::query(COUNTS).fetch_one(&self.pool).await?;
        Ok(GroupCounts {
            open: row.try_get("open")?,
            callbacks_refused: row.try_get("callbacks_refused")?,
            calls_refused: row.try_get("calls_refused")?,
            schedules_with_problems: row.try_get("schedules_with_problems")?,
        })
    }

    /// Does what [`Queue::settle_groups`] does, and counts the calls as well.
    pub async fn settle(&self) -> Result<Settled, Error> {
        let mut settled = Settled::default();
        loop {
            let row = sqlx::query(SETTLE).fetch_one(&self.pool).await?;
            settled.groups += u64::from(row.try_get::<i32, _>("ended")?.unsigned_abs());
            settled.calls += u64::from(row.try_get::<i32, _>("calls")?.unsigned_abs());
            if !row.try_get::<bool, _>("more")? {
                return Ok(settled);
            }
        }
    }
}

/// The figures of groups, webhooks and schedules, for metrics; each is counted up to 10,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Groups that have not ended.
    pub open: i64,
    /// Groups whose callback could not be enqueued.
    pub callbacks_refused: i64,
    /// Calls of webhooks that could not be enqueued.
    pub calls_refused: i64,
    /// Schedules that made no job the last time, or make none until somebody changes them.
    pub schedules_with_problems: i64,
}

/// The result of settling groups and webhooks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// The number of groups that ended.
    pub groups: u64,
    /// The number of calls of webhooks that were enqueued.
    pub calls: u64,
}

/// Returns a group as it is shown: without the secrets and credentials of its callback, and with the
/// text of arguments that cannot be read.
fn shown(row: &PgRow) -> Result<JobGroup, Error> {
    let Json(mut group): Json<JobGroup> = row.try_get("shown")?;
    let mut args = json_or_text(row, "args");
    if let Some(Value::Object(callback)) = &mut group.callback
        && !args.is_null()
    {
        let kind = callback.get("kind").and_then(Value::as_str);
        secret::mask(&mut args);
        redact::mask_args(kind.unwrap_or_default(), &mut args);
        callback.insert("args".to_owned(), args);
    }
    Ok(group)
}

/// Returns true if the end of a job is counted: it is a member of a group or has webhooks. The last bit
/// of its id says so.
pub fn wants_end(job_id: i64) -> bool {
    job_id & 1 == 1
}

fn created(row: &PgRow) -> Result<CreatedGroup, Error> {
    let ids: Option<Vec<i64>> = row.try_get("job_ids")?;
    let duplicates: Option<Vec<bool>> = row.try_get("duplicates")?;
    let jobs = ids
        .into_iter()
        .flatten()
        .zip(duplicates.into_iter().flatten());
    Ok(CreatedGroup {
        id: row.try_get("group_id")?,
        jobs: jobs
            .map(|(id, duplicate)| GroupJob { id, duplicate })
            .collect(),
    })
}

fn seal_answer(answer: &str) -> SealAnswer {
    match answer {
        "sealed" => SealAnswer::Sealed,
        "ended" => SealAnswer::Ended,
        "not found" => SealAnswer::NotFound,
        _ => SealAnswer::Already,
    }
}

/// Refuses texts with a NUL, and jobs that name a group of their own.
fn refuse(group: &NewGroup) -> Result<(), Error> {
    let wrong = |index: Option<usize>, field: &str, message: &str| {
        Err(Error::Refused {
            index,
            field: field.to_owned(),
            message: message.to_owned(),
        })
    };
    if group.name.contains('\0') {
        return wrong(None, "name", check::NUL);
    }
    if let Some(callback) = &group.callback {
        if let Some(field) = check::nul(callback) {
            return wrong(None, &format!("callback.{field}"), check::NUL);
        }
        if callback.group.is_some() {
            let why = "must be left out: the callback runs after the group and is not in one";
            return wrong(None, "callback.group", why);
        }
        if !callback.after.is_empty() {
            let why = "must be left out: the callback runs after the group";
            return wrong(None, "callback.after", why);
        }
    }
    let jobs = group.jobs.as_deref().unwrap_or_default();
    if let Some(index) = jobs.iter().position(|job| job.group.is_some()) {
        let why = "must be left out: the jobs join the new group";
        return wrong(Some(index), "group", why);
    }
    refuse_unstorable(jobs)?;
    let Some(callback) = &group.callback else {
        return Ok(());
    };
    match refuse_unstorable(std::slice::from_ref(callback)) {
        Err(Error::Refused { field, message, .. }) => {
            wrong(None, &format!("callback.{field}"), &message)
        }
        other => other,
    }
}

fn members(jobs: &[NewJob]) -> Json<Vec<Value>> {
    Json(jobs.iter().map(|job| template(job).0).collect())
}

/// Returns a job as JSON with the fields that SQL knows, without those that are not set.
fn template(job: &NewJob) -> Json<Value> {
    let mut value = serde_json::to_value(job).unwrap_or_default();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Json(value)
}
