//! Lists from a real streaming replica: they show what it has, say how old that is, and come from
//! the primary while the replica is away or lags too much.

use std::time::{Duration, Instant};

use flyball::jobs::{JobFilter, NewJob};
use flyball::postgres::{Access, Replica};
use reqwest::Client;
use serde_json::{Value, json};
use sqlx::Connection;

use crate::support::process::{Process, ProcessFixture};
use crate::support::proxy::{Proxy, Way};
use crate::support::replica::StreamingReplica;
use crate::support::{PROGRAM, eventually, redis_prefix, stack};

const SOON: Duration = Duration::from_secs(60);

/// A list of jobs as the API answers it.
struct Listed {
    ids: Vec<i64>,
    /// The lag in the header; `None` for an answer of the primary.
    lag_s: Option<f64>,
}

async fn fixture(replica: &StreamingReplica) -> ProcessFixture {
    let shared = stack().await;
    ProcessFixture::on(
        &replica.primary_url,
        &shared.redis_url,
        &shared.prometheus_url,
        &redis_prefix(),
        "rps = 0",
        None,
    )
    .await
}

fn serve(fixture: &ProcessFixture, replica: &StreamingReplica, lag_max_s: &str) -> Process {
    fixture.serve_with(
        &["--roles", "api"],
        &[
            ("DATABASE_READ_URL", &replica.url),
            ("FLYBALL_DATABASE_READ_LAG_MAX_S", lag_max_s),
        ],
    )
}

async fn list(url: &str) -> Listed {
    let answer = Client::new().get(format!("{url}/api/v1/jobs")).send();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), 200);
    let header = answer.headers().get("x-replica-lag-s").cloned();
    let body: Value = answer.json().await.unwrap();
    let jobs = body["jobs"].as_array().unwrap().iter();
    Listed {
        ids: jobs.map(|job| job["id"].as_i64().unwrap()).collect(),
        lag_s: header.map(|lag| lag.to_str().unwrap().parse().unwrap()),
    }
}

async fn text(url: &str, path: &str) -> String {
    let answer = Client::new().get(format!("{url}{path}")).send().await;
    answer.unwrap().text().await.unwrap()
}

async fn enqueue(url: &str) -> i64 {
    let body = json!({"kind": "http", "args": {"url": "http://127.0.0.1:9/"}});
    let request = Client::new().post(format!("{url}/api/v1/jobs")).json(&body);
    let answer: Value = request.send().await.unwrap().json().await.unwrap();
    answer["id"].as_i64().unwrap_or_else(|| panic!("{answer}"))
}

/// Returns standard output and error of a command that must succeed.
fn run(fixture: &ProcessFixture, replica: &StreamingReplica, args: &[&str]) -> (String, String) {
    let mut command = fixture.command_of(&PROGRAM);
    command.args(args).env("DATABASE_READ_URL", &replica.url);
    let done = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(done.stdout), text(done.stderr));
    assert!(done.status.success(), "{args:?}: {out}{err}");
    (out, err)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_the_replicas_with_their_lag_and_the_primarys_while_it_is_away() {
    let mut replica = StreamingReplica::start().await;
    let fixture = fixture(&replica).await;
    replica.catches_up().await;
    let process = serve(&fixture, &replica, "3600");
    let url = process.url().await;
    let first = enqueue(&url).await;
    replica.catches_up().await;
    let listed = list(&url).await;
    assert_eq!(listed.ids, [first]);
    assert!(listed.lag_s.is_some(), "it is the replica's");

    // The proof that lists are read there: they are old while it does not replay.
    replica.pause().await;
    let second = enqueue(&url).await;
    let listed = eventually("the lag is told", SOON, || async {
        let listed = list(&url).await;
        assert_eq!(listed.ids, [first]);
        listed.lag_s.filter(|lag_s| *lag_s > 1.0).map(|_| listed)
    })
    .await;
    assert!(listed.lag_s.is_some());
    // One job is never old, neither by its number nor after a wait for its end.
    for path in ["", "?wait_s=1"] {
        let shown = text(&url, &format!("/api/v1/jobs/{second}{path}")).await;
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["id"], second, "{shown}");
    }
    let ready: Value = serde_json::from_str(&text(&url, "/readyz").await).unwrap();
    assert_eq!(ready["checks"]["replica"], "ok", "{ready}");
    let metrics = text(&url, "/metrics").await;
    assert!(metrics.contains("\nflyball_replica_used 1"), "{metrics}");
    eventually("the metric of the lag", SOON, || async {
        let metrics = text(&url, "/metrics").await;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("flyball_replica_lag_seconds "))?;
        (line.parse::<f64>().unwrap() > 3.0).then_some(())
    })
    .await;
    let tick = eventually("a tick with the lag", SOON, || async {
        let mut stream = Client::new()
            .get(format!("{url}/api/v1/stream"))
            .send()
            .await
            .unwrap();
        let mut seen = String::new();
        while let Some(chunk) = stream.chunk().await.unwrap() {
            seen.push_str(&String::from_utf8_lossy(&chunk));
            if let Some((_, tick)) = seen.split_once("event: tick") {
                return tick.contains("\"replica\":{").then(|| tick.to_owned());
            }
        }
        None
    })
    .await;
    assert!(tick.contains("\"used\":true"), "{tick}");
    let (out, err) = run(&fixture, &replica, &["job", "list", "--json"]);
    assert!(!out.contains(&second.to_string()), "{out}");
    assert!(
        err.contains("read from the replica, which lags by"),
        "{err}"
    );
    let (out, _) = run(&fixture, &replica, &["job", "show", &second.to_string()]);
    assert!(out.contains(&second.to_string()), "{out}");
    let (out, _) = run(&fixture, &replica, &["status"]);
    assert!(
        out.contains("lists are read from the replica, which"),
        "{out}"
    );

    replica.stop();
    let listed = list(&url).await;
    assert_eq!((listed.ids, listed.lag_s), (vec![second, first], None));
    process
        .logged("lists are read from the primary and not", SOON)
        .await;
    for _ in 0..3 {
        assert_eq!(list(&url).await.lag_s, None);
    }
    let log = process.log();
    let told = log
        .matches("lists are read from the primary and not")
        .count();
    assert_eq!(told, 1, "{log}");
    let metrics = text(&url, "/metrics").await;
    assert!(metrics.contains("\nflyball_replica_used 0"), "{metrics}");
    let counted = metrics.contains("flyball_replica_reads_total{server=\"primary\"} 0");
    assert!(!counted, "{metrics}");
    let ready: Value = serde_json::from_str(&text(&url, "/readyz").await).unwrap();
    assert_eq!(
        (&ready["status"], &ready["checks"]["replica"]),
        (&json!("ready"), &json!("unused"))
    );
    let (out, err) = run(&fixture, &replica, &["job", "list", "--json"]);
    assert!(out.contains(&second.to_string()), "{out}");
    assert!(
        err.contains("is not used, because it cannot be reached"),
        "{err}"
    );

    replica.run().await;
    replica.catches_up().await;
    let listed = eventually("lists are the replica's again", SOON, || async {
        Some(list(&url).await).filter(|listed| listed.lag_s.is_some())
    })
    .await;
    assert_eq!(listed.ids, [second, first]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lags_too_much_is_left_alone_until_it_has_caught_up() {
    let replica = StreamingReplica::start().await;
    let fixture = fixture(&replica).await;
    replica.catches_up().await;
    let process = serve(&fixture, &replica, "2");
    let url = process.url().await;
    replica.pause().await;
    let job = enqueue(&url).await;

    let listed = eventually("lists are the primary's", SOON, || async {
        Some(list(&url).await).filter(|listed| listed.lag_s.is_none())
    })
    .await;
    assert_eq!(listed.ids, [job]);
    assert!(
        process.log().contains("its replay is paused"),
        "{}",
        process.log()
    );

    replica.resume().await;
    let listed = eventually("lists are the replica's again", SOON, || async {
        Some(list(&url).await).filter(|listed| listed.lag_s.is_some())
    })
    .await;
    assert_eq!(listed.ids, [job]);
    drop(process);

    // Nothing is written now, so the last transaction gets older, and nothing is missing.
    let access = Access::from(&replica.url);
    let looked_at = Replica::new(&access, 2, Duration::from_secs(2)).unwrap();
    replica.catches_up().await;
    eventually("an old transaction without a lag", SOON, || async {
        let state = looked_at.measure().await;
        let age = state.facts.last_replayed?;
        (age > Duration::from_millis(500) && state.lag == Some(Duration::ZERO)).then_some(())
    })
    .await;
    assert!(looked_at.usable().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_reads_on_the_primary_what_the_replica_fails_to_answer() {
    let replica = StreamingReplica::start().await;
    let fixture = fixture(&replica).await;
    replica.catches_up().await;
    let access = Access::from(&replica.url);
    let there = Replica::new(&access, 2, Duration::from_secs(3600)).unwrap();
    there.measure().await;
    let queue = fixture.queue.clone().with_replica(Some(there.clone()));
    let read = |queue: flyball::jobs::Queue| async move {
        let sql = "select pg_is_in_recovery()";
        let is_replica: bool = sqlx::query_scalar(sql).fetch_one(&queue.pool).await?;
        // A replica takes no writes.
        sqlx::query("create temporary table t ()")
            .execute(&queue.pool)
            .await?;
        Ok::<_, flyball::jobs::Error>(is_replica)
    };
    assert!(!queue.read_lagging(read).await.unwrap());
    assert_eq!((there.reads().replica, there.reads().primary), (0, 1));

    // Claims and changes have no way to the replica.
    let job = NewJob::new("http", json!({"url": "http://127.0.0.1:9/"}));
    let id = queue.enqueue(&[job]).await.unwrap()[0].id;
    assert!(queue.get(id).await.unwrap().is_some());
    assert_eq!(there.reads().replica, 0);

    // One that answers no more costs the first read some seconds, and the next ones nothing.
    let proxy = Proxy::start(&replica.url).await;
    let hung = Replica::new(&Access::from(&proxy.url), 2, Duration::from_secs(3600)).unwrap();
    hung.measure().await;
    let queue = queue.with_replica(Some(hung.clone()));
    let count =
        |queue: flyball::jobs::Queue| async move { queue.page(&JobFilter::default()).await };
    queue.read_lagging(count).await.unwrap();
    assert_eq!((hung.reads().replica, hung.reads().primary), (1, 0));
    proxy.way(Way::Hung);
    let begun = Instant::now();
    queue.read_lagging(count).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    queue.read_lagging(count).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(2),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!((hung.reads().replica, hung.reads().primary), (1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_knows_a_replica_from_other_servers() {
    let mut replica = StreamingReplica::start().await;
    let fixture = fixture(&replica).await;
    replica.catches_up().await;
    let doctor = |read_url: &str| -> (i32, Vec<(String, String)>) {
        let mut command = fixture.command_of(&PROGRAM);
        command
            .args(["doctor", "--json"])
            .env("DATABASE_READ_URL", read_url);
        let done = command.output().unwrap();
        let report: Value = serde_json::from_slice(&done.stdout).unwrap();
        let checks = report["checks"].as_array().unwrap().iter();
        let found = checks.filter(|one| one["check"] == "replica" || one["check"] == "settings");
        let word = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
        let found = found
            .map(|one| (word(one, "status"), word(one, "seen")))
            .collect();
        (done.status.code().unwrap(), found)
    };
    let has = |found: &[(String, String)], status: &str, words: &str| {
        let fits = |(is, seen): &(String, String)| is == status && seen.contains(words);
        assert!(found.iter().any(fits), "{status} {words:?}: {found:?}");
    };

    let (code, found) = doctor(&replica.url);
    has(&found, "ok", "it lags by 0.");
    assert_eq!(code, 0, "{found:?}");
    replica.pause().await;
    has(&doctor(&replica.url).1, "warn", "its replay is paused");
    replica.resume().await;

    has(&doctor(&replica.primary_url).1, "warn", "it is no replica");
    let (code, found) = doctor(&stack().await.database_url);
    has(&found, "fail", "it is no copy of the server");
    assert_eq!(code, 1);
    has(
        &doctor("postgres://127.0.0.1:1/x").1,
        "fail",
        "nothing answers where DATABASE_READ_URL",
    );
    has(
        &doctor("mysql://here/x").1,
        "fail",
        "must be a URL like postgres://user@replica",
    );

    // A migration that has not arrived there yet.
    replica.pause().await;
    let mut primary = sqlx::PgConnection::connect(&replica.primary_url)
        .await
        .unwrap();
    let later = "insert into flyball.migration (version, description, success, checksum, execution_time) values (9999, 'later', true, '', 0)";
    sqlx::raw_sql(later).execute(&mut primary).await.unwrap();
    has(&doctor(&replica.url).1, "fail", "its schema is older");
    replica.stop();
}
