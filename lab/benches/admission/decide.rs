//! Decisions over many tenants, one process with many questions in flight.
//!
//! A decision is the question that every entry point asks: is a slot of this tenant and this module
//! free? It is one call of Redis. The acceptance of a message has statements of Postgres around it,
//! which write the message, and the usage for the headers of the answer.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flyball::admission::{AcceptRequest, Acceptance, Admission, ExcessAnswer, ExcessMessage};
use flyball::throttle::admission::TenantLimits;

use crate::AdmissionArgs;
use crate::cpu::Cpu;
use crate::report::{Report, Table, count, median, quantile};
use crate::tenants::{admission, digests, message};
use crate::world::NotifyServers;

/// The goals for a decision.
const GOAL_PER_S: f64 = 15_000.0;
const GOAL_P99_MS: f64 = 2.0;

const MODULES: [&str; 2] = ["web", "mail"];

/// One measurement.
struct Run {
    done: usize,
    granted: usize,
    wall_s: f64,
    ms: Vec<f64>,
    cpu: Cpu,
}

/// The work of one measurement.
#[derive(Clone, Copy, PartialEq)]
enum Work {
    /// A slot is asked for.
    Take,
    /// A message is accepted, as over HTTP: repeats, slot, message, usage.
    Accept,
}

#[derive(Clone, Copy)]
struct Row {
    name: &'static str,
    has_goal: bool,
}

const ROWS: [Row; 4] = [
    Row {
        name: "decision, slots free: windows fill from empty to full",
        has_goal: true,
    },
    Row {
        name: "decision, no slot free",
        has_goal: true,
    },
    Row {
        name: "message accepted at once",
        has_goal: false,
    },
    Row {
        name: "message accepted that must wait",
        has_goal: false,
    },
];

pub async fn measure(cli: &AdmissionArgs, report: Report) -> anyhow::Result<()> {
    let columns = [
        "what",
        "a second",
        "of rounds",
        "p50 ms",
        "p99 ms",
        "Redis CPU µs each",
        "Postgres",
        "asker",
    ];
    let title = format!(
        "admission: {} tenants with {} modules, {} in flight in one process",
        count(cli.tenants as f64),
        MODULES.len(),
        cli.in_flight
    );
    let table = report.table(&title, &columns);
    let mut seen: [Vec<Run>; ROWS.len()] = Default::default();
    for _ in 0..cli.rounds.max(1) {
        for (runs, run) in seen.iter_mut().zip(round(cli).await?) {
            runs.push(run);
        }
    }
    for (row, runs) in ROWS.iter().zip(&seen) {
        print(&table, *row, runs);
    }
    Ok(())
}

async fn round(cli: &AdmissionArgs) -> anyhow::Result<[Run; ROWS.len()]> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let admission = admission(&world).await?;
    let limit = TenantLimits::default().per_tenant as usize;
    let span = Duration::from_secs_f64(cli.seconds);
    let far = usize::MAX / 2;

    // The throttles of the tenants are made by their first question.
    for tenant in ["d", "f"] {
        let first = cli.tenants * MODULES.len();
        run(
            cli,
            &world,
            &admission,
            (Work::Take, tenant),
            0..first,
            None,
        )
        .await?;
    }
    let fills = MODULES.len() * cli.tenants..limit * cli.tenants;
    let slots = fills.len();
    let free = run(cli, &world, &admission, (Work::Take, "d"), fills, None).await?;
    anyhow::ensure!(
        free.granted == slots || free.wall_s > 60.0,
        "{} of {slots} slots were granted",
        free.granted
    );
    let full = run(
        cli,
        &world,
        &admission,
        (Work::Take, "d"),
        0..far,
        Some(span),
    )
    .await?;
    anyhow::ensure!(
        full.granted == 0 || free.wall_s + full.wall_s > 60.0,
        "{} slots beyond the limit were granted",
        full.granted
    );
    // Half of the limit, because the pool's worker does not run and nothing is to wait yet.
    let some = MODULES.len() * cli.tenants..limit / 2 * cli.tenants;
    let accepts = run(
        cli,
        &world,
        &admission,
        (Work::Accept, "f"),
        some,
        Some(span),
    )
    .await?;
    fill(cli, &admission).await;
    let waits = run(
        cli,
        &world,
        &admission,
        (Work::Accept, "f"),
        10_000_000..far,
        Some(span),
    )
    .await?;
    Ok([free, full, accepts, waits])
}

/// Takes all slots of the tenants.
async fn fill(cli: &AdmissionArgs, admission: &Admission) {
    for n in 0..cli.tenants {
        for module in MODULES {
            admission.take(&format!("f{n:05}"), module, 1_000).await;
        }
    }
}

/// Does the work with each number in turn, until they or the time are over.
async fn run(
    cli: &AdmissionArgs,
    world: &NotifyServers,
    admission: &Admission,
    (work, prefix): (Work, &'static str),
    numbers: Range<usize>,
    span: Option<Duration>,
) -> anyhow::Result<Run> {
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let before = spent(world);
    let begun = Instant::now();
    let tasks: Vec<_> = (0..cli.in_flight)
        .map(|_| {
            let (next, admission, end) = (next.clone(), admission.clone(), numbers.end);
            let tenants = cli.tenants;
            tokio::spawn(async move {
                let (mut ms, mut granted) = (Vec::new(), 0);
                while span.is_none_or(|span| begun.elapsed() < span) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= end {
                        break;
                    }
                    let tenant = format!("{prefix}{:05}", n % tenants);
                    let module = MODULES[n / tenants % MODULES.len()];
                    let asked = Instant::now();
                    granted += match work {
                        Work::Take => admission.take(&tenant, module, 1).await.granted as usize,
                        Work::Accept => accept(&admission, &tenant, module, n).await?,
                    };
                    ms.push(asked.elapsed().as_secs_f64() * 1e3);
                }
                anyhow::Ok((ms, granted))
            })
        })
        .collect();
    let mut all = Vec::new();
    let mut granted = 0;
    for task in tasks {
        let (ms, some) = task.await??;
        all.extend(ms);
        granted += some;
    }
    Ok(Run {
        done: all.len(),
        granted,
        wall_s: begun.elapsed().as_secs_f64(),
        cpu: spent(world) - before,
        ms: all,
    })
}

/// Accepts a message as the route of messages does; returns 1 if it need not wait.
async fn accept(
    admission: &Admission,
    tenant: &str,
    module: &str,
    n: usize,
) -> anyhow::Result<usize> {
    let (job, digests) = (message(n), digests(n, true));
    if !admission.is_in_excess(tenant) {
        anyhow::ensure!(admission.find_request(&digests).await?.is_none());
    }
    let slots = admission.take(tenant, module, 1).await;
    let accepted = match slots.granted {
        0 => {
            let module = module.to_owned();
            let message = ExcessMessage {
                module,
                digests,
                job,
            };
            admission.accept_excess(tenant, message).await?
        }
        _ => {
            let request = AcceptRequest {
                tenant,
                module,
                owner: None,
                digests: &digests,
                admitted: true,
                job: &job,
            };
            let acceptance = admission.accept(&request).await?;
            ExcessAnswer {
                acceptance,
                waiting: None,
            }
        }
    };
    let Acceptance::Accepted { job_id, held, .. } = accepted.acceptance else {
        anyhow::bail!("a new message counted as a repeat: {accepted:?}");
    };
    let waiting = match accepted.waiting {
        None if held => admission.waiting(job_id).await?,
        waiting => waiting,
    };
    // The headers of the answer.
    if waiting.and_then(|waiting| waiting.usage).is_none() {
        admission.quota_usage(tenant, module, 0, Some(false)).await;
    }
    Ok(usize::from(!held))
}

fn spent(world: &NotifyServers) -> Cpu {
    world.servers.spent(&[std::process::id()])
}

fn print(table: &Table, row: Row, runs: &[Run]) {
    let rates: Vec<f64> = runs
        .iter()
        .map(|run| run.done as f64 / run.wall_s)
        .collect();
    let rate = median(rates.clone());
    let at = |place: f64| median(runs.iter().map(|run| quantile(run.ms.clone(), place)));
    let each = |of: fn(&Cpu) -> f64| {
        let us = runs.iter().map(|run| of(&run.cpu) * 1e6 / run.done as f64);
        format!("{:.0}", median(us))
    };
    let mut cells = [count(rate), format!("{:.2}", at(0.99))];
    if row.has_goal {
        let word = |met| if met { "met" } else { "missed" };
        cells = [
            format!(
                "{} (≥ {}: {})",
                count(rate),
                count(GOAL_PER_S),
                word(rate >= GOAL_PER_S)
            ),
            format!(
                "{:.2} (≤ {GOAL_P99_MS}: {})",
                at(0.99),
                word(at(0.99) <= GOAL_P99_MS)
            ),
        ];
    }
    let [per_s, p99] = cells;
    table.row([
        row.name.to_owned(),
        per_s,
        range(&rates),
        format!("{:.2}", at(0.5)),
        p99,
        each(|cpu| cpu.redis_s),
        each(|cpu| cpu.postgres_s),
        each(|cpu| cpu.flyball_s),
    ]);
}

/// Formats the least and the largest of rates.
pub fn range(rates: &[f64]) -> String {
    let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
    let most = rates.iter().copied().fold(0.0, f64::max);
    format!("{} to {}", count(least), count(most))
}
