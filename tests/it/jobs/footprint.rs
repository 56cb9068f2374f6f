//! Bytes of log that Postgres writes for a job, part by part, held against the page of scale.
//!
//! The log depends neither on the build nor on the load, so a debug build measures it. The
//! processor's time depends on both and is only printed:
//! `cargo test --workspace --test it -- jobs::footprint --nocapture`.

use std::time::Duration;

use flyball::jobs::postgres::{Ending, Finish, LaneClaim};
use flyball::jobs::{NewJob, Queue};
use serde_json::json;

use super::fixture::worker;
use crate::docs::{read, rows, section};
use crate::support::own_server;

/// Jobs of one measurement, and of one enqueue or claim.
const JOBS: usize = 20_000;
const BATCH: usize = 100;

/// The greatest difference between a measurement and the page, in parts of the page's figure.
const TOLERANCE: f64 = 0.2;

/// The bytes of log, and the microseconds of the server's process, for one job.
#[derive(Clone, Copy, Debug, Default)]
struct Footprint {
    log_bytes: f64,
    cpu_us: f64,
}

/// A position in the log, and the processor's time of one server process until then.
#[derive(Clone, Copy)]
struct Meter {
    log: i64,
    ticks: u64,
}

impl Meter {
    async fn read(queue: &Queue) -> Self {
        let sql =
            "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint, pg_backend_pid()";
        let (log, pid): (i64, i32) = sqlx::query_as(sql).fetch_one(&queue.pool).await.unwrap();
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .split_whitespace();
        let ticks = fields
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok());
        Self {
            log,
            ticks: ticks.sum(),
        }
    }

    /// Returns the footprint of `JOBS` jobs since then, at a hundred ticks a second.
    async fn since(self, queue: &Queue) -> Footprint {
        let now = Self::read(queue).await;
        Footprint {
            log_bytes: (now.log - self.log) as f64 / JOBS as f64,
            cpu_us: (now.ticks - self.ticks) as f64 * 10_000.0 / JOBS as f64,
        }
    }
}

/// Enqueues, claims and completes jobs in so many lanes, and returns the footprint of each part.
async fn measure(queue: &Queue, worker: i32, lanes: usize) -> [Footprint; 3] {
    let job = |n: usize| NewJob {
        key: (n % lanes).to_string(),
        ..NewJob::new("noop", json!({ "n": n }))
    };
    let jobs: Vec<NewJob> = (0..JOBS).map(job).collect();
    let begun = Meter::read(queue).await;
    for batch in jobs.chunks(BATCH) {
        queue.enqueue(batch).await.unwrap();
    }
    let enqueued = begun.since(queue).await;
    let mut ids = Vec::new();
    for n in 0..lanes {
        let sql = "select flyball.lane_of('default', $1)";
        let id: i64 = sqlx::query_scalar(sql)
            .bind(n.to_string())
            .fetch_one(&queue.pool)
            .await
            .unwrap();
        ids.push(id);
    }

    let begun = Meter::read(queue).await;
    let mut claimed = Vec::with_capacity(JOBS);
    let mut at = 0;
    while claimed.len() < JOBS {
        let asked = lanes.min(BATCH);
        let each = (BATCH / asked) as i32;
        let claims: Vec<LaneClaim> = (0..asked)
            .map(|n| LaneClaim::first(ids[(at + n) % lanes], each))
            .collect();
        at += asked;
        let fence = claimed.len() as i64 + 1;
        let got = queue.claim(worker, fence, &claims).await.unwrap();
        claimed.extend(got.iter().map(|one| (one.job.id, fence)));
    }
    let claims = begun.since(queue).await;

    let begun = Meter::read(queue).await;
    for batch in claimed.chunks(BATCH) {
        let ends: Vec<Finish> = batch
            .iter()
            .map(|(job_id, fence)| Finish {
                job_id: *job_id,
                fence: *fence,
                ending: Ending::Completed,
            })
            .collect();
        assert_eq!(queue.finish(&ends).await.unwrap().len(), ends.len());
    }
    [enqueued, claims, begun.since(queue).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_of_a_job_is_as_the_page_of_scale_says() {
    // A server of its own, because the log is that of a whole server.
    let server = own_server().await;
    let url = &server.urls.database_url;
    let patience = Duration::from_secs(20);
    let migrating = Queue::connect(url, 4, patience).await.unwrap();
    migrating.migrate().await.unwrap();
    // One connection, so that one process of the server does all the work.
    let queue = Queue::connect(url, 1, patience).await.unwrap();
    let worker = worker(&queue, Duration::from_secs(3600)).await;
    sqlx::query("select flyball.register_kind('noop')")
        .execute(&queue.pool)
        .await
        .unwrap();

    let page = read("docs/scale.md");
    let told = rows(section(&page, "### The log"));
    assert_eq!(told.len(), 3);
    let mut wrong = Vec::new();
    for (column, lanes) in [(1, 1), (2, 1000)] {
        let measured = measure(&queue, worker, lanes).await;
        for (row, part) in told.iter().zip(measured) {
            let Footprint { log_bytes, cpu_us } = part;
            println!(
                "{lanes} lanes: {}: {log_bytes:.0} B, {cpu_us:.1} µs",
                row[0]
            );
            let figure: f64 = row[column].trim_end_matches(" B").parse().unwrap();
            if (part.log_bytes / figure - 1.0).abs() > TOLERANCE {
                wrong.push(format!("{lanes} lanes: {row:?}: {part:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
