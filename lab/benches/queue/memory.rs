//! The memory of a worker process.

use std::time::Duration;

use crate::QueueArgs;
use crate::fill::{self, Group};
use crate::report::{Report, count, median};
use crate::run::{Drainer, Run, run};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

/// The goals in MiB, for a plain drain, and with many lanes and a deep backlog: 30 and 100 MB.
const GOALS_MIB: (f64, f64) = (28.6, 95.4);

/// Measures the memory in both cases.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    let table = report.table(
        "memory of a worker process",
        &[
            "lanes, waiting, concurrency",
            "peak MiB",
            "at the end MiB",
            "goal MiB",
            "first job after s",
            "jobs/s",
        ],
    );
    let deep = if cli.full { 5_000_000 } else { 200_000 };
    for (lanes, backlog, goal) in [(1, 0, GOALS_MIB.0), (100_000, deep, GOALS_MIB.1)] {
        for batch in [64, 500] {
            let (warm, measured) = (20_000, 60_000);
            let (mut peak, mut end, mut first, mut rate) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            fill::clear(&world.pool).await?;
            for _ in 0..cli.rounds() {
                let missing = backlog + 100_000 - fill::waiting(&world.pool).await?;
                fill::add(&world.pool, Group::of(lanes), missing.max(0)).await?;
                fill::settle(&world.pool).await?;
                let drainer = Drainer::runner(1);
                let ran = run(
                    world,
                    Run {
                        drainer,
                        batch,
                        warm,
                        measured,
                        parts: 1,
                        patience: Duration::from_secs(180),
                    },
                )
                .await?;
                peak.push(ran.peak_mib);
                end.push(ran.resident_mib);
                first.push(ran.first_s);
                rate.push(ran.whole.per_s());
            }
            let peak = median(peak);
            table.row([
                format!(
                    "{} lanes, {} waiting, {batch}",
                    count(lanes as f64),
                    count(backlog as f64)
                ),
                format!("{peak:.1}"),
                format!("{:.1}", median(end)),
                format!("≤ {goal}: {}", if peak <= goal { "met" } else { "missed" }),
                format!("{:.2}", median(first)),
                count(median(rate)),
            ]);
        }
    }
    Ok(())
}
