//! A crowd that is held for one time, and critical messages beside its release.

use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use flyball_fakes::{Fake, FakeOptions, FakeProvider};
use serde_json::json;

use crate::RecipientArgs;
use crate::report::{Report, count};
use crate::world::{NotifyServers, POOL, Set, accounts, recipient};

/// The goal for the time from a critical message to its start, at p99, in milliseconds.
const GOAL_MS: f64 = 1000.0;

/// The critical messages, ten a second.
const CRITICAL: usize = 300;
const CRITICAL_EVERY: Duration = Duration::from_millis(100);

/// The rate of the pool, in messages per second.
const RPS: f64 = 1000.0;

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    let jobs = (0..cli.crowd).map(|n| {
        let args = json!({
            "channel": "sms", "to": recipient(n), "body": "Good morning", "category": "news", "priority": "low",
        });
        NewJob::new("notification", args).throttle(POOL)
    });
    crate::enqueue(&world.queue, jobs.collect()).await?;
    // What gates hold stands in `scheduled`, with the groups of its promotion.
    sqlx::query("update flyball.scheduled set turn = flyball.turn_of($1, 3::smallint, false), run_at = now() + interval '5 seconds'")
        .bind(POOL)
        .execute(&world.queue.pool)
        .await?;
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default()).await?;
    let mut worker = world.worker(&Set {
        url: &fake.url(),
        accounts: &accounts(1),
        rps: RPS,
        more: "",
        concurrency: 50,
        connections: 6,
    })?;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let begun = Instant::now();
    let mut ids = Vec::new();
    for n in 0..CRITICAL {
        worker.check()?;
        let args = json!({
            "channel": "sms", "to": recipient(n), "body": "Your code", "category": "security", "priority": "critical",
            "dedup_key": n.to_string(),
        });
        let job = NewJob {
            priority: 0,
            ..NewJob::new("notification", args).throttle(POOL)
        };
        ids.extend(world.queue.enqueue(&[job]).await?.iter().map(|one| one.id));
        let next = begun + CRITICAL_EVERY * (n as u32 + 1);
        tokio::time::sleep_until(next.into()).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut waits: Vec<f64> = sqlx::query_scalar(
        "select coalesce(extract(epoch from min(a.started_at) - j.created_at), 1e6)::float8 * 1000
         from unnest($1::bigint[]) as i(id) join flyball.job j on j.id = i.id left join flyball.attempt a on a.job_id = i.id
         group by j.id, j.created_at",
    )
    .bind(&ids)
    .fetch_all(&world.queue.pool)
    .await?;
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| {
        waits
            .get(((waits.len() as f64 - 1.0) * share) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    let released: i64 = sqlx::query_scalar("select count(*) from flyball.ready where priority = 3")
        .fetch_one(&world.queue.pool)
        .await?;
    let columns = [
        "held for one time",
        "released meanwhile",
        "critical to start, p50 ms",
        "p99 ms",
    ];
    let table = report.table("a critical message beside a crowd", &columns);
    let word = if at(0.99) <= GOAL_MS { "met" } else { "missed" };
    table.row([
        count(cli.crowd as f64),
        count(released as f64),
        format!("{:.0}", at(0.5)),
        format!("{:.0} (≤ {GOAL_MS:.0}: {word})", at(0.99)),
    ]);
    Ok(())
}
