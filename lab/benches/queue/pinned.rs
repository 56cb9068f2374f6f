//! The effect of a forgotten reader on the queue: its snapshot keeps every dead row from being
//! removed.

use std::time::Duration;

use sqlx::{Connection, PgConnection, Row};

use crate::QueueArgs;
use crate::fill;
use crate::report::{Report, against, count, median};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::statements;
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

/// The least share of an undisturbed drain's rate that the later half of a drain must keep.
const GOAL: f64 = 0.75;

const BATCH: usize = 500;

/// One drain, with the sizes of the hot tables at its end.
struct Pinned {
    ran: Ran,
    ready_mib: (f64, f64),
    lease_mib: (f64, f64),
}

/// Measures drains with and without a reader, by the bare statements and by the runner.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let table = report.table(
        "a long drain beside an idle REPEATABLE READ reader, batch 500",
        &[
            "way",
            "first half/s",
            "later half/s",
            "later per PG cpu-s",
            "of unpinned: wall",
            "cpu of PG",
            "ready heap+index MiB",
            "lease heap+index MiB",
        ],
    );
    let rounds = cli.rounds.unwrap_or(if cli.full { 3 } else { 1 });
    for lanes in [1, 100] {
        for (drainer, name) in [
            (
                Drainer::Floor {
                    clients: 2,
                    group: "",
                },
                "floor x2",
            ),
            (Drainer::runner(1), "runner"),
        ] {
            let (mut free, mut pinned) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                free.push(once(world, cli, lanes, drainer, false).await?);
                pinned.push(once(world, cli, lanes, drainer, true).await?);
            }
            for (rounds, what) in [(&free, "no reader"), (&pinned, "a reader")] {
                let half = |later: usize, figure: fn(&Stretch) -> f64| {
                    median(rounds.iter().map(|one| figure(&one.ran.parts[later])))
                };
                let of_free = |figure: fn(&Stretch) -> f64| {
                    let pairs = rounds.iter().zip(&free);
                    let value =
                        median(pairs.map(|(one, free)| {
                            figure(&one.ran.parts[1]) / figure(&free.ran.parts[1])
                        }));
                    if what == "no reader" {
                        String::new()
                    } else {
                        against(value, GOAL, true)
                    }
                };
                let size = |of: fn(&Pinned) -> (f64, f64)| {
                    format!(
                        "{:.1} + {:.1}",
                        median(rounds.iter().map(|one| of(one).0)),
                        median(rounds.iter().map(|one| of(one).1))
                    )
                };
                table.row([
                    format!("{name}, {lanes} lanes: {what}"),
                    count(half(0, Stretch::per_s)),
                    count(half(1, Stretch::per_s)),
                    count(half(1, Stretch::per_postgres_s)),
                    of_free(Stretch::per_s),
                    of_free(Stretch::per_postgres_s),
                    size(|one| one.ready_mib),
                    size(|one| one.lease_mib),
                ]);
            }
        }
    }
    Ok(())
}

async fn once(
    world: &QueueServers,
    cli: &QueueArgs,
    lanes: i64,
    drainer: Drainer<'_>,
    pinned: bool,
) -> anyhow::Result<Pinned> {
    let measured = if cli.full { 2_000_000 } else { 300_000 };
    let warm = 10_000;
    let jobs = (measured + warm) as i64 * 21 / 20;
    fill::replace(&world.pool, lanes, jobs).await?;
    let mut reader = PgConnection::connect(&world.database_url).await?;
    if pinned {
        sqlx::raw_sql("begin isolation level repeatable read; select count(*) from flyball.wakeup")
            .execute(&mut reader)
            .await?;
    }
    let patience = Duration::from_secs(if cli.full { 600 } else { 180 });
    if cli.statements {
        statements::reset(&world.pool).await?;
    }
    let ran = run(
        world,
        Run {
            drainer,
            batch: BATCH,
            warm,
            measured,
            parts: 2,
            patience,
        },
    )
    .await;
    if cli.statements {
        eprintln!(
            "{drainer:?}, {lanes} lanes, {}",
            if pinned { "pinned" } else { "free" }
        );
        statements::print(&world.pool, (measured + warm) as f64).await?;
    }
    let (ready_mib, lease_mib) = (
        size_mib(world, "flyball.ready").await?,
        size_mib(world, "flyball.lease").await?,
    );
    reader.close().await?;
    Ok(Pinned {
        ran: ran?,
        ready_mib,
        lease_mib,
    })
}

/// Returns the size of a table's heap and of its indexes, in MiB.
async fn size_mib(world: &QueueServers, table: &str) -> anyhow::Result<(f64, f64)> {
    let sizes = "select pg_relation_size($1::regclass) / 1048576.0::float8, pg_indexes_size($1::regclass) / 1048576.0::float8";
    let row = sqlx::query(sizes)
        .bind(table)
        .fetch_one(&world.pool)
        .await?;
    Ok((row.get(0), row.get(1)))
}
