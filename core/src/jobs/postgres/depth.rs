//! Depths of the throttles' queues, read from a small table that one process at a time maintains by
//! walking the waiting jobs.
//!
//! No statement counts a whole table. A page is a bounded part of an index, the next one begins
//! behind it, and between two pages the walker rests for fifty times as long as the page took.

use std::time::{Duration, Instant};

use jiff_sqlx::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::Queue;
use super::depth_cache::Depths;
use super::depth_throttles;
use crate::jobs::depth_counter::{DepthCounter, DirectoryEntry, JOB_TABLES, JobTable, LaneCount};
use crate::jobs::{Depth, Error};

/// Index entries of one page.
const PAGE_ENTRIES: i64 = 20_000;

/// Lanes that one statement looks up.
const MAX_LANES_LOOKED_UP: usize = 1_000;

/// Lanes written at a time, and so about the most per second, because each write moves an entry of
/// an index.
const LANES_WRITTEN: usize = 500;

/// Throttles written at a time.
const THROTTLES_WRITTEN: usize = 1_000;

/// The shortest time between the beginnings of two walks over a part, and between two writes of the
/// figures.
const MIN_WALK_INTERVAL: Duration = Duration::from_millis(900);

/// The same of a part in which the last walk found nothing, except for ready jobs, which fill lanes.
const EMPTY_WALK_INTERVAL: Duration = Duration::from_millis(2700);

/// The shortest time between two walks over all parts while the queue is quiet and the last walks
/// changed no figure.
const QUIET_WALK_INTERVAL: Duration = Duration::from_millis(4500);

/// The time without a changed figure after which walks become rare.
const UNCHANGED_AFTER: Duration = Duration::from_secs(3);

/// The time after which the figures are read from the table again.
const READ_EVERY: Duration = Duration::from_millis(900);

/// The most throttles whose figures are read.
const MAX_THROTTLES_READ: i64 = 10_000;

// The age and the figures are of one moment, so that the figures never look younger than they are.
// The lease is that of `keep_depth`.
pub(super) const DEPTHS: &str = "
select s.at, s.lanes_at, extract(epoch from clock_timestamp() - s.at)::float8 as age_s,
    exists (select from flyball.leader where name = 'depth' and expires_at > clock_timestamp()) as is_kept,
    d.throttle, d.ready, d.scheduled, d.running, d.dead, d.oldest_ready_at
from (select) one
left join flyball.sweep s on s.one
left join (
    select throttle, ready, scheduled, running, dead, oldest_ready_at
    from flyball.depth
    where ready > 0 or scheduled > 0 or running > 0 or dead > 0
    order by throttle
    limit $1
) d on true
order by d.throttle";

// The page comes in the order of the index, so grouping it needs no sort.
pub(super) const WALK_READY: &str = "
select lane_id, priority, count(*) as jobs, min(job_id) as oldest, max(job_id) as newest
from (
    select lane_id, priority, job_id from flyball.ready
    where (lane_id, priority, job_id) > ($1, $2, $3)
    order by lane_id, priority, job_id
    limit $4
) page
group by lane_id, priority
order by lane_id, priority";

macro_rules! walk {
    ($table:literal) => {
        concat!(
            "
select lane_id, 0::smallint as priority, count(*) as jobs, min(job_id) as oldest, max(job_id) as newest
from (
    select lane_id, job_id from ",
            $table,
            "
    where job_id > $1
    order by job_id
    limit $2
) page
group by lane_id"
        )
    };
}

pub(super) const WALK_SCHEDULED: &str = walk!("flyball.scheduled");
pub(super) const WALK_RUNNING: &str = walk!("flyball.lease");
pub(super) const WALK_DEAD: &str = walk!("flyball.dead");

// The first pages of all walks in one round trip. The ready jobs come first and in the order of the
// index, because parts of a union are read one after the other.
pub(super) const WALK_ALL: &str = "
select 0 as part, r.* from (
    select lane_id, priority, count(*) as jobs, min(job_id) as oldest, max(job_id) as newest
    from (select lane_id, priority, job_id from flyball.ready order by lane_id, priority, job_id limit $1) page
    group by lane_id, priority
    order by lane_id, priority
) r
union all
select 1, lane_id, 0::smallint, count(*), min(job_id), max(job_id)
from (select lane_id, job_id from flyball.scheduled order by job_id limit $1) page
group by lane_id
union all
select 2, lane_id, 0::smallint, count(*), min(job_id), max(job_id)
from (select lane_id, job_id from flyball.lease order by job_id limit $1) page
group by lane_id
union all
select 3, lane_id, 0::smallint, count(*), min(job_id), max(job_id)
from (select lane_id, job_id from flyball.dead order by job_id limit $1) page
group by lane_id";

// A lane that is not in the directory yet takes its throttle and key from one of its jobs.
pub(super) const NAMES: &str = "
with requested as materialized (
    select * from unnest($1::bigint[], $2::bigint[]) as a(lane_id, job_id)
),
known as materialized (
    select a.lane_id, l.throttle, l.depth, l.depth_at
    from requested a
    cross join lateral (select * from flyball.lane where lane_id = a.lane_id limit 1) l
),
found as materialized (
    select a.lane_id, case when j.waits then flyball.admission_throttle(j.tenant) else j.throttle end as throttle,
        case when j.waits then j.module else j.key end as key
    from requested a
    cross join lateral (
        select throttle, key, tenant, module, admission_lane is not distinct from a.lane_id as waits
        from flyball.job where id = a.job_id limit 1
    ) j
    where a.lane_id not in (select lane_id from known)
),
adopted as (
    insert into flyball.lane (lane_id, throttle, key)
    select lane_id, throttle, key from found where octet_length(throttle) + octet_length(key) <= 2000
    on conflict do nothing
)
select lane_id, throttle, depth, floor(extract(epoch from depth_at) / 86400)::bigint as day from known
union all
select lane_id, throttle, 0, floor(extract(epoch from now()) / 86400)::bigint from found";

pub(super) const WRITTEN_LANES: &str = "
select lane_id, throttle, depth, floor(extract(epoch from depth_at) / 86400)::bigint as day
from (select * from flyball.lane where lane_id > $1 order by lane_id limit $2) page
where depth > 0";

pub(super) const PAGE_OF_LANES: &str = "
select max(lane_id) from (select lane_id from flyball.lane where lane_id > $1 order by lane_id limit $2) page";

pub(super) const CLOCK: &str = "select extract(epoch from clock_timestamp())::float8";

pub(super) const WRITTEN_THROTTLES: &str = "select throttle from flyball.depth";

// A lane that somebody has locked, to change its weight, keeps its figure until the next one.
pub(super) const WRITE_LANES: &str = "
update flyball.lane l set depth = p.depth, depth_at = clock_timestamp()
from unnest($1::bigint[], $2::bigint[]) as p(lane_id, depth)
where l.lane_id = p.lane_id
    and l.lane_id = any(array(select q.lane_id from flyball.lane q where q.lane_id = any($1) for no key update skip locked))";

pub(super) const WRITE_SWEEP: &str = "
update flyball.sweep
set at = greatest(at, clock_timestamp() - make_interval(secs => $1)),
    lanes_at = case when $2 then greatest(lanes_at, clock_timestamp() - make_interval(secs => $1)) else lanes_at end,
    walked_at = case when $3::float8 is null then walked_at else clock_timestamp() - make_interval(secs => $3) end
where one";

impl Queue {
    /// Returns the depth of every throttle that has jobs, and the age of the figures.
    ///
    /// It reads two small tables, about once a second at most.
    pub async fn depths(&self) -> Result<Depths, Error> {
        let mut cache = self.depth.0.lock().await;
        if let Some((read_at, depths)) = &*cache
            && read_at.elapsed() < READ_EVERY
        {
            return Ok(depths.clone());
        }
        let rows = sqlx::query(DEPTHS)
            .bind(MAX_THROTTLES_READ)
            .fetch_all(&self.pool)
            .await?;
        let moment = |name: &str| {
            let at: Option<Timestamp> = rows.first()?.get(name);
            Some(at?.to_jiff())
        };
        let (at, lanes_at) = (moment("at"), moment("lanes_at"));
        let age_s = rows
            .first()
            .and_then(|row| row.get::<Option<f64>, _>("age_s"));
        let is_kept = rows.first().is_some_and(|row| row.get("is_kept"));
        let throttles = rows.iter().filter_map(|row| {
            Some(Depth {
                throttle: row.get::<Option<String>, _>("throttle")?,
                ready: row.get("ready"),
                scheduled: row.get("scheduled"),
                running: row.get("running"),
                dead: row.get("dead"),
                oldest_ready_at: row
                    .get::<Option<Timestamp>, _>("oldest_ready_at")
                    .map(|at| at.to_jiff()),
            })
        });
        let depths = Depths {
            throttles: throttles.collect(),
            at,
            age: age_s.and_then(|age_s| Duration::try_from_secs_f64(age_s.max(0.0)).ok()),
            is_kept,
            lanes_at,
        };
        *cache = Some((Instant::now(), depths.clone()));
        Ok(depths)
    }

    /// Walks all waiting jobs once, without a rest, and writes the figures.
    ///
    /// It is for tests and tools: a running process maintains the figures by itself.
    pub async fn count_now(&self) -> Result<Depths, Error> {
        let mut sweeper = Sweeper::new(self.clone());
        sweeper.round().await?;
        while sweeper.counter.lanes_waiting() > 0 {
            sweeper.write().await?;
        }
        *self.depth.0.lock().await = None;
        self.depths().await
    }
}

/// The progress of the walk over one part.
#[derive(Clone, Copy, Debug)]
struct Walk {
    /// The lane (ready jobs only), priority and job behind which the next page begins; `None`
    /// between two walks.
    position: Option<(i64, i16, i64)>,
    began: Option<Instant>,
    /// The duration of the last whole walk, rests included.
    took: Duration,
    /// True if the last whole walk found nothing.
    is_empty: bool,
}

impl Walk {
    /// Returns true if the next page or the next walk is due.
    fn is_due(&self, part: JobTable) -> bool {
        let interval = match part {
            JobTable::Scheduled | JobTable::Running | JobTable::Dead if self.is_empty => {
                EMPTY_WALK_INTERVAL
            }
            _ => MIN_WALK_INTERVAL,
        };
        self.position.is_some() || self.began.is_none_or(|began| began.elapsed() >= interval)
    }
}

/// The walker: the counter, and the progress of each walk.
pub struct Sweeper {
    queue: Queue,
    counter: DepthCounter,
    walks: [Walk; 4],
    round_began: Instant,
    seen_since: Option<Duration>,
    wrote: Option<Instant>,
    /// The last time at which a figure was found changed.
    changed: Instant,
    /// The server's clock when this walker started, in unix seconds, with the local time of that
    /// read.
    started: Option<(f64, Instant)>,
    page: i64,
}

impl Sweeper {
    /// Returns a walker without any figures.
    pub fn new(queue: Queue) -> Self {
        let walk = Walk {
            position: None,
            began: None,
            took: Duration::ZERO,
            is_empty: false,
        };
        Self {
            queue,
            counter: DepthCounter::default(),
            walks: [walk; 4],
            round_began: Instant::now(),
            seen_since: None,
            wrote: None,
            changed: Instant::now(),
            started: None,
            page: PAGE_ENTRIES,
        }
    }

    /// Sets the number of entries per page.
    pub fn with_page(mut self, entries: i64) -> Self {
        self.page = entries.max(1);
        self
    }

    /// Takes one page of every walk that is due, and writes the figures if that is due; returns the
    /// time that the statements took.
    pub async fn step(&mut self) -> Result<Duration, Error> {
        let began = Instant::now();
        if self.started.is_none() {
            self.start().await?;
        }
        let is_between = self.walks.iter().all(|walk| walk.position.is_none());
        let has_work = self.counter.lanes_waiting() > 0 || !self.is_whole();
        let is_quiet = self.queue.activity.is_quiet(began)
            && self.changed.elapsed() >= UNCHANGED_AFTER
            && !has_work;
        if is_quiet && is_between {
            let last = self.walks.iter().filter_map(|walk| walk.began).max();
            if last.is_none_or(|last| last.elapsed() >= QUIET_WALK_INTERVAL) {
                self.first_pages().await?;
                self.write().await?;
            }
            return Ok(began.elapsed());
        }
        for part in JOB_TABLES {
            if self.walks[part as usize].is_due(part) {
                self.page(part).await?;
            }
        }
        if self
            .wrote
            .is_none_or(|wrote| wrote.elapsed() >= MIN_WALK_INTERVAL)
        {
            self.write().await?;
        }
        Ok(began.elapsed())
    }

    /// Returns true once every walk has come to its end.
    pub fn is_whole(&self) -> bool {
        self.counter.is_whole()
    }

    /// Walks every part once to its end, and writes the figures.
    pub async fn round(&mut self) -> Result<(), Error> {
        if self.started.is_none() {
            self.start().await?;
        }
        for part in JOB_TABLES {
            self.page(part).await?;
            while self.walks[part as usize].position.is_some() {
                self.page(part).await?;
            }
        }
        self.write().await
    }

    /// Loads the figures in the tables, which may be out of date and must all be brought in line.
    async fn start(&mut self) -> Result<(), Error> {
        for throttle in sqlx::query_scalar::<_, String>(WRITTEN_THROTTLES)
            .fetch_all(&self.queue.pool)
            .await?
        {
            self.counter.expect(&throttle);
        }
        let mut after = i64::MIN;
        while let Some(end) = sqlx::query_scalar::<_, Option<i64>>(PAGE_OF_LANES)
            .bind(after)
            .bind(self.page)
            .fetch_one(&self.queue.pool)
            .await?
        {
            let rows = sqlx::query(WRITTEN_LANES)
                .bind(after)
                .bind(self.page)
                .fetch_all(&self.queue.pool)
                .await?;
            rows.iter()
                .for_each(|row| self.counter.introduce(&entry(row)));
            after = end;
        }
        let clock: f64 = sqlx::query_scalar(CLOCK)
            .fetch_one(&self.queue.pool)
            .await?;
        self.started = Some((clock, Instant::now()));
        Ok(())
    }

    /// Returns the day by the server's clock, in days since 1970.
    fn today(&self) -> i64 {
        self.started.map_or(0, |(clock, at)| {
            ((clock + at.elapsed().as_secs_f64()) / 86_400.0) as i64
        })
    }

    /// Takes the first page of every walk, in one statement.
    async fn first_pages(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        for walk in &mut self.walks {
            walk.began = Some(now);
        }
        let rows = sqlx::query(WALK_ALL)
            .bind(self.page)
            .fetch_all(&self.queue.pool)
            .await?;
        let mut pages: [Vec<PgRow>; 4] = Default::default();
        for row in rows {
            pages[row.get::<i32, _>("part") as usize].push(row);
        }
        for (part, page) in JOB_TABLES.into_iter().zip(&pages) {
            self.take(part, page, true).await?;
        }
        Ok(())
    }

    /// Takes the next page of one walk.
    async fn page(&mut self, part: JobTable) -> Result<(), Error> {
        let walk = &mut self.walks[part as usize];
        let is_first = walk.position.is_none();
        if is_first {
            walk.began = Some(Instant::now());
        }
        let (lane, priority, job) = walk.position.unwrap_or((i64::MIN, 0, i64::MIN));
        let requested = match part {
            JobTable::Ready => sqlx::query(WALK_READY)
                .bind(lane)
                .bind(priority)
                .bind(job)
                .bind(self.page),
            JobTable::Scheduled => sqlx::query(WALK_SCHEDULED).bind(job).bind(self.page),
            JobTable::Running => sqlx::query(WALK_RUNNING).bind(job).bind(self.page),
            JobTable::Dead => sqlx::query(WALK_DEAD).bind(job).bind(self.page),
        };
        let rows = requested.fetch_all(&self.queue.pool).await?;
        self.take(part, &rows, is_first).await
    }

    /// Takes in a page of a walk, the first one or a later one.
    async fn take(&mut self, part: JobTable, rows: &[PgRow], is_first: bool) -> Result<(), Error> {
        let today = self.today();
        let (mut found, mut entries, mut last) = (Vec::with_capacity(rows.len()), 0, None);
        for row in rows {
            let (lane_id, jobs, newest): (i64, i64, i64) =
                (row.get("lane_id"), row.get("jobs"), row.get("newest"));
            found.push(LaneCount {
                lane_id,
                jobs,
                oldest: row.get("oldest"),
            });
            entries += jobs;
            let here = (lane_id, row.get::<i16, _>("priority"), newest);
            // Ready jobs come in the order of their lanes; the other parts continue behind their
            // largest id.
            last = match last {
                Some(before @ (_, _, job)) if part != JobTable::Ready && newest < job => {
                    Some(before)
                }
                _ => Some(here),
            };
        }
        self.introduce(&found).await?;
        match part {
            JobTable::Ready => self.counter.ready(&found, today),
            _ => self.counter.others(part, &found, today),
        }
        let walk = &mut self.walks[part as usize];
        if entries >= self.page {
            walk.position = last;
        } else {
            walk.position = None;
            walk.is_empty = is_first && entries == 0;
            walk.took = walk.began.map_or(Duration::ZERO, |began| began.elapsed());
            self.counter.end(part, today);
            if self.counter.round() {
                // A walk that ended in this round may have begun in the round before.
                let longest = self
                    .walks
                    .iter()
                    .map(|walk| walk.took)
                    .max()
                    .unwrap_or_default();
                self.seen_since = Some(self.round_began.elapsed() + longest);
                self.round_began = Instant::now();
            }
        }
        Ok(())
    }

    async fn introduce(&mut self, found: &[LaneCount]) -> Result<(), Error> {
        let unknown = self.counter.unknown_lanes(found);
        let mut entries = Vec::new();
        for some in unknown.chunks(MAX_LANES_LOOKED_UP) {
            let (lanes, jobs): (Vec<i64>, Vec<i64>) =
                some.iter().map(|one| (one.lane_id, one.oldest)).unzip();
            let rows = sqlx::query(NAMES)
                .bind(lanes)
                .bind(jobs)
                .fetch_all(&self.queue.pool)
                .await?;
            entries.extend(rows.iter().map(entry));
        }
        entries
            .iter()
            .for_each(|entry| self.counter.introduce(entry));
        Ok(())
    }

    /// Writes the figures that have changed since the last write, within the limits of one write.
    async fn write(&mut self) -> Result<(), Error> {
        self.wrote = Some(Instant::now());
        let lanes = self.counter.take_lanes(LANES_WRITTEN, self.today());
        if !lanes.is_empty() {
            self.changed = Instant::now();
            let (ids, depths): (Vec<i64>, Vec<i64>) = lanes.into_iter().unzip();
            sqlx::query(WRITE_LANES)
                .bind(ids)
                .bind(depths)
                .execute(&self.queue.pool)
                .await?;
        }
        if !self.counter.is_whole() {
            return Ok(());
        }
        let taken = self.counter.take_throttles(THROTTLES_WRITTEN);
        let is_all = taken.len() < THROTTLES_WRITTEN;
        if !taken.is_empty() {
            self.changed = Instant::now();
            depth_throttles::write(&self.queue, &taken).await?;
        }
        if is_all {
            let age = self.age();
            sqlx::query(WRITE_SWEEP)
                .bind(age.as_secs_f64())
                .bind(self.counter.lanes_waiting() == 0)
                .bind(self.seen_since.take().map(|since| since.as_secs_f64()))
                .execute(&self.queue.pool)
                .await?;
        }
        Ok(())
    }

    /// Returns the age of the oldest figure.
    ///
    /// Between two walks the figures are as old as the beginning of the last one. During a walk,
    /// the figures just ahead of it are as old as the walk before took.
    fn age(&self) -> Duration {
        let of = |walk: &Walk| match (walk.position, walk.began) {
            (Some(_), Some(began)) => walk.took.max(began.elapsed()),
            (_, began) => began.map_or(Duration::ZERO, |began| began.elapsed()),
        };
        self.walks.iter().map(of).max().unwrap_or_default()
    }
}

fn entry(row: &PgRow) -> DirectoryEntry {
    DirectoryEntry {
        lane_id: row.get("lane_id"),
        throttle: row.get("throttle"),
        depth: row.get("depth"),
        day: row.get("day"),
    }
}
