//! The effect of blocked lanes on others: the same drain with and without jobs of blocked lanes
//! before it.

use std::time::Duration;

use flyball::throttle::Name;
use futures_util::future::try_join_all;

use crate::QueueArgs;
use crate::drain::size;
use crate::fill::{self, Group};
use crate::report::{Report, against, count, median};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};

/// The least share of its rate that a drain must keep.
const GOAL: f64 = 0.9;

/// A throttle that lets one job pass in a hundred seconds.
const SLOW: &str = "slow";

const BATCH: usize = 100;

/// The blocked lanes before a drain.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    Nothing,
    PausedLane(i64),
    SlowLane(i64),
    PausedLanes(i64),
}

impl Blocked {
    fn name(self) -> String {
        match self {
            Self::Nothing => "nothing blocked".to_owned(),
            Self::PausedLane(jobs) => format!("{} jobs of one paused lane", count(jobs as f64)),
            Self::SlowLane(jobs) => format!("{} jobs of a lane at 0.01 rps", count(jobs as f64)),
            Self::PausedLanes(lanes) => format!("{} paused lanes", count(lanes as f64)),
        }
    }

    fn group(self) -> Option<(Group<'static>, i64)> {
        match self {
            Self::Nothing => None,
            Self::PausedLane(jobs) => Some((
                Group {
                    throttle: THROTTLE,
                    name: "paused-",
                    lanes: 1,
                },
                jobs,
            )),
            Self::SlowLane(jobs) => Some((
                Group {
                    throttle: SLOW,
                    name: "slow-",
                    lanes: 1,
                },
                jobs,
            )),
            Self::PausedLanes(lanes) => Some((
                Group {
                    throttle: THROTTLE,
                    name: "many-",
                    lanes,
                },
                lanes * 2,
            )),
        }
    }
}

/// Measures every kind of blocked lanes beside none, by the bare statements and by the runner.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let (jobs, lanes) = if cli.full {
        (1_000_000, 50_000)
    } else {
        (100_000, 5_000)
    };
    world.knobs(SLOW, &[("rps", "0.01")]).await?;
    world.knobs(THROTTLE, &[("rps", FAR_ABOVE)]).await?;
    pause(world, "paused-", 1).await?;
    pause(world, "many-", lanes).await?;
    let hindrances = [
        Blocked::Nothing,
        Blocked::PausedLane(jobs),
        Blocked::SlowLane(jobs),
        Blocked::PausedLanes(lanes),
    ];
    let table = report.table(
        "other lanes beside blocked ones: 100 free lanes, batch 100",
        &[
            "what stands before them",
            "jobs/s",
            "per PG cpu-s",
            "per both",
            "of unblocked: wall",
            "cpu",
        ],
    );
    for (drainer, drainer_name) in [
        (
            Drainer::Floor {
                clients: 2,
                group: "",
            },
            "floor x2",
        ),
        (Drainer::runner(1), "runner"),
    ] {
        let mut seen: [Vec<Ran>; 4] = Default::default();
        for _ in 0..cli.rounds() {
            for (blocked, seen) in hindrances.iter().zip(&mut seen) {
                seen.push(once(world, cli, *blocked, drainer).await?);
            }
        }
        for (blocked, rounds) in hindrances.iter().zip(&seen) {
            let over =
                |figure: fn(&Stretch) -> f64| median(rounds.iter().map(|ran| figure(&ran.whole)));
            // Each round is compared with the unblocked drain of the same minute.
            let of_unblocked = |figure: fn(&Stretch) -> f64| {
                let value = median(
                    rounds
                        .iter()
                        .zip(&seen[0])
                        .map(|(ran, free)| figure(&ran.whole) / figure(&free.whole)),
                );
                if matches!(blocked, Blocked::Nothing) {
                    String::new()
                } else {
                    against(value, GOAL, true)
                }
            };
            table.row([
                format!("{drainer_name}: {}", blocked.name()),
                count(over(Stretch::per_s)),
                count(over(Stretch::per_postgres_s)),
                count(over(Stretch::per_both_s)),
                of_unblocked(Stretch::per_s),
                of_unblocked(Stretch::per_both_s),
            ]);
        }
    }
    Ok(())
}

async fn once(
    world: &QueueServers,
    cli: &QueueArgs,
    blocked: Blocked,
    drainer: Drainer<'_>,
) -> anyhow::Result<Ran> {
    let (warm, mut measured) = size(BATCH, cli.full);
    if cli.full {
        // A worker that comes finds and names all lanes once. Of a long drain that is little.
        measured *= 5;
    }
    fill::clear(&world.pool).await?;
    // The blocked jobs are the older ones, so that a reader of the queue's head meets them first.
    if let Some((group, jobs)) = blocked.group() {
        fill::add(&world.pool, group, jobs).await?;
    }
    let free = Group::of(100);
    fill::add(&world.pool, free, (warm + measured + measured / 4) as i64).await?;
    fill::settle(&world.pool).await?;
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

/// Pauses every key of a group for longer than any run takes.
async fn pause(world: &QueueServers, name: &str, lanes: i64) -> anyhow::Result<()> {
    let throttle = Name::new(THROTTLE)?;
    for from in (0..lanes).step_by(100) {
        let keys: Vec<String> = (from..(from + 100).min(lanes))
            .map(|n| format!("{name}k{n}"))
            .collect();
        let hours = Duration::from_secs(24 * 3600);
        try_join_all(
            keys.iter()
                .map(|key| world.store.pause_key(&throttle, key, hours, "bench")),
        )
        .await?;
    }
    Ok(())
}
