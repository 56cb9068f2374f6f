//! The throughput of one worker, through accounts with limits that must hold in every second, and
//! without limits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flyball_fakes::{Fake, FakeOptions, FakeProvider, Latency, WindowQuota};

use crate::NotifyArgs;
use crate::cpu::{Cpu, resident_mib};
use crate::report::{Report, count, median};
use crate::windows::{PeakRate, seconds};
use crate::world::{NotifyServers, Set, accounts, now_s, recipient};

/// The multiple of a limit up to which it counts as kept.
const TOLERANCE: f64 = 1.01;

/// The goal, in messages per second.
const GOAL: f64 = 2_000.0;

/// The shares of the messages at which measuring begins and ends.
const STEADY: (f64, f64) = (0.1, 0.9);

const LONGEST: Duration = Duration::from_secs(600);

struct SendRound {
    per_second: Vec<f64>,
    most: PeakRate,
    refused: u64,
    /// The CPU-seconds of the servers and the worker for 1,000 messages.
    cpu: Cpu,
    /// The CPU-seconds of the fake for 1,000 messages.
    fake_s: f64,
    /// The time from claim to answer in milliseconds: median and 99th percentile.
    answered_ms: (f64, f64),
    peak_mib: f64,
    /// The longest time for which the fake was not scheduled, in milliseconds; it counts all
    /// requests of that time as one burst.
    stalled_ms: u64,
    broken: Vec<String>,
}

/// Runs the rounds and returns the violations.
pub async fn measure(
    cli: &NotifyArgs,
    report: Report,
    is_limited: bool,
) -> anyhow::Result<Vec<String>> {
    let title = match is_limited {
        true => format!(
            "{} messages through {} accounts of {} a second each",
            count(cli.messages as f64),
            cli.accounts,
            cli.rps
        ),
        false => format!(
            "{} messages through {} accounts whose limits are far away",
            count(cli.messages as f64),
            cli.accounts
        ),
    };
    let columns = [
        "round",
        "messages/s",
        "least/s",
        "most of an account in a second",
        "in any second",
        "429s",
        "worker CPU s",
        "Postgres",
        "Redis",
        "fake",
        "claim to answer ms, p50",
        "p99",
        "peak MiB",
        "fake stalled ms",
    ];
    let table = report.table(&title, &columns);
    let mut broken = Vec::new();
    let mut rounds = Vec::new();
    for n in 1..=cli.rounds {
        let round = round(cli, is_limited).await?;
        row(&table, &n.to_string(), &[&round], cli, is_limited);
        broken.extend(round.broken.iter().map(|what| format!("round {n}: {what}")));
        rounds.push(round);
    }
    row(
        &table,
        "median, worst",
        &rounds.iter().collect::<Vec<_>>(),
        cli,
        is_limited,
    );
    report.say("CPU: seconds for 1,000 messages, user and system.");
    Ok(broken)
}

fn row(
    table: &crate::report::Table,
    name: &str,
    rounds: &[&SendRound],
    cli: &NotifyArgs,
    is_limited: bool,
) {
    let middle = |of: fn(&SendRound) -> f64| median(rounds.iter().map(|round| of(round)));
    let worst =
        |of: fn(&SendRound) -> f64| rounds.iter().map(|round| of(round)).fold(0.0, f64::max);
    let kept = |most: f64| match is_limited {
        true => format!(
            "{most:.0} of {:.0} ({})",
            cli.rps,
            if most <= cli.rps * TOLERANCE {
                "kept"
            } else {
                "broken"
            }
        ),
        false => format!("{most:.0}"),
    };
    let rate = middle(|round| median(round.per_second.iter().copied()));
    let goal = if rate >= GOAL { "met" } else { "missed" };
    let rate = if is_limited {
        format!("{} (≥ {}: {goal})", count(rate), count(GOAL))
    } else {
        count(rate)
    };
    table.row([
        name.to_owned(),
        rate,
        count(middle(|round| {
            round
                .per_second
                .iter()
                .copied()
                .fold(f64::INFINITY, f64::min)
        })),
        kept(worst(|round| f64::from(round.most.fixed))),
        kept(worst(|round| f64::from(round.most.sliding))),
        count(worst(|round| round.refused as f64)),
        format!("{:.3}", middle(|round| round.cpu.flyball_s)),
        format!("{:.3}", middle(|round| round.cpu.postgres_s)),
        format!("{:.3}", middle(|round| round.cpu.redis_s)),
        format!("{:.3}", middle(|round| round.fake_s)),
        format!("{:.1}", middle(|round| round.answered_ms.0)),
        format!("{:.1}", middle(|round| round.answered_ms.1)),
        format!("{:.0}", worst(|round| round.peak_mib)),
        count(worst(|round| round.stalled_ms as f64)),
    ]);
}

async fn round(cli: &NotifyArgs, is_limited: bool) -> anyhow::Result<SendRound> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let accounts = accounts(cli.accounts);
    let latency = Duration::from_millis(cli.answer_ms);
    let latency = (!latency.is_zero()).then_some(Latency {
        base: latency,
        at_once: 10_000,
    });
    let fake = Fake::start(
        FakeProvider::Twilio,
        FakeOptions {
            latency,
            tells_delay: true,
            ..FakeOptions::default()
        },
    )
    .await?;
    if is_limited {
        accounts
            .iter()
            .for_each(|account| fake.set_quota(account, Some(WindowQuota::per_second(cli.rps))));
    }
    if let Some(seconds) = cli.key_burst {
        world.save_up(seconds).await?;
    }
    world.enqueue(0, cli.messages).await?;
    // Without a limit a pool bounds its concurrency; with a distant limit only the worker does.
    let rps = if is_limited { cli.rps } else { 100_000.0 };
    let set = Set {
        url: &fake.url(),
        accounts: &accounts,
        rps,
        more: "",
        concurrency: cli.concurrency,
        connections: cli.connections,
    };
    let mut worker = world.worker(&set)?;
    let stalled = Stalls::watch();
    let (from, to) = steady(cli, &fake, &world, &mut worker).await?;
    let stalled_ms = stalled.longest_ms();
    let sent = (to.accepted - from.accepted) as f64 / 1_000.0;
    let each = |s: f64| s / sent;
    let cpu = to.cpu - from.cpu;
    world.settled(LONGEST).await?;
    let (peak_mib, _) = resident_mib(worker.pid());
    let round = SendRound {
        per_second: seconds(&fake, &accounts, from.at_s + 1, to.at_s),
        most: PeakRate::of(&fake, &accounts),
        refused: fake.totals_of_all().refused,
        cpu: Cpu {
            postgres_s: each(cpu.postgres_s),
            flyball_s: each(cpu.flyball_s),
            redis_s: each(cpu.redis_s),
        },
        fake_s: each(to.fake_s - from.fake_s),
        answered_ms: answered_ms(&world).await?,
        peak_mib,
        stalled_ms,
        broken: broken(cli, &fake, &world, &accounts, is_limited).await?,
    };
    worker.stop().await?;
    fake.stop().await;
    Ok(round)
}

/// Measures the time for which this process is not scheduled, as happens on a busy machine.
struct Stalls {
    longest_ms: Arc<AtomicU64>,
    watching: tokio::task::JoinHandle<()>,
}

impl Stalls {
    fn watch() -> Self {
        let longest_ms = Arc::new(AtomicU64::new(0));
        let noted = longest_ms.clone();
        let watching = tokio::spawn(async move {
            let nap = Duration::from_millis(2);
            loop {
                let begun = Instant::now();
                tokio::time::sleep(nap).await;
                // Timers have a resolution of one millisecond.
                let late = begun
                    .elapsed()
                    .saturating_sub(nap + Duration::from_millis(1));
                noted.fetch_max(late.as_millis() as u64, Ordering::Relaxed);
            }
        });
        Self {
            longest_ms,
            watching,
        }
    }

    fn longest_ms(self) -> u64 {
        self.watching.abort();
        self.longest_ms.load(Ordering::Relaxed)
    }
}

/// The messages sent and the CPU time spent at one moment.
struct Moment {
    accepted: u64,
    at_s: u64,
    cpu: Cpu,
    fake_s: f64,
}

/// Waits until everything is sent and returns the first and the last moment of the steady part.
async fn steady(
    cli: &NotifyArgs,
    fake: &Fake,
    world: &NotifyServers,
    worker: &mut crate::world::WorkerProcess,
) -> anyhow::Result<(Moment, Moment)> {
    let begun = Instant::now();
    let mut first = None;
    let mut last = None;
    let all = cli.messages as f64;
    loop {
        worker.check()?;
        let accepted = fake.totals_of_all().accepted;
        let now = || Moment {
            accepted,
            at_s: now_s(),
            cpu: world.servers.spent(&[worker.pid()]),
            fake_s: world.servers.spent(&[std::process::id()]).flyball_s,
        };
        if first.is_none() && accepted as f64 >= STEADY.0 * all {
            first = Some(now());
        }
        if last.is_none() && accepted as f64 >= STEADY.1 * all {
            last = Some(now());
        }
        if accepted >= cli.messages as u64
            && let (Some(first), Some(last)) = (first.take(), last.take())
        {
            return Ok((first, last));
        }
        anyhow::ensure!(
            begun.elapsed() < LONGEST,
            "{accepted} of {} messages came",
            cli.messages
        );
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns the time from the claim of a message to the provider's answer in milliseconds: median
/// and 99th percentile.
async fn answered_ms(world: &NotifyServers) -> anyhow::Result<(f64, f64)> {
    let statement = "select percentile_cont(array[0.5, 0.99]) within group (order by
            extract(epoch from (d.attempts -> -1 ->> 'at')::timestamptz - a.started_at)::float8 * 1000
                + (d.attempts -> -1 ->> 'ms')::float8)
        from flyball.attempt a join flyball.delivery d using (job_id) where a.outcome = 'completed'";
    let quantiles: Vec<f64> = sqlx::query_scalar(statement)
        .fetch_one(&world.queue.pool)
        .await?;
    Ok((quantiles[0], quantiles[1]))
}

/// Returns the violations: messages that were lost or came twice, and limits that were exceeded.
async fn broken(
    cli: &NotifyArgs,
    fake: &Fake,
    world: &NotifyServers,
    accounts: &[String],
    is_limited: bool,
) -> anyhow::Result<Vec<String>> {
    let mut broken = Vec::new();
    let mut came: HashMap<String, u32> = HashMap::new();
    for message in accounts.iter().flat_map(|account| fake.received(account)) {
        *came.entry(message.to).or_default() += 1;
    }
    let lost = (0..cli.messages)
        .filter(|number| !came.contains_key(&recipient(*number)))
        .count();
    let doubled = came.values().filter(|times| **times > 1).count();
    if lost + doubled > 0 {
        broken.push(format!(
            "{lost} messages were lost, {doubled} came more than once"
        ));
    }
    let statement = "select count(*) from flyball.delivery where state = 'sent'";
    let recorded: i64 = sqlx::query_scalar(statement)
        .fetch_one(&world.queue.pool)
        .await?;
    if recorded != cli.messages as i64 {
        broken.push(format!(
            "{recorded} of {} messages are recorded as sent",
            cli.messages
        ));
    }
    let most = PeakRate::of(fake, accounts);
    if is_limited && f64::from(most.fixed.max(most.sliding)) > cli.rps * TOLERANCE {
        broken.push(format!(
            "an account of {} a second got {} in a second, {} in any",
            cli.rps, most.fixed, most.sliding
        ));
    }
    Ok(broken)
}
