//! The time from a publication to its receipt, alone and beside a tenant at ten times its limit.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use crate::client::{BenchClient, published_at};
use crate::report::{Report, count, median, quantile};
use crate::{GatewayArgs, GatewayProcess, SECRETS};

/// The goal for the time to the receipt at p99, in milliseconds.
const GOAL_MS: f64 = 20.0;

/// The channels over which the connections are spread.
const CHANNELS: usize = 100;

/// The time of one measurement, and the time between two publications.
const SPAN: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_millis(20);

/// The time before a measurement in which the other tenant reaches its limit.
const SETTLED: Duration = Duration::from_secs(3);

/// The messages per second of the tenant over its limit.
const FLOOD: usize = 2000;

/// The connections over which a tenant floods the gateway.
const FLOODING: usize = 20;

/// The ways of a tenant beyond its limit, and its readers, in each measurement beside it.
const BESIDE: [(FloodInterface, usize); 5] = [
    (FloodInterface::Clients, 1),
    (FloodInterface::Clients, 100),
    (FloodInterface::Clients, 1000),
    (FloodInterface::Sql, 1),
    (FloodInterface::Sql, 100),
];

/// The interface at which a tenant publishes beyond its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FloodInterface {
    /// Connections to the gateway.
    Clients,
    /// Transactions of 200 messages. They take 8 ms of a core each, and the servers have the same two
    /// cores as the gateway and its readers.
    Sql,
}

impl FloodInterface {
    fn words(self) -> &'static str {
        match self {
            Self::Clients => "by its clients",
            Self::Sql => "by SQL",
        }
    }
}

pub async fn measure(cli: &GatewayArgs, report: Report) -> anyhow::Result<()> {
    let gateway = GatewayProcess::start("ws_connections_per_tenant = 100000").await?;
    let (tell, mut receipts) = mpsc::unbounded_channel();
    let zeta = connections(&gateway.address, 1, cli.connections, CHANNELS, Some(tell)).await?;
    let table = report.table(
        "From the commit of a publication to its receipt",
        &[
            "connections",
            "beside",
            "p50 ms",
            "p99 ms",
            "receipts",
            "goal",
        ],
    );
    let mut alone = Vec::new();
    let mut beside: Vec<Vec<f64>> = vec![Vec::new(); BESIDE.len()];
    for _ in 0..cli.rounds {
        for place in 0..=BESIDE.len() {
            let other = place.checked_sub(1).map(|place| BESIDE[place]);
            let others = match other {
                Some((interface, readers)) => {
                    Some(Readers::start(&gateway.address, readers, interface).await?)
                }
                None => None,
            };
            let stop = Arc::new(AtomicBool::new(false));
            let flooding = async {
                if other.is_some_and(|(interface, _)| interface == FloodInterface::Sql) {
                    flood(&gateway, &stop).await;
                }
            };
            let publishing = async {
                // The burst with which the other begins is over.
                tokio::time::sleep(SETTLED).await;
                while receipts.try_recv().is_ok() {}
                let published = publish(&gateway).await;
                stop.store(true, Ordering::Relaxed);
                published
            };
            let (published, ()) = tokio::join!(publishing, flooding);
            published?;
            let mut delays = Vec::new();
            while let Ok(delay_ms) = receipts.try_recv() {
                delays.push(delay_ms);
            }
            let at = |share: f64| quantile(delays.iter().copied(), share);
            match place.checked_sub(1) {
                Some(place) => beside[place].push(at(0.99)),
                None => alone.push(at(0.99)),
            }
            table.row([
                count(cli.connections as f64),
                match other {
                    Some((interface, readers)) => {
                        format!(
                            "{FLOOD}/s of another {}, {readers} readers",
                            interface.words()
                        )
                    }
                    None => "nobody".to_owned(),
                },
                format!("{:.1}", at(0.5)),
                format!("{:.1}", at(0.99)),
                count(delays.len() as f64),
                format!("p99 at most {GOAL_MS}"),
            ]);
            drop(others);
            gateway.forget_publications().await?;
        }
    }
    let alone = median(alone);
    for ((interface, readers), p99s) in BESIDE.iter().zip(beside) {
        report.bullet(&format!(
            "p99 beside another that publishes {} to {readers} readers: {:.2} of alone, medians of {} (goal: at most 1.1)",
            interface.words(),
            median(p99s) / alone,
            cli.rounds
        ));
    }
    drop(zeta);
    Ok(())
}

/// Publishes to one channel after the other at an even pace.
async fn publish(gateway: &GatewayProcess) -> anyhow::Result<()> {
    let until = Instant::now() + SPAN;
    let mut channel = 0;
    while Instant::now() < until {
        gateway
            .publish("zeta", &format!("c{}", channel % CHANNELS), 1)
            .await?;
        channel += 1;
        tokio::time::sleep(EVERY).await;
    }
    // The last ones are on their way.
    tokio::time::sleep(Duration::from_secs(2)).await;
    Ok(())
}

/// The readers of the other tenant, in a process of their own that runs only where nothing else
/// wants to: they stand for other machines, whose work must not stand in the way of the readers that
/// are measured.
struct Readers {
    _process: Child,
}

impl Readers {
    /// Returns when all have subscribed. If the tenant floods the gateway by its clients, the same
    /// process does.
    async fn start(
        address: &str,
        readers: usize,
        interface: FloodInterface,
    ) -> anyhow::Result<Self> {
        // A process of the lowest niceness still finishes its slice before one that wakes up.
        let elsewhere: &[&str] = match cfg!(target_os = "linux") {
            true => &["chrt", "--idle", "0"],
            false => &["nice", "-n", "19"],
        };
        let mut process = Command::new(elsewhere[0])
            .args(&elsewhere[1..])
            .arg(std::env::current_exe()?)
            .args(["--read", address, "--readers", &readers.to_string()])
            .args((interface == FloodInterface::Clients).then_some("--flood"))
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = process.stdout.take().context("the readers' output")?;
        let ready = BufReader::new(output).lines().next_line().await?;
        ensure!(ready.is_some(), "the readers ended");
        Ok(Self { _process: process })
    }
}

/// Reads as `readers` connections of the other tenant until the process is killed, and publishes
/// beyond its limit if it is to flood the gateway.
pub async fn read(address: &str, readers: usize, is_flooding: bool) -> anyhow::Result<()> {
    let _reading = connections(address, 0, readers, 1, None).await?;
    println!("ready");
    if is_flooding {
        let per_second = FLOOD as f64 / FLOODING as f64;
        let flooding = (0..FLOODING).map(async |_| {
            let client = BenchClient::open(address, SECRETS[0].1, &[]).await?;
            client.flood("c0", per_second).await
        });
        try_join_all(flooding).await?;
    }
    std::future::pending().await
}

/// Opens connections, spread over channels; each tells its delays in milliseconds.
async fn connections(
    address: &str,
    tenant: usize,
    many: usize,
    channels: usize,
    tell: Option<mpsc::UnboundedSender<f64>>,
) -> anyhow::Result<Vec<tokio::task::AbortHandle>> {
    let opening = (0..many).map(|n| {
        let (address, channel) = (address.to_owned(), format!("c{}", n % channels));
        async move { BenchClient::open(&address, SECRETS[tenant].1, &[channel]).await }
    });
    let clients: Vec<BenchClient> = stream::iter(opening)
        .buffer_unordered(64)
        .try_collect()
        .await?;
    let reading = clients.into_iter().map(|mut client| {
        let tell = tell.clone();
        let task = tokio::spawn(async move {
            let Some(tell) = tell else {
                let _ = client.count(usize::MAX).await;
                return;
            };
            while let Ok(frame) = client.frame().await {
                if let Some(at) = published_at(&frame) {
                    let _ = tell.send((now_us() - at) as f64 / 1000.0);
                }
            }
        });
        task.abort_handle()
    });
    Ok(reading.collect())
}

/// Publishes far beyond the limit of a tenant until it is told to stop.
async fn flood(gateway: &GatewayProcess, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // A full queue is what the tenant gets.
        let _ = gateway.publish("acme", "c0", FLOOD / 10).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "publisher and receiver are on this machine, by the same clock"
)]
fn now_us() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_micros() as i64)
}
