//! The cost of enqueueing beside a bare insert of equal rows into a plain table, on one connection.

use std::time::Instant;

use anyhow::Context;
use flyball::jobs::{NewJob, Queue};
use serde_json::json;
use sqlx::{Connection, PgConnection, Row};

use crate::QueueArgs;
use crate::cpu::{Cpu, Servers};
use crate::fill;
use crate::report::{Report, against, count, median};
use crate::world::{QueueServers, THROTTLE};

// The columns of a job as its producer sets them, without defaults that have a cost of their own.
const PLAIN: &str = "
drop table if exists bench.plain;
create table bench.plain (like flyball.job including defaults);
alter table bench.plain add primary key (id)";

const BARE_ONE: &str = "
insert into bench.plain (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
values ($1, $2, 1::smallint, 10::smallint, 1, $3, $4, $5, $6)";

const BARE_MANY: &str = "
insert into bench.plain (id, lane_id, priority, max_attempts, cost, kind, throttle, key, args)
select id, lane_id, 1::smallint, 10::smallint, 1, kind, throttle, key, args
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::jsonb[]) as u(id, lane_id, kind, throttle, key, args)";

const ENQUEUE_ONE: &str = "select job_id from flyball.enqueue($1, $2, $3, $4)";

const ENQUEUE_MANY: &str = "select count(*) from flyball.enqueue_many($1)";

/// The number of single rows per turn.
const SINGLES: i64 = 500;

/// The longest that a single enqueue may take, as a multiple of a bare insert.
const GOAL_SINGLE: f64 = 1.3;

/// The least that a bulk enqueue must reach of a bare bulk insert.
const GOAL_BULK: f64 = 0.5;

/// The wall-clock time and Postgres' CPU time of one turn.
#[derive(Clone, Copy)]
struct EnqueueRound {
    rows: f64,
    wall_s: f64,
    postgres_s: f64,
}

async fn turn<F: Future<Output = anyhow::Result<()>>>(
    servers: &Servers,
    rows: i64,
    work: F,
) -> anyhow::Result<EnqueueRound> {
    let (begun, before): (Instant, Cpu) = (Instant::now(), servers.spent(&[]));
    work.await?;
    let cpu = servers.spent(&[]) - before;
    Ok(EnqueueRound {
        rows: rows as f64,
        wall_s: begun.elapsed().as_secs_f64(),
        postgres_s: cpu.postgres_s,
    })
}

/// Measures single rows and bulks.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    fill::clear(&world.pool).await?;
    let table = report.table(
        "enqueue on one connection",
        &["way", "rows/s", "per PG cpu-s", "of bare: wall", "cpu"],
    );
    let mut connection = PgConnection::connect(&world.database_url).await?;
    sqlx::raw_sql(PLAIN).execute(&mut connection).await?;
    let rounds = cli.rounds() * 2 + 1;
    for asleep in [false, true] {
        // Producers notify only a sleeping dispatcher; a busy one is the common case.
        sqlx::query("update flyball.wakeup set asleep = $1")
            .bind(asleep)
            .execute(&mut connection)
            .await?;
        let (mut bare, mut ours) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            bare.push(
                turn(
                    &world.servers,
                    SINGLES,
                    bare_ones(
                        &mut connection,
                        i64::from(asleep) * 1_000_000 + round as i64 * SINGLES,
                    ),
                )
                .await?,
            );
            ours.push(turn(&world.servers, SINGLES, enqueue_ones(&mut connection)).await?);
        }
        let wall = median(
            ours.iter()
                .zip(&bare)
                .map(|(ours, bare)| ours.wall_s / bare.wall_s),
        );
        let cpu = median(
            ours.iter()
                .zip(&bare)
                .map(|(ours, bare)| ours.postgres_s / bare.postgres_s),
        );
        let name = if asleep {
            "flyball.enqueue, ringing a sleeping dispatcher"
        } else {
            "flyball.enqueue"
        };
        if !asleep {
            row(&table, "bare insert of one row", &bare, None);
        }
        row(&table, name, &ours, Some((wall, cpu, GOAL_SINGLE, false)));
    }
    sqlx::query("update flyball.wakeup set asleep = false")
        .execute(&mut connection)
        .await?;
    let queue = Queue::connect(&world.database_url, 1, std::time::Duration::from_secs(20)).await?;
    let mut next = 10_000_000;
    for size in [1_000_i64, 10_000] {
        let (mut bare, mut sql, mut rust) = (Vec::new(), Vec::new(), Vec::new());
        let repeats = 20_000 / size;
        for _ in 0..rounds {
            let rows = size * repeats;
            bare.push(
                turn(
                    &world.servers,
                    rows,
                    bare_bulks(&mut connection, &mut next, size, repeats),
                )
                .await?,
            );
            sql.push(
                turn(
                    &world.servers,
                    rows,
                    sql_bulks(&mut connection, size, repeats),
                )
                .await?,
            );
            rust.push(turn(&world.servers, rows, rust_bulks(&queue, size, repeats)).await?);
            sqlx::raw_sql("truncate bench.plain, flyball.job, flyball.ready")
                .execute(&mut connection)
                .await?;
        }
        row(
            &table,
            &format!("bare insert of {} rows", count(size as f64)),
            &bare,
            None,
        );
        for (name, ours) in [("flyball.enqueue_many", &sql), ("Queue::enqueue", &rust)] {
            let wall = median(
                ours.iter()
                    .zip(&bare)
                    .map(|(ours, bare)| bare.wall_s / ours.wall_s),
            );
            let cpu = median(
                ours.iter()
                    .zip(&bare)
                    .map(|(ours, bare)| bare.postgres_s / ours.postgres_s),
            );
            row(
                &table,
                &format!("{name} of {} jobs", count(size as f64)),
                ours,
                Some((wall, cpu, GOAL_BULK, true)),
            );
        }
    }
    connection.close().await?;
    Ok(())
}

fn row(
    table: &crate::report::Table,
    name: &str,
    turns: &[EnqueueRound],
    of_bare: Option<(f64, f64, f64, bool)>,
) {
    let (wall, cpu) = match of_bare {
        Some((wall, cpu, goal, at_least)) => {
            (against(wall, goal, at_least), against(cpu, goal, at_least))
        }
        None => (String::new(), String::new()),
    };
    let rate = median(turns.iter().map(|turn| turn.rows / turn.wall_s));
    let per_cpu = median(turns.iter().map(|turn| turn.rows / turn.postgres_s));
    table.row([name.to_owned(), count(rate), count(per_cpu), wall, cpu]);
}

async fn bare_ones(connection: &mut PgConnection, from: i64) -> anyhow::Result<()> {
    for n in from..from + SINGLES {
        let statement = sqlx::query(BARE_ONE)
            .bind(n)
            .bind(n % 16)
            .bind("noop")
            .bind(THROTTLE)
            .bind("k")
            .bind(json!({ "n": n }));
        statement.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn enqueue_ones(connection: &mut PgConnection) -> anyhow::Result<()> {
    for n in 0..SINGLES {
        let statement = sqlx::query(ENQUEUE_ONE)
            .bind("noop")
            .bind(json!({ "n": n }))
            .bind(THROTTLE)
            .bind("k");
        statement.fetch_one(&mut *connection).await?;
    }
    Ok(())
}

async fn bare_bulks(
    connection: &mut PgConnection,
    next: &mut i64,
    size: i64,
    repeats: i64,
) -> anyhow::Result<()> {
    for _ in 0..repeats {
        let ids: Vec<i64> = (*next..*next + size).collect();
        *next += size;
        let lanes: Vec<i64> = ids.iter().map(|n| n % 16).collect();
        let texts = |text: &str| vec![text.to_owned(); size as usize];
        let args: Vec<_> = ids.iter().map(|n| json!({ "n": n })).collect();
        let statement = sqlx::query(BARE_MANY)
            .bind(ids)
            .bind(lanes)
            .bind(texts("noop"))
            .bind(texts(THROTTLE))
            .bind(texts("k"))
            .bind(args);
        statement.execute(&mut *connection).await?;
    }
    Ok(())
}

async fn sql_bulks(connection: &mut PgConnection, size: i64, repeats: i64) -> anyhow::Result<()> {
    for _ in 0..repeats {
        let jobs: Vec<_> = (0..size)
            .map(
                |n| json!({ "kind": "noop", "throttle": THROTTLE, "key": "k", "args": { "n": n } }),
            )
            .collect();
        let row = sqlx::query(ENQUEUE_MANY)
            .bind(json!(jobs))
            .fetch_one(&mut *connection)
            .await?;
        anyhow::ensure!(row.get::<i64, _>(0) == size, "not all jobs were enqueued");
    }
    Ok(())
}

async fn rust_bulks(queue: &Queue, size: i64, repeats: i64) -> anyhow::Result<()> {
    for _ in 0..repeats {
        let job = |n: i64| NewJob {
            throttle: THROTTLE.into(),
            key: "k".into(),
            ..NewJob::new("noop", json!({ "n": n }))
        };
        let jobs: Vec<NewJob> = (0..size).map(job).collect();
        let made = queue.enqueue(&jobs).await.context("enqueueing a bulk")?;
        anyhow::ensure!(made.len() as i64 == size, "not all jobs were enqueued");
    }
    Ok(())
}
