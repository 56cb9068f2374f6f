//! The time from a publication to its receipt, alone and beside a tenant at ten times its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tokio::sync::mpsc;

use crate::client::{BenchClient, published_at};
use crate::report::{Report, count, quantile};
use crate::{GatewayArgs, GatewayProcess, SECRETS};

/// The goal for the time to the receipt at p99, in milliseconds.
const GOAL_MS: f64 = 20.0;

/// The channels over which the connections are spread.
const CHANNELS: usize = 100;

/// The time of one measurement, and the time between two publications.
const SPAN: Duration = Duration::from_secs(15);
const EVERY: Duration = Duration::from_millis(20);

/// The messages per second of the tenant over its limit, and its connections.
const FLOOD: usize = 2000;
const FLOODED: usize = 1000;

pub async fn measure(cli: &GatewayArgs, report: Report) -> anyhow::Result<()> {
    let gateway = GatewayProcess::start("ws_connections_per_tenant = 100000").await?;
    let (tell, mut receipts) = mpsc::unbounded_channel();
    let zeta = connections(&gateway, 1, cli.connections, CHANNELS, Some(tell.clone())).await?;
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
    let mut p99s = Vec::new();
    for is_beside in [false, true] {
        let floods = is_beside.then(|| flood(&gateway));
        let acme = match is_beside {
            true => connections(&gateway, 0, FLOODED, 1, None).await?,
            false => Vec::new(),
        };
        while receipts.try_recv().is_ok() {}
        let publishing = async {
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
            anyhow::Ok(())
        };
        match floods {
            Some(flooding) => {
                let stop = Arc::new(AtomicBool::new(false));
                let ends = async {
                    let published = publishing.await;
                    stop.store(true, Ordering::Relaxed);
                    published
                };
                let (published, flooded) = tokio::join!(ends, flooding(stop.clone()));
                published?;
                flooded?;
            }
            None => publishing.await?,
        }
        let mut delays = Vec::new();
        while let Ok(delay_ms) = receipts.try_recv() {
            delays.push(delay_ms);
        }
        let at = |share: f64| quantile(delays.iter().copied(), share);
        p99s.push(at(0.99));
        table.row([
            count(cli.connections as f64),
            if is_beside {
                format!("{FLOOD}/s of another, {FLOODED} readers")
            } else {
                "nobody".to_owned()
            },
            format!("{:.1}", at(0.5)),
            format!("{:.1}", at(0.99)),
            count(delays.len() as f64),
            format!("p99 at most {GOAL_MS}"),
        ]);
        drop(acme);
    }
    report.bullet(&format!(
        "p99 beside the other: {:.2} of alone (goal: at most 1.1)",
        p99s[1] / p99s[0]
    ));
    drop(zeta);
    Ok(())
}

/// Opens connections, spread over channels; each tells its delays in milliseconds.
async fn connections(
    gateway: &GatewayProcess,
    tenant: usize,
    many: usize,
    channels: usize,
    tell: Option<mpsc::UnboundedSender<f64>>,
) -> anyhow::Result<Vec<tokio::task::AbortHandle>> {
    let opening = (0..many).map(|n| {
        let (address, channel) = (gateway.address.clone(), format!("c{}", n % channels));
        async move { BenchClient::open(&address, SECRETS[tenant].1, &[channel]).await }
    });
    let clients: Vec<BenchClient> = stream::iter(opening)
        .buffer_unordered(64)
        .try_collect()
        .await?;
    let reading = clients.into_iter().map(|mut client| {
        let tell = tell.clone();
        let task = tokio::spawn(async move {
            while let Ok(frame) = client.frame().await {
                if let (Some(tell), Some(at)) = (&tell, published_at(&frame)) {
                    let _ = tell.send((now_us() - at) as f64 / 1000.0);
                }
            }
        });
        task.abort_handle()
    });
    Ok(reading.collect())
}

/// Publishes far beyond the limit of a tenant until it is told to stop.
fn flood(gateway: &GatewayProcess) -> impl AsyncFnOnce(Arc<AtomicBool>) -> anyhow::Result<()> {
    async move |stop: Arc<AtomicBool>| {
        while !stop.load(Ordering::Relaxed) {
            // A full queue is what the tenant gets.
            let _ = gateway.publish("acme", "c0", FLOOD / 10).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
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
