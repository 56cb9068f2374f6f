//! Schedules in Postgres: one statement per function.

use std::borrow::Cow;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::types::Json;

use super::schedule::{CATCH_UPS, OVERLAPS};
use super::{NewSchedule, Schedule, ScheduleProblem, Timing};
use crate::jobs::postgres::secrets::{encrypt, refused};
use crate::jobs::postgres::{LaggingError, waits};
use crate::jobs::{self, Enqueued, Queue, SecretKeys, redact, secret};
use crate::postgres::{Columns, Db};

/// The most schedules that one check takes.
const MAX_DUE: i64 = 200;

macro_rules! select_schedules {
    ($tail:literal) => {
        concat!(
            "select name, expression, time_zone, kind, args, throttle, key, priority, max_attempts, cost, timeout_s, catch_up, overlap,
    tags, retry, paused, next_at, last_at, last_job_id, skipped_at, problem, updated_at, clock_timestamp() as now, xmin::text as version,
    case when problem like 'time_zone: %' then missed_at end as missed_at
from flyball.cron",
            $tail
        )
    };
}

const SET: &str = "
select flyball.schedule($1, $2, $3, $4, time_zone => $5, throttle => $6, key => $7, priority => $8, max_attempts => $9, cost => $10,
    timeout => flyball.span($11), catch_up => $12, overlap => $13, paused => $14, tags => $15, retry => $16)";
const DELETE: &str = "select flyball.unschedule($1)";
const RUN: &str = "select job_id, duplicate from flyball.run_schedule($1)";
const GET: &str = select_schedules!(" where name = $1");
const LIST: &str = select_schedules!(" order by name limit 10000");
// A row is returned only if something changes, and to only one of two callers that ask the same at
// once, because each change is a line of the audit log.
const PAUSE: &str = "
select flyball.pause_schedule(c.name, $2)
from (select name from flyball.cron where name = $1 and paused <> $2 for update) c";
// `cron_due` serves the first two parts, which is why the time is `now()` here: a changing clock is no
// condition of an index. A schedule whose time could not be computed waits for a person; one whose
// job was refused does not, and one whose time zone a process did not know is tried again by all. The
// last part are those that were handled when the clock was ahead: their next time is too late by as
// much.
const DUE: &str = concat!(
    "(",
    select_schedules!(" where not paused and next_at <= now() order by next_at limit $1"),
    ") union all (",
    select_schedules!(
        " where not paused and next_at is null and (problem is null or problem like 'time_zone: %' and coalesce(retry_at <= now(), true))
    order by next_at limit $1"
    ),
    ") union all (",
    select_schedules!(
        " where not paused and last_at > now() + interval '1 minute' and not coalesce(next_at <= now(), true) order by last_at limit $1"
    ),
    ")"
);
const ADVANCE: &str =
    "select made, skipped, refused from flyball.advance_schedule($1, $2, $3, $4, $5, $6, $7)";
// A change of the schedule in the meantime may have mended it.
const SET_ASIDE: &str =
    "update flyball.cron set next_at = null, problem = $2 where name = $1 and xmin::text = $3";
const NOW: &str = "select clock_timestamp()";
const ARGS: &str = "select args from flyball.cron where name = $1 and kind = $2";

/// Every statement of this file, so that a test can prepare each on the migrated schema.
pub const STATEMENTS: &[(&str, &str)] = &[
    ("set schedule", SET),
    ("delete schedule", DELETE),
    ("run schedule", RUN),
    ("get schedule", GET),
    ("list schedules", LIST),
    ("pause schedule", PAUSE),
    ("due schedules", DUE),
    ("advance schedule", ADVANCE),
    ("set schedule aside", SET_ASIDE),
    ("time of schedules", NOW),
    ("arguments of schedule", ARGS),
];

/// An error of the store of schedules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The schedule is not acceptable; nothing was changed.
    #[error("{}", join_problems(.0))]
    Invalid(Vec<ScheduleProblem>),
    /// The queue refused the schedule or did not answer.
    #[error(transparent)]
    Queue(#[from] jobs::Error),
}

impl LaggingError for Error {
    fn is_refusal(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Queue(error) => error.is_refusal(),
        }
    }
}

fn join_problems(problems: &[ScheduleProblem]) -> String {
    let each: Vec<String> = problems
        .iter()
        .map(|problem| format!("{}: {}", problem.field, problem.message))
        .collect();
    each.join("; ")
}

/// The result of a request to run a schedule now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunNowOutcome {
    /// The job: a new one or (`duplicate`) the unfinished one that prevented it.
    Job(Enqueued),
    /// The schedule does not exist.
    NotFound,
}

/// The result of advancing a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advanced {
    /// Jobs that were created.
    pub made: i32,
    /// Occurrences that created no job because the job before was unfinished.
    pub skipped: i32,
    /// The reason why an occurrence, and those after it, could not create a job.
    pub refused: Option<String>,
}

/// A schedule that a worker must process.
pub(super) struct Due {
    pub schedule: Schedule,
    /// The server's time of the read.
    pub now: Timestamp,
    /// The occurrence that is due, also if another process could not compute it.
    pub due_at: Option<Timestamp>,
    /// The reason why the schedule cannot be read in full, if that is so.
    pub unreadable: Option<String>,
    /// The version of the row, which every change replaces.
    version: String,
}

/// The store of schedules.
#[derive(Clone)]
pub struct Schedules {
    pool: Db,
    keys: Arc<SecretKeys>,
}

impl Schedules {
    /// Returns the schedules of the database behind `pool`.
    pub fn new(pool: impl Into<Db>) -> Self {
        Self {
            pool: pool.into(),
            keys: Arc::default(),
        }
    }

    /// Returns the schedules of a queue's database; secret arguments are encrypted with its keys.
    pub fn of(queue: &Queue) -> Self {
        Self {
            pool: queue.pool.clone(),
            keys: queue.secret_keys().clone(),
        }
    }

    /// Creates a schedule, or replaces the one with its name; returns true if it is new.
    ///
    /// Declaring the same again changes nothing.
    pub async fn set(&self, schedule: &NewSchedule) -> Result<bool, Error> {
        let problems = schedule.problems();
        if !problems.is_empty() {
            return Err(Error::Invalid(problems));
        }
        let job = self.at_rest(schedule).await?;
        jobs::postgres::refuse_unstorable(std::slice::from_ref(&*job))?;
        let statement = sqlx::query_scalar(SET)
            .bind(&schedule.name)
            .bind(&schedule.expression)
            .bind(&job.kind)
            .bind(Json(&job.args))
            .bind(&schedule.time_zone)
            .bind(&job.throttle)
            .bind(&job.key)
            .bind(job.priority)
            .bind(job.max_attempts)
            .bind(job.cost)
            .bind(job.timeout_s)
            .bind(schedule.catch_up.as_str())
            .bind(schedule.overlap.as_str())
            .bind(schedule.paused)
            .bind((!job.tags.is_empty()).then_some(&job.tags))
            .bind(job.retry.map(Json));
        Ok(statement
            .fetch_one(&self.pool)
            .await
            .map_err(jobs::Error::from)?)
    }

    /// Returns the job of a schedule as it is stored, with its secret values encrypted. Values that
    /// are stored already stay as they are: encrypted again they would differ, and count as a
    /// change.
    async fn at_rest<'a>(&self, schedule: &'a NewSchedule) -> Result<Cow<'a, jobs::NewJob>, Error> {
        let job = &schedule.job;
        if self.keys.is_empty() || !secret::has_secrets(&job.args) {
            return Ok(Cow::Borrowed(job));
        }
        let mut at_rest = job.clone();
        let stored: Option<Json<Value>> = sqlx::query_scalar(ARGS)
            .bind(&schedule.name)
            .bind(&job.kind)
            .fetch_optional(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        if let Some(Json(stored)) = stored
            && self.is_same(&job.kind, &stored, &job.args)
        {
            at_rest.args = stored;
            return Ok(Cow::Owned(at_rest));
        }
        encrypt(&self.keys, &mut at_rest, "").map_err(|issue| refused(None, "", &issue))?;
        Ok(Cow::Owned(at_rest))
    }

    fn is_same(&self, kind: &str, stored: &Value, declared: &Value) -> bool {
        let decrypt = |args: &Value| {
            let mut args = args.clone();
            self.keys.decrypt(kind, "", &mut args).ok().map(|_| args)
        };
        let masked = |args: &Value| {
            let mut args = args.clone();
            secret::mask(&mut args);
            args
        };
        // Values that an older key encrypted are encrypted again, and so are those that stand there
        // in plain, marked or not.
        let newest = self.keys.capabilities().next();
        masked(stored) == masked(declared)
            && secret::needs(stored)
                .into_iter()
                .all(|need| Some(need) == newest)
            && decrypt(stored).is_some_and(|decrypted| decrypt(declared) == Some(decrypted))
    }

    /// Deletes a schedule, but not its jobs; returns false if there is none.
    pub async fn delete(&self, name: &str) -> Result<bool, Error> {
        Ok(sqlx::query_scalar(DELETE)
            .bind(name)
            .fetch_one(&self.pool)
            .await
            .map_err(jobs::Error::from)?)
    }

    /// Returns one schedule.
    pub async fn get(&self, name: &str) -> Result<Option<Schedule>, Error> {
        let row = sqlx::query(GET)
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(row.as_ref().map(|row| read(row).schedule))
    }

    /// Returns all schedules in the order of their names, at most 10,000.
    pub async fn list(&self) -> Result<Vec<Schedule>, Error> {
        let rows = sqlx::query(LIST)
            .fetch_all(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(rows.iter().map(|row| read(row).schedule).collect())
    }

    /// Pauses or resumes a schedule; returns false if it was in that state already or does not
    /// exist.
    ///
    /// Occurrences missed during a pause are not caught up; a problem from before it is cleared.
    pub async fn pause(&self, name: &str, paused: bool) -> Result<bool, Error> {
        let done = sqlx::query(PAUSE)
            .bind(name)
            .bind(paused)
            .fetch_optional(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(done.is_some())
    }

    /// Creates the job of the schedule now, besides its times.
    pub async fn run_now(&self, name: &str) -> Result<RunNowOutcome, Error> {
        let row = sqlx::query(RUN)
            .bind(name)
            .fetch_optional(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(row.map_or(RunNowOutcome::NotFound, |row| {
            RunNowOutcome::Job(Enqueued {
                id: row.get(0),
                duplicate: row.get(1),
                replaced: false,
                backlog: None,
            })
        }))
    }

    /// Returns the server's time, which schedules follow.
    pub async fn now(&self) -> Result<Timestamp, Error> {
        let now: jiff_sqlx::Timestamp = sqlx::query_scalar(NOW)
            .fetch_one(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(now.to_jiff())
    }

    /// Returns the schedules that are due or have no next time.
    pub(super) async fn due(&self) -> Result<Vec<Due>, Error> {
        let rows = sqlx::query(DUE)
            .bind(MAX_DUE)
            .fetch_all(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(rows.iter().map(read).collect())
    }

    /// Takes an unreadable schedule out of those that are due, until a person changes it.
    pub(super) async fn set_aside(&self, due: &Due, problem: &str) -> Result<(), Error> {
        let statement = sqlx::query(SET_ASIDE)
            .bind(&due.schedule.name)
            .bind(problem)
            .bind(&due.version);
        statement
            .execute(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(())
    }

    /// Creates the jobs of `occurrences` and moves the schedule on, in one statement; returns
    /// `None` if another worker was faster or the schedule was changed in the meantime.
    pub(super) async fn advance(
        &self,
        seen: &Schedule,
        occurrences: &[Timestamp],
        next_at: Option<Timestamp>,
        problem: Option<&str>,
    ) -> Result<Option<Advanced>, Error> {
        use jiff_sqlx::ToSqlx as _;
        let occurrences: Vec<jiff_sqlx::Timestamp> =
            occurrences.iter().map(|at| at.to_sqlx()).collect();
        let statement = sqlx::query(ADVANCE)
            .bind(&seen.name)
            .bind(&seen.expression)
            .bind(&seen.time_zone)
            .bind(seen.next_at.map(|at| at.to_sqlx()))
            .bind(occurrences)
            .bind(next_at.map(|at| at.to_sqlx()))
            .bind(problem);
        let row = statement
            .fetch_optional(&self.pool)
            .await
            .map_err(jobs::Error::from)?;
        Ok(row.map(|row| Advanced {
            made: row.get("made"),
            skipped: row.get("skipped"),
            refused: row.get("refused"),
        }))
    }
}

/// Reads a schedule as far as possible; an unreadable one must not hold up the others.
fn read(row: &PgRow) -> Due {
    let mut columns = Columns::of(row);
    let (expression, time_zone): (String, String) =
        (columns.get("expression"), columns.get("time_zone"));
    let now = moment(&mut columns, "now").unwrap_or_default();
    let upcoming = Timing::new(&expression, &time_zone)
        .map(|timing| timing.preview(now))
        .unwrap_or_default();
    let missed_at = moment(&mut columns, "missed_at");
    let kind: String = columns.get("kind");
    // No job is made from these: the database makes them from the row itself.
    let mut args = columns.json("args");
    secret::mask(&mut args);
    redact::mask_args(&kind, &mut args);
    let schedule = Schedule {
        name: columns.get("name"),
        expression,
        time_zone,
        kind,
        args,
        throttle: columns.get("throttle"),
        key: columns.get("key"),
        priority: columns.get("priority"),
        max_attempts: columns.get("max_attempts"),
        cost: columns.get("cost"),
        timeout_s: columns.get("timeout_s"),
        tags: columns
            .get::<Option<Vec<String>>>("tags")
            .unwrap_or_default(),
        retry: waits(columns.get("retry")),
        catch_up: variant_of(&CATCH_UPS, &columns.get::<String>("catch_up")),
        overlap: variant_of(&OVERLAPS, &columns.get::<String>("overlap")),
        paused: columns.get("paused"),
        next_at: moment(&mut columns, "next_at"),
        upcoming,
        last_at: moment(&mut columns, "last_at"),
        last_job_id: columns.get("last_job_id"),
        skipped_at: moment(&mut columns, "skipped_at"),
        problem: columns.get("problem"),
        updated_at: moment(&mut columns, "updated_at").unwrap_or_default(),
    };
    Due {
        due_at: schedule.next_at.or(missed_at),
        schedule,
        now,
        version: columns.get("version"),
        unreadable: columns.unreadable(),
    }
}

fn moment(columns: &mut Columns<'_>, column: &str) -> Option<Timestamp> {
    columns
        .get::<Option<jiff_sqlx::Timestamp>>(column)
        .map(jiff_sqlx::Timestamp::to_jiff)
}

/// Returns the value of a name; the check of the column allows only these names.
fn variant_of<T: Copy + Default>(words: &[(&str, T)], word: &str) -> T {
    words
        .iter()
        .find(|(known, _)| *known == word)
        .map(|(_, value)| *value)
        .unwrap_or_default()
}
