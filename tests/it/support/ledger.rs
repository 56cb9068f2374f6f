//! The state of every job. Each job is in exactly one state at any instant, whatever happens to it.

use flyball::postgres::Db;

/// The counts by state, read in one statement so that they belong to one instant.
const LOOK: &str = "
with places as materialized (
    select job_id, 'ready' as place from flyball.ready
    union all select job_id, 'scheduled' from flyball.scheduled
    union all select job_id, 'running' from flyball.lease
    union all select job_id, 'dead' from flyball.dead
    union all select job_id, outcome::text from flyball.attempt where outcome in ('completed', 'cancelled')
)
select (select count(*) from flyball.job),
    count(*) filter (where place = 'ready'), count(*) filter (where place = 'scheduled'),
    count(*) filter (where place = 'running'), count(*) filter (where place = 'dead'),
    count(*) filter (where place = 'completed'), count(*) filter (where place = 'cancelled'),
    (select count(*) from (select job_id from places group by job_id having count(*) > 1) twice),
    (select count(*) from flyball.job j where not exists (select from places p where p.job_id = j.id)),
    count(*) filter (where not exists (select from flyball.job j where j.id = places.job_id))
from places";

/// The number of leases without a live worker; 0 once everything has settled.
const ORPHANS: &str = "
select count(*) from flyball.lease l
where not exists (select from flyball.worker w where w.id = l.worker_id and w.stopped_at is null)";

/// The number of locks of unique keys whose job has ended.
const STUCK: &str = "
select count(*) from flyball.unique_holder u
where u.expires_at is null and exists (
    select from flyball.attempt a where a.job_id = u.job_id and a.outcome in ('completed', 'cancelled')
)";

/// The number of jobs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    pub accepted: i64,
    pub ready: i64,
    pub scheduled: i64,
    pub running: i64,
    pub dead: i64,
    pub completed: i64,
    pub cancelled: i64,
    /// Jobs in two states, or ended twice.
    pub twice: i64,
    /// Jobs in no state.
    pub lost: i64,
    /// Entries that belong to no accepted job.
    pub made_up: i64,
}

impl Ledger {
    /// Reads the counts; `None` while Postgres is not available.
    pub async fn look(db: impl Into<Db>) -> Option<Self> {
        let row: (i64, i64, i64, i64, i64, i64, i64, i64, i64, i64) =
            sqlx::query_as(LOOK).fetch_one(&db.into()).await.ok()?;
        let (accepted, ready, scheduled, running, dead, completed, cancelled, twice, lost, made_up) =
            row;
        Some(Self {
            accepted,
            ready,
            scheduled,
            running,
            dead,
            completed,
            cancelled,
            twice,
            lost,
            made_up,
        })
    }

    /// Returns the number of jobs that have not ended.
    pub fn waiting(&self) -> i64 {
        self.ready + self.scheduled + self.running
    }

    /// Fails unless every job is in exactly one state.
    #[track_caller]
    pub fn assert_conserved(&self) {
        let ended = self.completed + self.dead + self.cancelled;
        assert_eq!((self.twice, self.lost, self.made_up), (0, 0, 0), "{self:?}");
        assert_eq!(self.accepted, ended + self.waiting(), "{self:?}");
    }
}

/// Fails if a lease outlives its worker, or the lock of a unique key outlives its job.
pub async fn assert_nothing_is_left_behind(db: impl Into<Db>) {
    let db = db.into();
    for (what, sql) in [
        ("leases of dead workers", ORPHANS),
        ("unique keys of jobs that have ended", STUCK),
    ] {
        let left: i64 = sqlx::query_scalar(sql).fetch_one(&db).await.expect(what);
        assert_eq!(left, 0, "{what}");
    }
}
