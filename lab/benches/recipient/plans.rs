//! Messages taken through the gates: each claims its content, and some must wait for a cap.

use std::time::Instant;

use flyball::jobs::NewJob;
use serde_json::json;

use crate::RecipientArgs;
use crate::report::{Report, count, median};
use crate::watch::Watch;
use crate::world::{NotifyServers, POOL, recipient};

/// The goals: plans per second, and bytes of the log for each.
const GOAL: (f64, f64) = (20_000.0, 300.0);

/// The rules: one message a day, so that every second message of a recipient waits.
const RULES: &str =
    "[categories.news]\nvalid_for_s = 604800\ncaps.sms = { per_day = \"1 per 24h\" }\n";

struct PlanRound {
    per_s: f64,
    bytes: f64,
    postgres_s: f64,
}

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let columns = [
        "messages",
        "plans/s",
        "bytes of log each",
        "CPU s of Postgres for 1,000",
    ];
    let title = format!("{} messages through the gates", count(cli.messages as f64));
    let table = report.table(&title, &columns);
    for (name, each, category) in [
        ("go now, no cap", 1, "transactional"),
        ("go now, a cap", 1, "news"),
        ("two for each recipient: one goes, one waits", 2, "news"),
    ] {
        let mut rounds = Vec::new();
        for _ in 0..cli.rounds.max(1) {
            rounds.push(round(cli, each, category).await?);
        }
        let rate = median(rounds.iter().map(|round| round.per_s));
        let bytes = median(rounds.iter().map(|round| round.bytes));
        let word = |met| if met { "met" } else { "missed" };
        table.row([
            name.to_owned(),
            format!(
                "{} (≥ {}: {})",
                count(rate),
                count(GOAL.0),
                word(rate >= GOAL.0)
            ),
            format!("{bytes:.0} (≤ {}: {})", GOAL.1, word(bytes <= GOAL.1)),
            format!("{:.3}", median(rounds.iter().map(|round| round.postgres_s))),
        ]);
    }
    Ok(())
}

async fn round(cli: &RecipientArgs, each: usize, category: &str) -> anyhow::Result<PlanRound> {
    let dir = tempfile::tempdir()?;
    let mut world = NotifyServers::start(dir.path()).await?;
    let mut watch = Watch::begin(&mut world, cli.statements).await?;
    let jobs = (0..cli.messages).map(|n| {
        let args = json!({
            "channel": "sms", "to": recipient(n / each), "body": "News", "category": category, "dedup_key": n.to_string(),
        });
        NewJob::new("notification", args).throttle(POOL)
    });
    crate::enqueue(&world.queue, jobs.collect()).await?;
    let gates = crate::gates(&world.queue, RULES)?;
    if let Some(watch) = &mut watch {
        watch.again().await?;
    }
    let (bytes, spent) = (
        crate::log_bytes(&world.queue).await?,
        world.servers.spent(&[]),
    );
    let begun = Instant::now();
    let planners = (0..cli.side_by_side.max(1)).map(|_| {
        let gates = gates.clone();
        tokio::spawn(async move {
            while gates.plan_due().await? {}
            anyhow::Ok(())
        })
    });
    for planner in planners.collect::<Vec<_>>() {
        planner.await??;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let bytes = crate::log_bytes(&world.queue).await? - bytes;
    let spent = world.servers.spent(&[]) - spent;
    let left = "select count(*) from flyball.scheduled where turn < 0";
    let left: i64 = sqlx::query_scalar(left)
        .fetch_one(&world.queue.pool)
        .await?;
    anyhow::ensure!(left == 0, "{left} messages are not planned");
    let messages = cli.messages as f64;
    if let Some(watch) = watch {
        watch.print(messages).await?;
    }
    Ok(PlanRound {
        per_s: messages / seconds,
        bytes: bytes / messages,
        postgres_s: spent.postgres_s / messages * 1000.0,
    })
}
