//! The memory of idle connections with five channels each.

use futures_util::{StreamExt as _, stream};

use crate::client::BenchClient;
use crate::cpu::resident_mib;
use crate::report::{Report, count};
use crate::{GatewayArgs, GatewayProcess, SECRETS};

/// The goal, in KiB per connection.
const GOAL_KIB: f64 = 8.0;

pub async fn measure(cli: &GatewayArgs, report: Report) -> anyhow::Result<()> {
    let gateway = GatewayProcess::start("ws_connections_per_tenant = 100000").await?;
    let open = |n: usize| {
        let address = gateway.address.clone();
        async move {
            let channels: Vec<String> =
                (0..5).map(|m| format!("c{}", (n * 5 + m) % 2000)).collect();
            BenchClient::open(&address, SECRETS[0].1, &channels).await
        }
    };
    // The first connections pay for what is made once.
    let mut held: Vec<BenchClient> = Vec::new();
    for n in 0..100 {
        held.push(open(n).await?);
    }
    let (_, before) = resident_mib(gateway.process.pid());
    let begun = std::time::Instant::now();
    let mut opened = stream::iter((100..cli.idle).map(open)).buffer_unordered(64);
    while let Some(client) = opened.next().await {
        held.push(client?);
    }
    drop(opened);
    let took_s = begun.elapsed().as_secs_f64();
    let (_, after) = resident_mib(gateway.process.pid());
    let each_kib = (after - before) * 1024.0 / (cli.idle - 100) as f64;
    let table = report.table(
        "Idle connections with five channels",
        &["connections", "opened/s", "MiB", "KiB each", "goal"],
    );
    table.row([
        count(held.len() as f64),
        count((cli.idle - 100) as f64 / took_s),
        format!("{after:.0}"),
        format!("{each_kib:.1}"),
        format!("at most {GOAL_KIB}"),
    ]);
    Ok(())
}
