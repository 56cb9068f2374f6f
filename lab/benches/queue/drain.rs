//! The speed at which the queue drains: the bare statements (the floor), and beside them the runner
//! with throttle, fence and history.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::child;
use crate::fill::{self, Group};
use crate::report::{Report, against, count, median, ratio};
use crate::run::{Drainer, Ran, Run, Stretch, run};
use crate::statements;
use crate::world::{FAR_ABOVE, QueueServers, THROTTLE};
use crate::{QueueArgs, Variant};

/// The least share of the floor's rate that the runner must reach.
const GOAL_OF_FLOOR: f64 = 0.7;

/// The least share of one lane's rate that many lanes must reach.
const GOAL_OF_LANES: f64 = 0.6;

/// The least share of the rate without a backlog that a deep backlog must reach.
const GOAL_OF_BACKLOG: f64 = 0.67;

/// The smallest batch for which the goals hold.
const GOAL_BATCH: usize = 100;

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    lanes: i64,
    backlog: i64,
    batch: usize,
}

/// A way to drain one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DrainMethod {
    Floor(usize),
    Runner(&'static str),
    Defaults,
}

/// Medians over the rounds of one way through one cell.
#[derive(Clone, Copy, Debug, Default)]
struct Medians {
    per_s: f64,
    per_postgres_s: f64,
    per_flyball_s: f64,
    per_both_s: f64,
    per_redis_s: f64,
    peak_mib: f64,
    log_per_job: f64,
}

impl Medians {
    fn of(rounds: &[Ran]) -> Self {
        let over =
            |figure: fn(&Stretch) -> f64| median(rounds.iter().map(|ran| figure(&ran.whole)));
        Self {
            per_s: over(Stretch::per_s),
            per_postgres_s: over(Stretch::per_postgres_s),
            per_flyball_s: over(Stretch::per_flyball_s),
            per_both_s: over(Stretch::per_both_s),
            per_redis_s: over(Stretch::per_redis_s),
            peak_mib: median(rounds.iter().map(|ran| ran.peak_mib)),
            log_per_job: over(Stretch::log_per_job),
        }
    }
}

/// Returns the number of jobs that warm up and of those that are measured.
pub fn size(batch: usize, full: bool) -> (u64, u64) {
    let measured = match batch {
        0..=1 => 2_000,
        2..=10 => 15_000,
        11..=100 => 40_000,
        _ => 60_000,
    };
    let measured = if full { measured * 4 } else { measured };
    (measured / 5, measured)
}

/// Measures every cell of the matrix.
pub async fn measure(world: &QueueServers, cli: &QueueArgs, report: Report) -> anyhow::Result<()> {
    let table = report.table(
        "draining: the bare claim and finish statements, and the runner through a throttle",
        &[
            "lanes, waiting behind, batch",
            "jobs/s",
            "per PG cpu-s",
            "per FB cpu-s",
            "per both",
            "per Redis cpu-s",
            "peak MiB",
            "log B a job",
            "of floor: wall",
            "cpu",
        ],
    );
    let mut seen: BTreeMap<(Cell, DrainMethod), Medians> = BTreeMap::new();
    let mut filled = None;
    for cell in cells(cli) {
        let plural = if cell.lanes == 1 { "lane" } else { "lanes" };
        let label = format!(
            "{} {plural}, {} waiting, {}",
            count(cell.lanes as f64),
            count(cell.backlog as f64),
            cell.batch
        );
        let measured = match measure_cell(world, cli, cell, &mut filled).await {
            Ok(measured) => measured,
            Err(error) => {
                table.failed(&label, &error);
                continue;
            }
        };
        let floor = best_floor(&measured);
        for (way, rounds) in &measured {
            let medians = Medians::of(rounds);
            let name = match way {
                DrainMethod::Floor(clients) => format!("{label}: floor x{clients}"),
                DrainMethod::Runner(rps) => format!(
                    "{label}: runner {}",
                    if *rps == "-1" { "free" } else { "finite" }
                ),
                DrainMethod::Defaults => format!("{label}: default settings"),
            };
            let (wall, cpu) = match (way, floor) {
                (DrainMethod::Runner(_) | DrainMethod::Defaults, Some(floor))
                    if cell.batch >= GOAL_BATCH =>
                {
                    (
                        against(medians.per_s / floor.per_s, GOAL_OF_FLOOR, true),
                        against(medians.per_both_s / floor.per_both_s, GOAL_OF_FLOOR, true),
                    )
                }
                (DrainMethod::Runner(_) | DrainMethod::Defaults, Some(floor)) => (
                    ratio(medians.per_s / floor.per_s),
                    ratio(medians.per_both_s / floor.per_both_s),
                ),
                _ => (String::new(), String::new()),
            };
            table.row([
                name,
                count(medians.per_s),
                count(medians.per_postgres_s),
                count(medians.per_flyball_s),
                count(medians.per_both_s),
                match way {
                    DrainMethod::Floor(_) => "-".into(),
                    _ => count(medians.per_redis_s),
                },
                count(medians.peak_mib),
                count(medians.log_per_job),
                wall,
                cpu,
            ]);
            seen.insert((cell, *way), medians);
        }
    }
    compare(report, &seen);
    Ok(())
}

/// Returns the cells of the matrix; the short form leaves out those that cost minutes and reveal
/// little.
fn cells(cli: &QueueArgs) -> Vec<Cell> {
    let lanes = cli.lanes.clone().unwrap_or_else(|| {
        if cli.full {
            vec![1, 10_000, 100_000]
        } else {
            vec![1, 10_000]
        }
    });
    let backlogs = cli.backlog.clone().unwrap_or_else(|| {
        if cli.full {
            vec![0, 5_000_000]
        } else {
            vec![0, 200_000]
        }
    });
    let batches = cli.batch.clone().unwrap_or_else(|| {
        if cli.full {
            vec![1, 10, 100, 500]
        } else {
            vec![1, 100, 500]
        }
    });
    let mut cells = Vec::new();
    for lanes in &lanes {
        for backlog in &backlogs {
            for batch in &batches {
                let for_orientation = !cli.full && cli.batch.is_none() && *batch == 1;
                if !for_orientation || (*lanes == 1 && *backlog == 0) {
                    cells.push(Cell {
                        lanes: *lanes,
                        backlog: *backlog,
                        batch: *batch,
                    });
                }
            }
        }
    }
    cells
}

/// Measures all ways through a cell in turns, so that a busy minute of the machine affects all
/// alike.
async fn measure_cell(
    world: &QueueServers,
    cli: &QueueArgs,
    cell: Cell,
    filled: &mut Option<(i64, i64)>,
) -> anyhow::Result<BTreeMap<DrainMethod, Vec<Ran>>> {
    let mut ways = Vec::new();
    if cli.variant.contains(&Variant::Floor) {
        ways.extend(
            cli.clients
                .iter()
                .map(|clients| DrainMethod::Floor(*clients)),
        );
    }
    if cli.variant.contains(&Variant::Free) {
        ways.push(DrainMethod::Runner("-1"));
    }
    if cli.variant.contains(&Variant::Finite) {
        ways.push(DrainMethod::Runner(FAR_ABOVE));
    }
    if cli.variant.contains(&Variant::Defaults) {
        ways.push(DrainMethod::Defaults);
    }
    let mut measured: BTreeMap<DrainMethod, Vec<Ran>> = BTreeMap::new();
    // A deep backlog is kept from one batch size to the next; the jobs taken from it are replaced
    // before each run.
    if *filled != Some((cell.lanes, cell.backlog)) {
        fill::clear(&world.pool).await?;
        *filled = Some((cell.lanes, cell.backlog));
        if cell.backlog > 0 {
            // The first run touches freshly written pages, which is not the usual state, so it does
            // not count.
            once(world, cli, cell, ways[0]).await?;
        }
    }
    for _ in 0..cli.rounds() {
        for way in &ways {
            if cell.backlog == 0 {
                fill::clear(&world.pool).await?;
            }
            let ran = once(world, cli, cell, *way).await?;
            measured.entry(*way).or_default().push(ran);
        }
    }
    Ok(measured)
}

async fn once(
    world: &QueueServers,
    cli: &QueueArgs,
    cell: Cell,
    way: DrainMethod,
) -> anyhow::Result<Ran> {
    let (warm, measured) = size(cell.batch, cli.full);
    // The first discovery of so many lanes belongs to the warm-up.
    let found = if cell.batch >= 100 {
        cell.lanes as u64
    } else {
        0
    };
    let (warm, measured) = (warm.max(found), measured.max(found));
    // The end of a drain, with its short claims, is not measured; and each lane has at least one
    // job.
    let total = (warm + measured + measured / 4 + 4 * cell.batch as u64) as i64;
    let wanted = total.max(cell.lanes * 5 / 4) + cell.backlog;
    let group = Group::of(cell.lanes);
    let missing = wanted - fill::waiting(&world.pool).await?;
    fill::add(&world.pool, group, missing.max(0)).await?;
    fill::settle(&world.pool).await?;
    let drainer = match way {
        DrainMethod::Floor(clients) => Drainer::Floor { clients, group: "" },
        DrainMethod::Runner(rps) => {
            world.knobs(THROTTLE, &[("rps", rps)]).await?;
            Drainer::runner(1)
        }
        DrainMethod::Defaults => {
            world.knobs(THROTTLE, &[("rps", "-1")]).await?;
            Drainer::runner(1)
        }
    };
    let patience = Duration::from_secs(if cli.full { 300 } else { 60 });
    if cli.statements {
        statements::reset(&world.pool).await?;
    }
    // Each client of the bare loop holds one batch; the runner claims whatever has room, which
    // comes close to its concurrency.
    let batch = match way {
        DrainMethod::Runner(_) => cell.batch * cli.in_flight,
        DrainMethod::Floor(_) => cell.batch,
        DrainMethod::Defaults => child::DEFAULTS,
    };
    let ran = run(
        world,
        Run {
            drainer,
            batch,
            warm,
            measured,
            parts: 1,
            patience,
        },
    )
    .await;
    if cli.verbose || cli.statements {
        match &ran {
            Ok(ran) => eprintln!(
                "{cell:?} {way:?} {:.0}/s {:.0}/cpu-s first {:.3} s",
                ran.whole.per_s(),
                ran.whole.per_both_s(),
                ran.first_s
            ),
            Err(error) => eprintln!("{cell:?} {way:?} {error:#}"),
        }
    }
    let ran = ran?;
    if cli.statements {
        // The statistics also cover the time before and after the measured stretch, so they are
        // divided by all jobs of the run.
        let ended: i64 = sqlx::query_scalar("select count(*) from flyball.attempt")
            .fetch_one(&world.pool)
            .await?;
        statements::print(&world.pool, ended as f64).await?;
    }
    Ok(ran)
}

/// Returns the medians of the fastest number of clients, which are the floor.
fn best_floor(measured: &BTreeMap<DrainMethod, Vec<Ran>>) -> Option<Medians> {
    let floors = measured
        .iter()
        .filter(|(way, _)| matches!(way, DrainMethod::Floor(_)));
    floors
        .map(|(_, rounds)| Medians::of(rounds))
        .max_by(|a, b| a.per_s.total_cmp(&b.per_s))
}

/// Compares many lanes with one, and deep backlogs with none.
fn compare(report: Report, seen: &BTreeMap<(Cell, DrainMethod), Medians>) {
    let table = report.table(
        "what many lanes and deep backlogs cost",
        &["of the same batch and way", "wall", "cpu of both"],
    );
    let line = |label: String, one: &Medians, base: &Medians, goal: f64, batch: usize| {
        let cell = |value: f64| {
            if batch >= GOAL_BATCH {
                against(value, goal, true)
            } else {
                ratio(value)
            }
        };
        table.row([
            label,
            cell(one.per_s / base.per_s),
            cell(one.per_both_s / base.per_both_s),
        ]);
    };
    for ((cell, way), medians) in seen.iter().filter(|((_, way), _)| {
        matches!(
            way,
            DrainMethod::Runner(_) | DrainMethod::Defaults | DrainMethod::Floor(2)
        )
    }) {
        let name = match way {
            DrainMethod::Floor(clients) => format!("floor x{clients}"),
            DrainMethod::Runner("-1") => "runner free".to_owned(),
            DrainMethod::Runner(_) => "runner finite".to_owned(),
            DrainMethod::Defaults => "default settings".to_owned(),
        };
        if cell.lanes > 1
            && let Some(base) = seen.get(&(Cell { lanes: 1, ..*cell }, *way))
        {
            let label = format!(
                "{} lanes / 1, {} waiting, {}: {name}",
                count(cell.lanes as f64),
                count(cell.backlog as f64),
                cell.batch
            );
            line(label, medians, base, GOAL_OF_LANES, cell.batch);
        }
        if cell.backlog > 0
            && let Some(base) = seen.get(&(
                Cell {
                    backlog: 0,
                    ..*cell
                },
                *way,
            ))
        {
            let label = format!(
                "{} waiting / none, {} lanes, {}: {name}",
                count(cell.backlog as f64),
                count(cell.lanes as f64),
                cell.batch
            );
            line(label, medians, base, GOAL_OF_BACKLOG, cell.batch);
        }
    }
}
