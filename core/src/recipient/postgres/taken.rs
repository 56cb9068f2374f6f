//! Messages that a planner takes out of the queue, each with the row that it had there.
//!
//! Taking the row is the first thing that a plan does, and whatever a plan writes it writes for
//! messages that it took, in the same transaction. So a message has one planner, one that was
//! cancelled has none, and a planner that dies leaves its messages as they were.

use std::collections::HashMap;

use jiff::Timestamp;
use jiff_sqlx::Timestamp as SqlTimestamp;
use sqlx::postgres::PgRow;
use sqlx::{Row, query};

use crate::jobs::Error;
use crate::postgres::Transaction;
use crate::recipient::address::RecipientKey;
use crate::recipient::fields::USUAL_CATEGORY;
use crate::recipient::quiet::COALESCED_MIN;

// The columns by which a taken message is read.
macro_rules! taken {
    () => {
        "job_id, run_at, lane_id, priority, attempt, cost, retry, holds_unique, turn"
    };
}

/// Takes messages that nobody has touched.
pub(super) const TAKE_FRESH: &str =
    concat!("\nselect ", taken!(), "\nfrom flyball.take_unplanned($1)");

// The most urgent first. Rows that somebody else has are left to him. A turn is selected by a range
// of pairs, as in a promotion.
pub(super) const TAKE_DUE: &str = concat!(
    "
delete from flyball.scheduled
where ctid = any(array(
    select d.tid
    from (values (-4::smallint), (-3::smallint), (-2::smallint), (-1::smallint)) as p(turn)
    cross join lateral (
        select s.ctid as tid from flyball.scheduled s
        where (s.turn, s.run_at) >= (p.turn, '-infinity') and (s.turn, s.run_at) <= (p.turn, now())
        order by s.turn, s.run_at
        limit $1
        for update skip locked
    ) d
    limit $1
))
returning ",
    taken!()
);

/// Names the messages whose plan is due, and takes none.
pub(super) const DUE_JOBS: &str = "
select d.job_id
from (values (-4::smallint), (-3::smallint), (-2::smallint), (-1::smallint)) as p(turn)
cross join lateral (
    select s.job_id from flyball.scheduled s
    where (s.turn, s.run_at) >= (p.turn, '-infinity') and (s.turn, s.run_at) <= (p.turn, now())
    order by s.turn, s.run_at
    limit $1
) d
limit $1";

pub(super) const PUT_JOB_OFF: &str = "
update flyball.scheduled set run_at = clock_timestamp() + interval '1 minute'
where job_id = (
    select s.job_id from flyball.scheduled s
    where s.job_id = $1 and s.turn between -4 and -1 and s.run_at <= now()
    for update skip locked
)";

pub(super) const TAKE_JOBS: &str = concat!(
    "
delete from flyball.scheduled
where ctid = any(array(
    select s.ctid from flyball.scheduled s
    where s.job_id = any($1) and coalesce(s.turn between -4 and -1 and s.run_at <= now(), false)
    order by s.job_id
    for update skip locked
))
returning ",
    taken!()
);

// Messages that were held in quiet hours, of the recipients and categories of those that wake, if
// they are enough for one digest: the release gives each a place of its own. Fewer keep their
// times, and so does one that somebody put off beyond the end of its hold. Those that wake have no
// row in the queue any more. The limit leaves groups out, and cuts the last at most.
pub(super) const TAKE_SIBLINGS: &str = concat!(
    "
with asleep as materialized (
    select p.job_id, w.recipient, w.category, w.messages + count(*) over (partition by w.recipient, w.category) as messages
    from unnest($1::text[]::uuid[], $2::text[], $3::bigint[]) as w(recipient, category, messages)
    cross join lateral (
        select h.job_id, h.until from flyball.message_plan h
        where h.recipient = w.recipient and h.state = 'held' and h.coalesces
        offset 0
    ) p
    cross join lateral (
        select h.job_id from flyball.scheduled h
        where h.job_id = p.job_id and coalesce(h.turn between -4 and -1 and h.run_at <= p.until + interval '1 minute', false)
        limit 1
    ) s
    cross join lateral (select h.args from flyball.job h where h.id = p.job_id limit 1) j
    where coalesce(j.args ->> 'category', $4) = w.category
),
chosen as materialized (
    select a.job_id from asleep a where a.messages >= $5 order by a.recipient, a.category, a.job_id limit $6
)
delete from flyball.scheduled
where ctid = any(array(
    select s.ctid from flyball.scheduled s
    where s.job_id = any(array(select c.job_id from chosen c)) and coalesce(s.turn between -4 and -1, false)
    order by s.job_id
    for update skip locked
))
returning ",
    taken!()
);

/// The most messages that are taken with those that wake.
const SIBLINGS_MAX: i64 = 1000;

/// The messages that a planner looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Messages that no planner has touched, which is cheaper; all, if there are none.
    AtFresh,
    /// All, also those that an earlier planner left when it died, and that a transaction held which
    /// was rolled back.
    AtAll,
}

/// The row that a message had in the queue.
#[derive(Clone, Debug)]
pub(super) struct TakenMessage {
    pub job_id: i64,
    pub run_at: Timestamp,
    pub lane_id: i64,
    pub priority: i16,
    pub attempt: i16,
    pub cost: f64,
    pub retry: bool,
    pub holds_unique: bool,
    turn: i16,
}

impl TakenMessage {
    fn read(row: &PgRow) -> Result<Self, sqlx::Error> {
        Ok(Self {
            job_id: row.try_get("job_id")?,
            run_at: row.try_get::<SqlTimestamp, _>("run_at")?.to_jiff(),
            lane_id: row.try_get("lane_id")?,
            priority: row.try_get("priority")?,
            attempt: row.try_get("attempt")?,
            cost: row.try_get("cost")?,
            retry: row.try_get("retry")?,
            holds_unique: row.try_get("holds_unique")?,
            turn: row.try_get("turn")?,
        })
    }
}

/// Messages that were taken, in the order in which they are planned.
#[derive(Debug, Default)]
pub(super) struct TakenMessages {
    rows: Vec<TakenMessage>,
    places: HashMap<i64, usize>,
}

impl TakenMessages {
    fn read(rows: &[PgRow]) -> Result<Self, sqlx::Error> {
        let rows: Result<Vec<TakenMessage>, sqlx::Error> =
            rows.iter().map(TakenMessage::read).collect();
        let mut rows = rows?;
        rows.sort_unstable_by_key(|one| (one.turn, one.run_at, one.job_id));
        let places = rows.iter().enumerate().map(|(at, one)| (one.job_id, at));
        Ok(Self {
            places: places.collect(),
            rows,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds messages that were taken later.
    pub(super) fn extend(&mut self, more: Self) {
        for one in more.rows {
            self.places.insert(one.job_id, self.rows.len());
            self.rows.push(one);
        }
    }

    /// Returns the jobs of all of them.
    pub(super) fn jobs(&self) -> Vec<i64> {
        self.rows.iter().map(|one| one.job_id).collect()
    }

    /// Returns the row of a message.
    pub(super) fn get(&self, job_id: i64) -> Option<&TakenMessage> {
        self.rows.get(*self.places.get(&job_id)?)
    }

    /// Returns the rows of these messages.
    pub(super) fn of(&self, jobs: impl IntoIterator<Item = i64>) -> Vec<&TakenMessage> {
        jobs.into_iter().filter_map(|job| self.get(job)).collect()
    }
}

/// Takes messages whose plan is due, at most `most`.
///
/// [`Look::AtFresh`] takes none that anybody has touched since it was scheduled: the row of one is
/// locked, or was.
pub(super) async fn take_due(
    connection: &mut Transaction,
    look: Look,
    most: i64,
) -> Result<TakenMessages, Error> {
    let statement = match look {
        Look::AtFresh => TAKE_FRESH,
        Look::AtAll => TAKE_DUE,
    };
    let rows = query(statement).bind(most).fetch_all(connection).await?;
    Ok(TakenMessages::read(&rows)?)
}

/// Takes those of these messages that are not planned yet.
pub(super) async fn take_jobs(
    connection: &mut Transaction,
    jobs: &[i64],
) -> Result<TakenMessages, Error> {
    let rows = query(TAKE_JOBS).bind(jobs).fetch_all(connection).await?;
    Ok(TakenMessages::read(&rows)?)
}

/// Takes the messages that become one digest with those that wake, whose numbers are given by
/// recipient and category.
pub(super) async fn take_siblings(
    connection: &mut Transaction,
    woken: &HashMap<(RecipientKey, String), i64>,
) -> Result<TakenMessages, Error> {
    let recipients = woken.keys().map(|(recipient, _)| recipient.to_hex());
    let categories = woken.keys().map(|(_, category)| category.as_str());
    let rows = query(TAKE_SIBLINGS)
        .bind(recipients.collect::<Vec<_>>())
        .bind(categories.collect::<Vec<_>>())
        .bind(woken.values().copied().collect::<Vec<_>>())
        .bind(USUAL_CATEGORY)
        .bind(i64::try_from(COALESCED_MIN).unwrap_or(i64::MAX))
        .bind(SIBLINGS_MAX)
        .fetch_all(connection)
        .await?;
    Ok(TakenMessages::read(&rows)?)
}
