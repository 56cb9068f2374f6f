//! Digests: items collected, and digests of three items closed.

use std::time::Instant;

use flyball::jobs::NewJob;
use serde_json::json;

use crate::RecipientArgs;
use crate::report::{Report, count, median};
use crate::watch::Watch;
use crate::world::{NotifyServers, POOL, recipient};

/// The goals: items in, and digests out, per second.
const GOAL: (f64, f64) = (30_000.0, 10_000.0);

/// The items of each digest.
const ITEMS: usize = 3;

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let columns = ["items", "collected/s", "digests closed/s"];
    let table = report.table("digests of three items", &columns);
    let mut rounds = Vec::new();
    for _ in 0..cli.rounds.max(1) {
        rounds.push(round(cli).await?);
    }
    let collected = median(rounds.iter().map(|round| round.0));
    let closed = median(rounds.iter().map(|round| round.1));
    let word = |met| if met { "met" } else { "missed" };
    table.row([
        count(cli.messages as f64),
        format!(
            "{} (≥ {}: {})",
            count(collected),
            count(GOAL.0),
            word(collected >= GOAL.0)
        ),
        format!(
            "{} (≥ {}: {})",
            count(closed),
            count(GOAL.1),
            word(closed >= GOAL.1)
        ),
    ]);
    Ok(())
}

async fn round(cli: &RecipientArgs) -> anyhow::Result<(f64, f64)> {
    let dir = tempfile::tempdir()?;
    let mut world = NotifyServers::start(dir.path()).await?;
    let mut watch = Watch::begin(&mut world, cli.statements).await?;
    let jobs = (0..cli.messages).map(|n| {
        let args = json!({
            "channel": "sms", "to": recipient(n / ITEMS), "template": "x", "data": {"text": "somebody commented on your post"},
            "category": "transactional", "template_id": "comment", "digest": "new-comment",
        });
        NewJob::new("notification", args).throttle(POOL)
    });
    crate::enqueue(&world.queue, jobs.collect()).await?;
    let gates = crate::gates(&world.queue, "")?;
    if let Some(watch) = &mut watch {
        watch.again().await?;
    }
    let begun = Instant::now();
    let loops = (0..cli.side_by_side.max(1)).map(|_| {
        let gates = gates.clone();
        tokio::spawn(async move {
            while gates.plan_due().await? {}
            anyhow::Ok(())
        })
    });
    for one in loops.collect::<Vec<_>>() {
        one.await??;
    }
    let collected = cli.messages as f64 / begun.elapsed().as_secs_f64();
    if let Some(watch) = &watch {
        watch.print(cli.messages as f64).await?;
    }
    sqlx::query("update flyball.digest set closes_at = now()")
        .execute(&world.queue.pool)
        .await?;
    let digests: i64 = sqlx::query_scalar("select count(*) from flyball.digest")
        .fetch_one(&world.queue.pool)
        .await?;
    if let Some(watch) = &mut watch {
        watch.again().await?;
    }
    let begun = Instant::now();
    let loops = (0..cli.side_by_side.max(1)).map(|_| {
        let gates = gates.clone();
        tokio::spawn(async move {
            while gates.close_due().await? {}
            anyhow::Ok(())
        })
    });
    for one in loops.collect::<Vec<_>>() {
        one.await??;
    }
    let closed = digests as f64 / begun.elapsed().as_secs_f64();
    if let Some(watch) = watch {
        watch.print(digests as f64).await?;
    }
    Ok((collected, closed))
}
