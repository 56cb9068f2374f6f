//! The effect of shedding: one account of ten is blocked while more messages wait than all can
//! send.
//!
//! With shedding the other accounts keep to their limits. Without it they take over its share, and
//! a provider that blocks accounts over their limit blocks one after the other.

use std::time::{Duration, Instant};

use flyball_fakes::{Fake, FakeOptions, FakeProvider, Fault, ThrottleScope, WindowQuota};

use crate::NotifyArgs;
use crate::report::{Report, count, median};
use crate::windows::seconds;
use crate::world::{NotifyServers, Set, WorkerProcess, accounts, now_s};

/// The provider's quota of each account, in messages per second.
const RPS: f64 = 150.0;

const ACCOUNTS: usize = 10;

/// The measured time before the account is blocked, after the warm-up, in seconds.
const BEFORE_S: u64 = 8;
const WARM_UP: Duration = Duration::from_secs(4);

/// The time for which the provider blocks an account.
const BLOCK: Duration = Duration::from_secs(600);

/// The multiple of a limit up to which it counts as kept.
const TOLERANCE: f64 = 1.01;

/// Measures with and without shedding and returns the violations.
pub async fn measure(cli: &NotifyArgs, report: Report) -> anyhow::Result<Vec<String>> {
    let title = format!(
        "one of {ACCOUNTS} accounts of {RPS} a second is blocked, watched for {} s",
        cli.shed_s
    );
    let columns = [
        "shedding",
        "messages/s before",
        "after",
        "after of before",
        "most of a healthy account in a second",
        "accounts left",
        "none left after s",
    ];
    let table = report.table(&title, &columns);
    let mut broken = Vec::new();
    for is_on in [true, false] {
        let seen = watch(cli, is_on).await?;
        let most = format!("{} of {RPS:.0}", seen.most);
        if is_on && f64::from(seen.most) > RPS * TOLERANCE {
            broken.push(format!(
                "with shedding a healthy account of {RPS} a second got {}",
                seen.most
            ));
        }
        table.row([
            if is_on { "on" } else { "off" }.to_owned(),
            count(seen.before),
            count(seen.after),
            format!("{:.3}", seen.after / seen.before),
            most,
            format!("{} of {ACCOUNTS}", seen.left),
            seen.none_after_s
                .map_or("-".to_owned(), |s| format!("{s:.1}")),
        ]);
    }
    Ok(broken)
}

struct ShedMeasurement {
    before: f64,
    after: f64,
    most: u32,
    left: usize,
    none_after_s: Option<f64>,
}

async fn watch(cli: &NotifyArgs, shedding: bool) -> anyhow::Result<ShedMeasurement> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let accounts = accounts(ACCOUNTS);
    let fake = Fake::start(
        FakeProvider::Twilio,
        FakeOptions {
            tells_delay: true,
            ..FakeOptions::default()
        },
    )
    .await?;
    accounts
        .iter()
        .for_each(|account| fake.set_quota(account, Some(WindowQuota::per_second(RPS))));
    let seconds_in_all = WARM_UP.as_secs() + BEFORE_S + cli.shed_s + 10;
    world
        .enqueue(0, (seconds_in_all as f64 * RPS * ACCOUNTS as f64) as usize)
        .await?;
    // Without headroom, so that a share taken over puts the others above their limits.
    let more = format!(
        "shedding = {shedding}\n{}",
        if shedding { "" } else { "headroom = 1.0\n" }
    );
    let set = Set {
        url: &fake.url(),
        accounts: &accounts,
        rps: RPS,
        more: &more,
        concurrency: cli.concurrency,
        connections: cli.connections,
    };
    let mut worker = world.worker(&set)?;
    until_it_flows(&fake, &mut worker).await?;
    tokio::time::sleep(WARM_UP).await;
    let from_s = now_s() + 1;
    tokio::time::sleep(Duration::from_secs(BEFORE_S + 2)).await;
    let before = median(seconds(&fake, &accounts, from_s, from_s + BEFORE_S));
    let blocked = || Fault::Throttle {
        whom: ThrottleScope::Account,
        delay: Some(BLOCK),
    };
    fake.fail(&accounts[0], blocked());
    let mut left: Vec<&String> = accounts[1..].iter().collect();
    let refused: Vec<u64> = accounts
        .iter()
        .map(|account| fake.totals(account).refused)
        .collect();
    let blocked_s = now_s();
    let begun = Instant::now();
    let until = begun + Duration::from_secs(cli.shed_s);
    let mut none_after_s = None;
    while Instant::now() < until {
        worker.check()?;
        // This provider blocks every account that goes over its limit.
        left.retain(|account| {
            let at = accounts
                .iter()
                .position(|other| other == *account)
                .unwrap_or_default();
            let goes_too_far = fake.totals(account).refused > refused[at] && !shedding;
            if goes_too_far {
                fake.fail(account, blocked());
            }
            !goes_too_far
        });
        if left.is_empty() && none_after_s.is_none() {
            none_after_s = Some(begun.elapsed().as_secs_f64());
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let after = median(seconds(&fake, &accounts, now_s() - 10, now_s()));
    let later = accounts[1..]
        .iter()
        .flat_map(|account| fake.per_second(account))
        .filter(|second| second.at_s >= blocked_s);
    let most = later
        .map(|second| second.accepted + second.refused)
        .max()
        .unwrap_or(0);
    let seen = ShedMeasurement {
        before,
        after,
        most,
        left: left.len(),
        none_after_s,
    };
    // Waiting messages are dropped with their database.
    worker.stop().await?;
    fake.stop().await;
    Ok(seen)
}

/// Waits for the first message.
pub async fn until_it_flows(fake: &Fake, worker: &mut WorkerProcess) -> anyhow::Result<()> {
    let until = Instant::now() + Duration::from_secs(60);
    while fake.totals_of_all().accepted == 0 {
        worker.check()?;
        anyhow::ensure!(Instant::now() < until, "no message came within a minute");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
