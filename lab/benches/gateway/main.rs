//! The gateway, measured on private servers: `make bench-gateway`.
//!
//! The clients run in this process, on the same cores as the gateway: its own share of the CPU is in
//! the tables. Machines are shared and noisy; compare lines of one run.

mod client;
#[path = "../queue/cpu.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod cpu;
mod fan_out;
mod idle;
mod latency;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the benchmarks of the queue use all of it")]
mod support;
#[path = "../notify/world.rs"]
#[allow(dead_code, reason = "the benchmark of notifications uses all of it")]
mod world;

use std::time::Duration;

use clap::{Parser, ValueEnum};
use support::report::Report;
use support::{machine, report};
use world::{NotifyServers, WorkerProcess};

/// The tokens of the two tenants.
const SECRETS: [(&str, &str); 2] = [
    ("ACME_TOKEN", "0123456789-acme-token"),
    ("ZETA_TOKEN", "0123456789-zeta-token"),
];

/// Measures the gateway on private servers.
#[derive(Parser, Debug)]
struct GatewayArgs {
    /// Measure only these parts, separated by commas
    #[arg(long, value_delimiter = ',', value_enum)]
    part: Vec<GatewayPart>,
    /// Part idle: connections, each with five channels
    #[arg(long, default_value_t = 15_000)]
    idle: usize,
    /// Part latency: connections
    #[arg(long, default_value_t = 10_000)]
    connections: usize,
    /// Part fan-out: connections, all with the same channel
    #[arg(long, default_value_t = 200)]
    readers: usize,
    /// Part fan-out: messages of each round
    #[arg(long, default_value_t = 10_000)]
    messages: usize,
    /// Rounds
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only read as a tenant beside the one that is measured, from the gateway at this address
    #[arg(long, value_name = "ADDRESS")]
    read: Option<String>,
    /// With `--read`: publish as well, beyond the limit
    #[arg(long)]
    flood: bool,
    #[command(flatten)]
    report: Report,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum GatewayPart {
    /// The memory of an idle connection
    Idle,
    /// Deliveries per second of one channel
    FanOut,
    /// The time from a publication to its receipt, alone and beside a tenant at ten times its limit
    Latency,
}

/// A gateway process on private servers.
struct GatewayProcess {
    world: NotifyServers,
    process: WorkerProcess,
    /// The address of the API.
    address: String,
    _dir: tempfile::TempDir,
}

impl GatewayProcess {
    /// Starts a gateway with these settings besides its own.
    async fn start(settings: &str) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let world = NotifyServers::start(dir.path()).await?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port();
        let address = format!("127.0.0.1:{port}");
        let mut text = format!(
            "listen = \"{address}\"\nlog = \"warn\"\nhttp_connections = 1024\nws_handshakes_per_s = 20000\n{settings}\n"
        );
        for (variable, _) in SECRETS {
            let tenant = variable.trim_end_matches("_TOKEN").to_lowercase();
            text += &format!(
                "[api_tokens.{tenant}]\ntenant = \"{tenant}\"\nsecret_env = \"{variable}\"\nscopes = [\"channels:subscribe\", \"channels:publish\"]\n"
            );
        }
        let mut process = world.serve("api", &text, &SECRETS)?;
        let ready = format!("http://{address}/readyz");
        while !reqwest::get(&ready)
            .await
            .is_ok_and(|answer| answer.status().is_success())
        {
            process.check()?;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(Self {
            world,
            process,
            address,
            _dir: dir,
        })
    }

    /// Publishes `messages` to a channel of a tenant in one transaction; the data is the time in
    /// microseconds, and a text that fills it up to about 200 bytes.
    async fn publish(&self, tenant: &str, channel: &str, messages: usize) -> anyhow::Result<()> {
        let mut transaction = self.world.queue.pool.begin().await?;
        sqlx::query("select flyball.as_tenant($1)")
            .bind(tenant)
            .execute(&mut *transaction)
            .await?;
        sqlx::query(
            "select flyball.publish($1, jsonb_build_object('at', (extract(epoch from clock_timestamp()) * 1e6)::bigint, 'text', repeat('x', 120)))
             from generate_series(1, $2)",
        )
        .bind(channel)
        .bind(messages as i32)
        .execute(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok(())
    }

    /// Deletes what waits for the limits of tenants.
    async fn forget_publications(&self) -> anyhow::Result<()> {
        sqlx::query("delete from flyball.publication")
            .execute(&self.world.queue.pool)
            .await?;
        Ok(())
    }
}

fn main() -> anyhow::Result<()> {
    let cli = GatewayArgs::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let report = cli.report;
    if let Some(address) = &cli.read {
        return runtime.block_on(latency::read(address, cli.readers, cli.flood));
    }
    runtime.block_on(async {
        machine::describe(report);
        for part in GatewayPart::value_variants()
            .iter()
            .filter(|part| cli.part.is_empty() || cli.part.contains(part))
        {
            match part {
                GatewayPart::Idle => idle::measure(&cli, report).await?,
                GatewayPart::FanOut => fan_out::measure(&cli, report).await?,
                GatewayPart::Latency => latency::measure(&cli, report).await?,
            }
            machine::load(report);
        }
        Ok(())
    })
}
