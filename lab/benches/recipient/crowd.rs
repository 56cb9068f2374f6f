//! A crowd that is due at one time, and critical messages by every interface beside its release.

use std::time::Duration;

use flyball::jobs::{NewJob, Queue};
use flyball_fakes::{Fake, FakeOptions, FakeProvider};
use reqwest::Client;
use serde_json::{Value, json};

use crate::RecipientArgs;
use crate::report::{Report, count, quantile};
use crate::world::{NotifyServers, POOL, WorkerProcess, recipient, unix_s};

/// The goal for the time from a critical message to its start, at p99, in milliseconds.
const GOAL_MS: f64 = 1000.0;

/// The critical messages of each interface, ten a second.
const CRITICAL: usize = 300;
const CRITICAL_EVERY: Duration = Duration::from_millis(100);

/// The time between the last sight of the crowd and its release.
const HELD_FOR: Duration = Duration::from_secs(5);

/// The time that the last critical messages have.
const PATIENCE: Duration = Duration::from_secs(10);

/// The rate of the pool, in messages per second.
const RPS: f64 = 1000.0;

/// The secret of the API's token, and its environment variable.
const TOKEN: (&str, &str) = (
    "FLYBALL_BENCH_ACME",
    "acme-secret-of-a-benchmark-0123456789abcdef",
);

/// The ways in which a message comes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SendInterface {
    Sql,
    Http,
    Rust,
}

const INTERFACES: [SendInterface; 3] =
    [SendInterface::Sql, SendInterface::Http, SendInterface::Rust];

impl SendInterface {
    fn name(self) -> &'static str {
        match self {
            Self::Sql => "SQL",
            Self::Http => "HTTP",
            Self::Rust => "Rust",
        }
    }
}

pub async fn measure(cli: &RecipientArgs, report: Report) -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = NotifyServers::start(dir.path()).await?;
    hold(cli.crowd, &world.queue).await?;
    let fake = Fake::start(FakeProvider::Twilio, FakeOptions::default()).await?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let variables = [TOKEN, ("BENCH_TOKEN", "token")];
    let mut worker = world.serve("api,runner", &settings(port, &fake.url()), &variables)?;
    let url = format!("http://127.0.0.1:{port}");
    ready(&url, &mut worker).await?;
    let due = "update flyball.scheduled set run_at = now() + make_interval(secs => $1)";
    sqlx::query(due)
        .bind(HELD_FOR.as_secs_f64())
        .execute(&world.queue.pool)
        .await?;
    tokio::time::sleep(HELD_FOR).await;
    let senders =
        INTERFACES.map(|interface| tokio::spawn(send(interface, world.queue.clone(), url.clone())));
    let mut all = Vec::new();
    for sender in senders {
        all.push(sender.await??);
    }
    worker.check()?;
    tokio::time::sleep(PATIENCE).await;
    let columns = [
        "critical messages",
        "released meanwhile",
        "to start, p50 ms",
        "p99 ms",
        "longest ms",
    ];
    let title = format!(
        "a critical message beside {} that are due at one time",
        count(cli.crowd as f64)
    );
    let table = report.table(&title, &columns);
    let released: i64 = sqlx::query_scalar(
        "select $1 - (select count(*) from flyball.scheduled s where s.priority = 3)",
    )
    .bind(i64::try_from(cli.crowd)?)
    .fetch_one(&world.queue.pool)
    .await?;
    for (interface, sent) in INTERFACES.iter().zip(all) {
        let waits = waits(&world.queue, &sent).await?;
        let at = |share: f64| quantile(waits.clone(), share);
        let word = if at(0.99) <= GOAL_MS { "met" } else { "missed" };
        table.row([
            format!("by {}", interface.name()),
            count(released as f64),
            format!("{:.0}", at(0.5)),
            format!("{:.0} (≤ {GOAL_MS:.0}: {word})", at(0.99)),
            format!("{:.0}", at(1.0)),
        ]);
    }
    report.bullet(&format!(
        "the provider got {} messages in {:.0} s",
        count(fake.received("AC001").len() as f64),
        (CRITICAL_EVERY * CRITICAL as u32 + PATIENCE).as_secs_f64()
    ));
    worker.stop().await?;
    fake.stop().await;
    Ok(())
}

/// Enqueues the crowd, in the state in which gates leave what they hold.
async fn hold(crowd: usize, queue: &Queue) -> anyhow::Result<()> {
    let numbers: Vec<usize> = (0..crowd).collect();
    for some in numbers.chunks(50_000) {
        let jobs = some.iter().map(|n| {
            let args = json!({
                "channel": "sms", "to": recipient(*n), "body": "Good morning", "category": "news", "priority": "low",
            });
            NewJob {
                priority: 3,
                ..NewJob::new("notification", args).throttle(POOL)
            }
        });
        crate::enqueue(queue, jobs.collect()).await?;
    }
    let held = "update flyball.scheduled set turn = flyball.turn_of($1, priority, false), run_at = now() + interval '1 hour'";
    sqlx::query(held).bind(POOL).execute(&queue.pool).await?;
    sqlx::query("vacuum analyze flyball.scheduled")
        .execute(&queue.pool)
        .await?;
    Ok(())
}

/// Sends critical messages by one interface, and returns each job with the time at which its
/// request began.
async fn send(
    interface: SendInterface,
    queue: Queue,
    url: String,
) -> anyhow::Result<Vec<(i64, f64)>> {
    let client = Client::new();
    let mut sent = Vec::new();
    let begun = tokio::time::Instant::now();
    for n in 0..CRITICAL {
        let place = n * INTERFACES.len() + interface as usize;
        let message = json!({
            "channel": "sms", "to": recipient(place), "body": "Your code", "category": "security", "priority": "critical",
            "dedup_key": place.to_string(),
        });
        let at = unix_s();
        let id = match interface {
            SendInterface::Sql => {
                sqlx::query_scalar("select (flyball.notify($1, $2)).id")
                    .bind(POOL)
                    .bind(message)
                    .fetch_one(&queue.pool)
                    .await?
            }
            SendInterface::Http => post(&client, &url, &message).await?,
            SendInterface::Rust => {
                let job = NewJob {
                    priority: 0,
                    ..NewJob::new("notification", message).throttle(POOL)
                };
                queue.enqueue(&[job]).await?.first().map_or(0, |one| one.id)
            }
        };
        sent.push((id, at));
        tokio::time::sleep_until(begun + CRITICAL_EVERY * (n as u32 + 1)).await;
    }
    Ok(sent)
}

async fn post(client: &Client, url: &str, message: &Value) -> anyhow::Result<i64> {
    let answer = client
        .post(format!("{url}/api/v1/notifications"))
        .bearer_auth(TOKEN.1)
        .json(message)
        .send()
        .await?;
    let status = answer.status();
    let body: Value = answer.json().await?;
    anyhow::ensure!(status.is_success(), "{status}: {body}");
    Ok(body["id"].as_i64().unwrap_or_default())
}

/// Returns the times from requests to the starts of their attempts, in milliseconds; a message that
/// has not begun counts as a thousand seconds.
async fn waits(queue: &Queue, sent: &[(i64, f64)]) -> anyhow::Result<Vec<f64>> {
    let (ids, begun): (Vec<i64>, Vec<f64>) = sent.iter().copied().unzip();
    Ok(sqlx::query_scalar(
        "select coalesce(extract(epoch from min(a.started_at)) - i.at, 1000)::float8 * 1000
         from unnest($1::bigint[], $2::float8[]) as i(id, at) left join flyball.attempt a on a.job_id = i.id
         group by i.id, i.at",
    )
    .bind(ids)
    .bind(begun)
    .fetch_all(&queue.pool)
    .await?)
}

async fn ready(url: &str, worker: &mut WorkerProcess) -> anyhow::Result<()> {
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    let client = Client::new();
    loop {
        worker.check()?;
        let answer = client.get(format!("{url}/readyz")).send().await;
        if answer.is_ok_and(|answer| answer.status().is_success()) {
            return Ok(());
        }
        let in_time = tokio::time::Instant::now() < until;
        anyhow::ensure!(in_time, "flyball serve did not get ready");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn settings(port: u16, provider: &str) -> String {
    format!(
        "listen = \"127.0.0.1:{port}\"\nlog = \"warn\"\nknobs_dir = \"\"\nconcurrency = 50\ndatabase_connections = 8
[api_tokens.acme]
tenant = \"acme\"
module = \"web\"
secret_env = \"{}\"
scopes = [\"notify:send\", \"notify:critical\"]
[pools.{POOL}]
provider = \"twilio\"
base_url = \"{provider}\"
rps = {RPS:?}
auth_token_env = \"BENCH_TOKEN\"
from = \"+15550100\"
[[pools.{POOL}.accounts]]
name = \"AC001\"
account_sid = \"AC001\"
",
        TOKEN.0
    )
}
