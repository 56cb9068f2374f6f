//! The cost of PgBouncer: one worker process that reaches Postgres directly, and behind a PgBouncer in
//! transaction mode.

#[path = "../../../tests/it/support/pgbouncer.rs"]
#[allow(dead_code, reason = "the tests use all of it")]
mod pgbouncer;

use std::time::Duration;

use crate::QueueArgs;
use crate::child::DEFAULTS;
use crate::cpu;
use crate::drain::size;
use crate::fill;
use crate::report::{Report, count, median, ratio};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};
use pgbouncer::PgBouncer;

const LANES: i64 = 100;

/// The server connections of the pooler: as many as a worker has without it.
const CONNECTIONS: u32 = 10;

/// The jobs of a run, by which its length is found.
const BATCH: usize = 100;

const DIRECT: &str = "direct";

/// Measures both ways by turns.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let table = report.table(
        "one worker process with the default settings, 100 lanes",
        &[
            "way",
            "jobs/s",
            "per PG cpu-s",
            "per FB cpu-s",
            "PgBouncer µs a job",
            "of direct: wall",
            "cpu of both",
        ],
    );
    let pooler = PgBouncer::with_connections(&world.database_url, CONNECTIONS).await;
    let mut seen: [Vec<(Ran, f64)>; 2] = Default::default();
    for _ in 0..cli.rounds() {
        for (url, seen) in [None, Some(pooler.url.as_str())].into_iter().zip(&mut seen) {
            let before = pooler_s(&pooler);
            let ran = once(world, cli, url).await?;
            seen.push((ran, pooler_s(&pooler) - before));
        }
    }
    for (name, rounds) in [DIRECT, "behind PgBouncer"].into_iter().zip(&seen) {
        let over =
            |figure: fn(&Stretch) -> f64| median(rounds.iter().map(|(ran, _)| figure(&ran.whole)));
        let of_direct = |figure: fn(&Stretch) -> f64| {
            ratio(median(rounds.iter().zip(&seen[0]).map(
                |((ran, _), (direct, _))| figure(&ran.whole) / figure(&direct.whole),
            )))
        };
        table.row([
            name.to_owned(),
            count(over(Stretch::per_s)),
            count(over(Stretch::per_postgres_s)),
            count(over(Stretch::per_flyball_s)),
            format!(
                "{:.1}",
                median(rounds.iter().map(|(ran, s)| s / ran.total * 1e6))
            ),
            of_direct(Stretch::per_s),
            of_direct(Stretch::per_both_s),
        ]);
    }
    Ok(())
}

/// Returns the CPU-seconds of the pooler so far.
fn pooler_s(pooler: &PgBouncer) -> f64 {
    cpu::tree_s(pooler.shell())
}

async fn once(world: &QueueServers, cli: &QueueArgs, pooler: Option<&str>) -> anyhow::Result<Ran> {
    let (warm, measured) = size(BATCH, cli.full);
    let jobs = (warm + measured + measured / 2) as i64;
    fill::replace(&world.pool, LANES, jobs).await?;
    run(
        world,
        Run {
            drainer: Drainer::Runner {
                processes: 1,
                pooler,
            },
            batch: DEFAULTS,
            warm,
            measured,
            parts: 1,
            patience: Duration::from_secs(120),
        },
    )
    .await
}

/// Waits until an attempt succeeds, as the tests do.
async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    patience: Duration,
    mut attempt: impl FnMut() -> F,
) -> T {
    let waiting = async {
        loop {
            match attempt().await {
                Some(value) => return value,
                None => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    };
    match tokio::time::timeout(patience, waiting).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {} s", patience.as_secs()),
    }
}
