//! The number of requests that a dead account still gets from many workers.

use std::time::{Duration, Instant};

use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault};

use crate::NotifyArgs;
use crate::report::{Report, count};
use crate::shed::until_it_flows;
use crate::world::{NotifyServers, Set, accounts};

const RPS: f64 = 20.0;
const FAILURES: u64 = 5;
const COOLDOWN_S: u64 = 10;

/// The most messages in flight per worker: together they are those in flight when the breaker
/// opens.
const AT_ONCE: usize = 8;

/// Measures the requests to a dead account.
pub async fn measure(cli: &NotifyArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let accounts = accounts(3);
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default()).await?;
    world
        .enqueue(0, (cli.dead_s as f64 * RPS * 4.0) as usize)
        .await?;
    let more = format!(
        "breaker_failures = {FAILURES}\nbreaker_window_s = 30\nbreaker_cooldown_s = {COOLDOWN_S}\n"
    );
    let set = Set {
        url: &fake.url(),
        accounts: &accounts,
        rps: RPS,
        more: &more,
        concurrency: AT_ONCE,
        connections: 2,
    };
    let mut workers = Vec::new();
    for _ in 0..cli.workers {
        workers.push(world.worker(&set)?);
    }
    until_it_flows(&fake, &mut workers[0]).await?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before = fake.totals(&accounts[0]).requests;
    fake.fail(&accounts[0], Fault::Status(503));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(cli.dead_s) {
        workers.iter_mut().try_for_each(|worker| worker.check())?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let requests = fake.totals(&accounts[0]).requests - before;
    let probes = cli.dead_s / COOLDOWN_S;
    let title = format!(
        "an account that answers 503 for {} s, a cooldown of {COOLDOWN_S} s",
        cli.dead_s
    );
    let table = report.table(
        &title,
        &[
            "workers",
            "requests to it",
            "threshold and a probe a cooldown",
            "without a breaker",
        ],
    );
    table.row([
        cli.workers.to_string(),
        count(requests as f64),
        format!("{FAILURES} + {probes} = {}", FAILURES + probes),
        count(cli.dead_s as f64 * RPS),
    ]);
    for worker in workers {
        worker.stop().await?;
    }
    fake.stop().await;
    Ok(())
}
