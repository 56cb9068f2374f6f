//! Set-based SQL that fills the queue past `enqueue`, because five million jobs must not take an
//! hour.

use sqlx::PgPool;

/// The throttle of all measured jobs, unless a case names another.
pub const THROTTLE: &str = "bench";

const SCHEMA: &[&str] = &[
    "create schema if not exists bench",
    "create unlogged table if not exists bench.lane (grp text, n bigint, key text, lane_id bigint, primary key (grp, n))",
    // The processes that drain have the role of the product.
    "grant usage, create on schema bench to public",
    "grant select on bench.lane to public",
];

const LANES: &str = "
insert into bench.lane (grp, n, key, lane_id)
select $2, n, k.key, flyball.lane_of($1, k.key)
from generate_series(0, $3 - 1) as n
cross join lateral (select case when $3 = 1 and $2 = '' then '' else $2 || 'k' || n end as key) k
on conflict do nothing";

// The directory already holds the lanes, because their first discovery is not measured here.
const DIRECTORY: &str = "
insert into flyball.lane (lane_id, throttle, key)
select lane_id, $1, key from bench.lane where grp = $2 and n < $3
on conflict do nothing";

const JOBS: &str = "
with fresh as materialized (
    select flyball.next_id() as id, l.lane_id, l.key, g.n
    from generate_series($3, $4 - 1) as g(n)
    join bench.lane l on l.grp = $2 and l.n = g.n % $5
),
kept as (
    insert into flyball.job (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
    select id, lane_id, 1, 10, 1, 'noop', $1, key, jsonb_build_object('n', n) from fresh
)
insert into flyball.ready (lane_id, priority, job_id, cost, holds_unique)
select lane_id, 1, id, 1, false from fresh";

const CLEAR: &str = "
truncate flyball.ready, flyball.lease, flyball.scheduled, flyball.dead, flyball.job,
    flyball.attempt, flyball.failure, flyball.unique_holder, flyball.cancel, flyball.lane,
    bench.lane";

/// The most jobs in one statement.
const PART: i64 = 500_000;

/// A group of lanes of one throttle that jobs are spread over evenly.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    pub throttle: &'a str,
    /// The prefix of the keys, so that groups do not share lanes.
    pub name: &'a str,
    pub lanes: i64,
}

impl Group<'static> {
    /// Returns lanes of the throttle of all cases, without a prefix.
    pub fn of(lanes: i64) -> Self {
        Self {
            throttle: THROTTLE,
            name: "",
            lanes,
        }
    }
}

/// Creates the benchmark's own table and registers its kind.
pub async fn prepare(pool: &PgPool) -> anyhow::Result<()> {
    for statement in SCHEMA {
        sqlx::query(*statement).execute(pool).await?;
    }
    sqlx::query("select flyball.register_kind('noop')")
        .execute(pool)
        .await?;
    Ok(())
}

/// Empties the queue, its history and the directory of lanes.
pub async fn clear(pool: &PgPool) -> anyhow::Result<()> {
    sqlx::query(CLEAR).execute(pool).await?;
    Ok(())
}

/// Adds jobs, spread evenly over the lanes of a group.
pub async fn add(pool: &PgPool, group: Group<'_>, jobs: i64) -> anyhow::Result<()> {
    sqlx::query(LANES)
        .bind(group.throttle)
        .bind(group.name)
        .bind(group.lanes)
        .execute(pool)
        .await?;
    sqlx::query(DIRECTORY)
        .bind(group.throttle)
        .bind(group.name)
        .bind(group.lanes)
        .execute(pool)
        .await?;
    let mut from = 0;
    while from < jobs {
        let to = (from + PART).min(jobs);
        let statement = sqlx::query(JOBS)
            .bind(group.throttle)
            .bind(group.name)
            .bind(from)
            .bind(to)
            .bind(group.lanes);
        statement.execute(pool).await?;
        from = to;
    }
    if jobs >= PART {
        // Otherwise the server would write these pages out for minutes, in the middle of a
        // measurement.
        sqlx::query("checkpoint").execute(pool).await?;
    }
    Ok(())
}

/// Brings the tables into the state in which autovacuum would leave them, so that rounds are alike.
pub async fn settle(pool: &PgPool) -> anyhow::Result<()> {
    for statement in [
        "truncate flyball.attempt",
        "truncate flyball.lease",
        "vacuum (analyze) flyball.ready",
        "vacuum (analyze) flyball.lane",
        "vacuum flyball.worker",
        "analyze flyball.job",
        "analyze flyball.lease",
    ] {
        sqlx::query(statement).execute(pool).await?;
    }
    Ok(())
}

/// Replaces all jobs and the history by new jobs, spread evenly over so many lanes.
pub async fn replace(pool: &PgPool, lanes: i64, jobs: i64) -> anyhow::Result<()> {
    clear(pool).await?;
    add(pool, Group::of(lanes), jobs).await?;
    settle(pool).await
}

/// Returns the number of ready jobs.
pub async fn waiting(pool: &PgPool) -> anyhow::Result<i64> {
    Ok(sqlx::query_scalar("select count(*) from flyball.ready")
        .fetch_one(pool)
        .await?)
}

/// Returns the lanes of a group, in the order of their numbers.
pub async fn lane_ids(pool: &PgPool, name: &str) -> anyhow::Result<Vec<i64>> {
    Ok(
        sqlx::query_scalar("select lane_id from bench.lane where grp = $1 order by n")
            .bind(name)
            .fetch_all(pool)
            .await?,
    )
}
