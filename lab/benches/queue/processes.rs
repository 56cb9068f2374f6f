//! Several worker processes on one queue, which must share the work without hindering each other.

use std::time::Duration;

use crate::QueueArgs;
use crate::drain::size;
use crate::fill;
use crate::report::{Report, count, median, ratio};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

const BATCH: usize = 100;

/// Measures one, two and four processes.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let table = report.table(
        "worker processes on one queue, concurrency 100 each",
        &[
            "lanes, processes",
            "jobs/s",
            "per PG cpu-s",
            "per FB cpu-s",
            "per both",
            "of one process: wall",
            "cpu",
        ],
    );
    for lanes in [100, 1] {
        let mut seen: [Vec<Ran>; 3] = Default::default();
        for _ in 0..cli.rounds() {
            for (processes, seen) in [1, 2, 4].into_iter().zip(&mut seen) {
                seen.push(once(world, cli, lanes, processes).await?);
            }
        }
        for (processes, rounds) in [1, 2, 4].into_iter().zip(&seen) {
            let over =
                |figure: fn(&Stretch) -> f64| median(rounds.iter().map(|ran| figure(&ran.whole)));
            let of_one = |figure: fn(&Stretch) -> f64| {
                let value = median(
                    rounds
                        .iter()
                        .zip(&seen[0])
                        .map(|(ran, one)| figure(&ran.whole) / figure(&one.whole)),
                );
                if processes == 1 {
                    String::new()
                } else {
                    ratio(value)
                }
            };
            table.row([
                format!("{lanes} lanes, {processes} processes"),
                count(over(Stretch::per_s)),
                count(over(Stretch::per_postgres_s)),
                count(over(Stretch::per_flyball_s)),
                count(over(Stretch::per_both_s)),
                of_one(Stretch::per_s),
                of_one(Stretch::per_both_s),
            ]);
        }
    }
    Ok(())
}

async fn once(
    world: &QueueServers,
    cli: &QueueArgs,
    lanes: i64,
    processes: usize,
) -> anyhow::Result<Ran> {
    let (warm, measured) = size(BATCH, cli.full);
    let jobs = (warm + measured + measured / 2) as i64;
    fill::replace(&world.pool, lanes, jobs).await?;
    let drainer = Drainer::runner(processes);
    run(
        world,
        Run {
            drainer,
            batch: BATCH,
            warm,
            measured,
            parts: 1,
            patience: Duration::from_secs(120),
        },
    )
    .await
}
