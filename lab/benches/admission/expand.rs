//! Batches of 500 recipients: accepted, and expanded by a worker process in the background.

use std::time::{Duration, Instant};

use flyball::admission::{BatchAcceptance, BatchRequest, Batches, RECIPIENTS_MAX};
use flyball::jobs::NewJob;

use crate::AdmissionArgs;
use crate::cpu::Cpu;
use crate::decide::range;
use crate::report::{Report, count, median};
use crate::tenants::{digests, message};
use crate::world::{NotifyServers, POOL};

/// The goal, in recipients per second.
const GOAL: f64 = 20_000.0;

/// The batches of a tenant, which fill its queue.
const PER_TENANT: usize = 20;

/// The shares of the batches at which measuring begins and ends.
const STEADY: (f64, f64) = (0.1, 0.9);

const LONGEST: Duration = Duration::from_secs(300);

/// The settings of the worker. Almost nothing is released, so that almost only batches are
/// measured.
const SETTINGS: &str = "
log = \"warn\"
tenant_messages_per_minute = 1
module_messages_per_minute = 1
";

struct ExpandRound {
    accepted_per_s: f64,
    per_s: f64,
    /// The CPU-seconds for 1,000 recipients.
    cpu: Cpu,
}

pub async fn measure(cli: &AdmissionArgs, report: Report) -> anyhow::Result<()> {
    let columns = [
        "batches",
        "accepted, recipients/s",
        "expanded, recipients/s",
        "of rounds",
        "CPU s for 1,000: worker",
        "Postgres",
    ];
    let title = format!(
        "{} batches of {RECIPIENTS_MAX} recipients",
        count(cli.batches as f64)
    );
    let table = report.table(&title, &columns);
    let mut rounds = Vec::new();
    for _ in 0..cli.rounds.max(1) {
        rounds.push(round(cli).await?);
    }
    let rates: Vec<f64> = rounds.iter().map(|round| round.per_s).collect();
    let rate = median(rates.clone());
    let word = if rate >= GOAL { "met" } else { "missed" };
    table.row([
        "one worker".to_owned(),
        count(median(rounds.iter().map(|round| round.accepted_per_s))),
        format!("{} (≥ {}: {word})", count(rate), count(GOAL)),
        range(&rates),
        format!(
            "{:.3}",
            median(rounds.iter().map(|round| round.cpu.flyball_s))
        ),
        format!(
            "{:.3}",
            median(rounds.iter().map(|round| round.cpu.postgres_s))
        ),
    ]);
    Ok(())
}

async fn round(cli: &AdmissionArgs) -> anyhow::Result<ExpandRound> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let batches = Batches::new(world.queue.clone());
    let begun = Instant::now();
    for n in 0..cli.batches {
        accept(&batches, n).await?;
    }
    let accepted_s = begun.elapsed().as_secs_f64();
    let recipients = (cli.batches * RECIPIENTS_MAX) as f64;
    let mut worker = world.serve("runner", SETTINGS, &[])?;
    let begun = Instant::now();
    let (mut first, mut last) = (None, None);
    while last.is_none() {
        worker.check()?;
        let expanded = expanded(&world).await?;
        let now = || {
            (
                expanded,
                Instant::now(),
                world.servers.spent(&[worker.pid()]),
            )
        };
        if first.is_none() && expanded >= STEADY.0 * recipients {
            first = Some(now());
        }
        if expanded >= STEADY.1 * recipients {
            last = Some(now());
        }
        anyhow::ensure!(
            begun.elapsed() < LONGEST,
            "{expanded} recipients were expanded"
        );
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let (Some(first), Some(last)) = (first, last) else {
        anyhow::bail!("nothing was measured");
    };
    let all = Instant::now();
    while expanded(&world).await? < recipients {
        anyhow::ensure!(all.elapsed() < LONGEST, "some recipients were not expanded");
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    complete(&world, cli).await?;
    worker.stop().await?;
    let done = last.0 - first.0;
    let cpu = last.2 - first.2;
    let each = |s: f64| s * 1_000.0 / done;
    Ok(ExpandRound {
        accepted_per_s: recipients / accepted_s,
        per_s: done / last.1.duration_since(first.1).as_secs_f64(),
        cpu: Cpu {
            postgres_s: each(cpu.postgres_s),
            flyball_s: each(cpu.flyball_s),
            redis_s: each(cpu.redis_s),
        },
    })
}

async fn accept(batches: &Batches, n: usize) -> anyhow::Result<()> {
    let first = n * RECIPIENTS_MAX;
    let jobs: Vec<NewJob> = (first..first + RECIPIENTS_MAX).map(message).collect();
    let request = BatchRequest {
        tenant: &format!("e{:05}", n / PER_TENANT),
        module: "web",
        digests: &digests(n, true),
        admitted: 0,
        jobs: &jobs,
    };
    let accepted = batches.accept(&request).await?;
    anyhow::ensure!(
        matches!(accepted, BatchAcceptance::Accepted { .. }),
        "a new batch counted as a repeat"
    );
    Ok(())
}

/// Returns the number of recipients that were expanded.
async fn expanded(world: &NotifyServers) -> anyhow::Result<f64> {
    let statement = "select coalesce(sum(recipients - jsonb_array_length(messages)), 0)::float8
        from flyball.batch";
    Ok(sqlx::query_scalar(statement)
        .fetch_one(&world.queue.pool)
        .await?)
}

/// Fails if a recipient has no message or several.
async fn complete(world: &NotifyServers, cli: &AdmissionArgs) -> anyhow::Result<()> {
    let statement = "select count(distinct args ->> 'to'), count(*) from flyball.job
        where kind = 'notification' and throttle = $1";
    let counts: (i64, i64) = sqlx::query_as(statement)
        .bind(POOL)
        .fetch_one(&world.queue.pool)
        .await?;
    let all = (cli.batches * RECIPIENTS_MAX) as i64;
    anyhow::ensure!(
        counts == (all, all),
        "{counts:?} messages of {all} recipients"
    );
    Ok(())
}
