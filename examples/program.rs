//! A runner inside another program, with a schedule: `cargo run --example program`.

use flyball::Runner;
use flyball::cron::NewSchedule;
use flyball::jobs::{Context, HandlerError, NewJob};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

#[derive(serde::Deserialize)]
struct Report {
    of: String,
}

async fn report(report: Report, context: Context) -> Result<(), HandlerError> {
    println!(
        "the report of {}, attempt {}",
        report.of, context.job.attempt
    );
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let every_minute = NewSchedule::new(
        "reports",
        "* * * * *",
        NewJob::new("report", json!({"of": "the last minute"})),
    );
    let runner = Runner::builder()
        .database_url(std::env::var("DATABASE_URL")?)
        .redis_url(std::env::var("REDIS_URL")?)
        .kind("report", report)
        .throttle("default", [("rps", json!(10))])
        .cron(every_minute)
        .concurrency(16)
        .build()
        .await?;
    // Ctrl-C, and the signal by which systemd and containers stop a program.
    let mut terminate = signal(SignalKind::terminate())?;
    let stop = async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
    };
    runner.run_until(stop).await
}
