//! The cost of messages that come one by one: for the inbox, sent by SQL.
//!
//! At full speed many messages share the statements of their plans and attempts. At some a second
//! each has its own.

use std::time::{Duration, Instant};

use crate::NotifyArgs;
use crate::report::{Report, median, quantile};
use crate::world::NotifyServers;

/// The messages per second of each case.
const PER_S: [u32; 2] = [5, 50];

/// The messages that are sent before the measurement.
const WARM: u32 = 20;

/// The time of one measurement.
const SPAN: Duration = Duration::from_secs(20);

const SEND: &str = "select id from flyball.notify('inapp',
    jsonb_build_object('channel', 'inapp', 'recipient', $1::text, 'body', $2::text))";

const ARRIVED: &str = "
select extract(epoch from m.created_at - j.created_at)::float8 * 1000
from flyball.inbox_message m join flyball.job j on j.id = m.job_id";

/// The figures of one round.
struct FewRound {
    /// CPU milliseconds for each message.
    postgres_ms: f64,
    worker_ms: f64,
    /// Milliseconds from the acceptance to the inbox, at p50 and p99.
    arrived_ms: (f64, f64),
}

pub async fn measure(cli: &NotifyArgs, report: Report) -> anyhow::Result<()> {
    let table = report.table(
        "messages for the inbox, one by one",
        &[
            "messages a second",
            "CPU ms of Postgres for each",
            "of the worker",
            "to the inbox ms, p50",
            "p99",
        ],
    );
    for per_s in PER_S {
        let mut rounds = Vec::new();
        for _ in 0..cli.rounds {
            rounds.push(round(per_s).await?);
        }
        let middle = |of: fn(&FewRound) -> f64| median(rounds.iter().map(of));
        table.row([
            per_s.to_string(),
            format!("{:.1}", middle(|round| round.postgres_ms)),
            format!("{:.1}", middle(|round| round.worker_ms)),
            format!("{:.1}", middle(|round| round.arrived_ms.0)),
            format!("{:.1}", middle(|round| round.arrived_ms.1)),
        ]);
    }
    Ok(())
}

async fn round(per_s: u32) -> anyhow::Result<FewRound> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let settings = "listen = \"127.0.0.1:0\"\nlog = \"warn\"\n";
    let mut worker = world.serve("api,runner,governor", settings, &[])?;
    let pool = &world.queue.pool;
    let every = Duration::from_secs(1) / per_s;
    for number in 0..WARM {
        send(&world, number).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    world.settled(Duration::from_secs(30)).await?;
    sqlx::query("delete from flyball.inbox_message")
        .execute(pool)
        .await?;

    let before = world.servers.spent(&[worker.pid()]);
    let (begun, mut sent) = (Instant::now(), 0);
    while begun.elapsed() < SPAN {
        send(&world, WARM + sent).await?;
        sent += 1;
        tokio::time::sleep((every * sent).saturating_sub(begun.elapsed())).await;
    }
    world.settled(Duration::from_secs(30)).await?;
    let cpu = world.servers.spent(&[worker.pid()]) - before;
    worker.check()?;

    let arrived: Vec<f64> = sqlx::query_scalar(ARRIVED).fetch_all(pool).await?;
    anyhow::ensure!(
        arrived.len() == sent as usize,
        "{} of {sent} messages came",
        arrived.len()
    );
    worker.stop().await?;
    let each_ms = |s: f64| s * 1000.0 / f64::from(sent);
    let at = |share: f64| quantile(arrived.iter().copied(), share);
    Ok(FewRound {
        postgres_ms: each_ms(cpu.postgres_s),
        worker_ms: each_ms(cpu.flyball_s),
        arrived_ms: (at(0.5), at(0.99)),
    })
}

async fn send(world: &NotifyServers, number: u32) -> anyhow::Result<()> {
    sqlx::query(SEND)
        .bind(format!("user-{number}"))
        .bind(format!("Message {number}"))
        .execute(&world.queue.pool)
        .await?;
    Ok(())
}
