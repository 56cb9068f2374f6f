//! Deliveries per second of one channel with many readers.

use std::time::Instant;

use crate::client::BenchClient;
use crate::report::{Report, count, median};
use crate::{GatewayArgs, GatewayProcess, SECRETS};

/// The goal, in deliveries per second.
const GOAL: f64 = 100_000.0;

pub async fn measure(cli: &GatewayArgs, report: Report) -> anyhow::Result<()> {
    let settings = "ws_messages_per_second = 1000000\n[channels.\"*\"]\nhistory_max = 100000";
    let gateway = GatewayProcess::start(settings).await?;
    let mut clients = Vec::new();
    for _ in 0..cli.readers {
        let channels = ["all".to_owned()];
        clients.push(BenchClient::open(&gateway.address, SECRETS[0].1, &channels).await?);
    }
    let table = report.table(
        "Deliveries of one channel, 200 bytes each",
        &[
            "readers",
            "messages",
            "deliveries/s",
            "gateway CPU-s per million",
            "goal",
        ],
    );
    let mut rates = Vec::new();
    for _ in 0..cli.rounds {
        let (begun, cpu) = (Instant::now(), spent(&gateway));
        let messages = cli.messages;
        let reading = clients.into_iter().map(|mut client| {
            tokio::spawn(async move {
                client.count(messages).await?;
                anyhow::Ok(client)
            })
        });
        let reading: Vec<_> = reading.collect();
        for _ in 0..cli.messages / 500 {
            gateway.publish("acme", "all", 500).await?;
        }
        clients = Vec::new();
        for one in reading {
            clients.push(one.await??);
        }
        let deliveries = (cli.readers * cli.messages) as f64;
        rates.push(deliveries / begun.elapsed().as_secs_f64());
        let cpu_s = (spent(&gateway) - cpu) * 1e6 / deliveries;
        table.row([
            count(cli.readers as f64),
            count(cli.messages as f64),
            count(rates[rates.len() - 1]),
            format!("{cpu_s:.2}"),
            count(GOAL),
        ]);
    }
    report.bullet(&format!("median: {} deliveries/s", count(median(rates))));
    Ok(())
}

fn spent(gateway: &GatewayProcess) -> f64 {
    gateway
        .world
        .servers
        .spent(&[gateway.process.pid()])
        .flyball_s
}
