//! Outcomes of the jobs of each throttle, as every worker reports them with its heartbeat, for a
//! governor in any process.

use std::time::{Duration, Instant};

use sqlx::Row;
use tokio::sync::Mutex;

use crate::control::durations::Durations;
use crate::jobs::{Error, Tally};
use crate::postgres::Db;

/// The time for which a read is reused, because several throttles are asked about at about the same
/// time.
const READ_EVERY: Duration = Duration::from_millis(400);

/// The most counters that are read.
const MAX_REPORTS_READ: i64 = 10_000;

// A heartbeat confirms all counters of its worker, whether they were written again or not.
pub(super) const READ_REPORTS: &str = "
select f.throttle, f.worker_id, f.completed, f.failed, f.refused, f.busy_s, f.running, f.untimed,
    case when f.throttle = any($2) then f.durations else '{}' end as durations,
    extract(epoch from clock_timestamp() - w.heartbeat_at)::float8 as age_s,
    extract(epoch from clock_timestamp() - f.created_at)::float8 as born_s
from flyball.worker w
join flyball.feedback f on f.worker_id = w.id
where w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp()
limit $1";

// The reports of dead workers are never read.
pub(super) const DELETE_OLD_REPORTS: &str = "
delete from flyball.feedback f
where (f.worker_id, f.throttle) in (
    select o.worker_id, o.throttle from flyball.feedback o
    where not exists (
        select 1 from flyball.worker w
        where w.id = o.worker_id and w.stopped_at is null and w.heartbeat_at + w.ttl >= clock_timestamp()
    )
    limit $1
)";

/// A tally as its worker reported it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// The id of the worker.
    pub worker_id: i32,
    /// The counters that it reported.
    pub tally: Tally,
    /// The age of the report, in seconds.
    pub age_s: f64,
    /// The time since the counters began at 0, in seconds.
    pub born_s: f64,
}

/// A reader of the reports of all live workers.
pub struct Feedbacks {
    db: Db,
    /// Throttles whose durations are read as well.
    timed: Vec<String>,
    newest: Mutex<Option<(Instant, Vec<WorkerReport>)>>,
}

impl Feedbacks {
    /// Returns a reader on these connections.
    pub fn new(db: impl Into<Db>) -> Self {
        Self {
            db: db.into(),
            timed: Vec::new(),
            newest: Mutex::default(),
        }
    }

    /// Reads the durations of attempts at these throttles as well; those of the others are not
    /// read.
    #[must_use]
    pub fn with_durations(self, throttles: Vec<String>) -> Self {
        Self {
            timed: throttles,
            ..self
        }
    }

    /// Returns the reports of the live workers on a throttle.
    ///
    /// One statement reads those on all throttles, at most a few times a second.
    pub async fn of(&self, throttle: &str) -> Result<Vec<WorkerReport>, Error> {
        let mut newest = self.newest.lock().await;
        if newest
            .as_ref()
            .is_none_or(|(read_at, _)| read_at.elapsed() >= READ_EVERY)
        {
            // The time is taken before the query, so that an answer never looks younger than it is.
            let requested = Instant::now();
            let rows = sqlx::query(READ_REPORTS)
                .bind(MAX_REPORTS_READ)
                .bind(&self.timed)
                .fetch_all(&self.db)
                .await?;
            *newest = Some((requested, rows.iter().map(worker_report).collect()));
        }
        let Some((read_at, all)) = newest.as_ref() else {
            return Ok(Vec::new());
        };
        let since = read_at.elapsed().as_secs_f64();
        let older = |reported: &WorkerReport| WorkerReport {
            age_s: reported.age_s + since,
            born_s: reported.born_s + since,
            ..reported.clone()
        };
        Ok(all
            .iter()
            .filter(|reported| reported.tally.throttle == throttle)
            .map(older)
            .collect())
    }
}

fn worker_report(row: &sqlx::postgres::PgRow) -> WorkerReport {
    WorkerReport {
        worker_id: row.get("worker_id"),
        tally: Tally {
            throttle: row.get("throttle"),
            completed: row.get("completed"),
            failed: row.get("failed"),
            refused: row.get("refused"),
            busy_s: row.get("busy_s"),
            running: row.get("running"),
            untimed: row.get("untimed"),
            durations: Durations::of(&row.get::<Vec<i64>, _>("durations")),
        },
        age_s: row.get("age_s"),
        born_s: row.get("born_s"),
    }
}
