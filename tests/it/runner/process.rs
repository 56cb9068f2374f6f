//! Whole worker processes: several at once, and edits that reach them.

use std::time::{Duration, Instant};

use flyball::jobs::NewJob;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::support::eventually;
use crate::support::process::House;

pub const SOON: Duration = Duration::from_secs(60);

#[tokio::test]
async fn two_processes_share_the_work_and_never_run_one_job_twice() {
    let house = House::new("rps = -1").await;
    house.target.delay(Duration::from_millis(10));
    let _processes = [house.serve(), house.serve()];
    let jobs = house
        .enqueue_as(600, |n| NewJob {
            key: (n % 3).to_string(),
            ..house.call(&format!("job-{n}"))
        })
        .await;

    house.until_completed(&jobs, SOON).await;

    let counts = house.target.counts();
    assert_eq!(
        (
            counts.len(),
            counts.values().filter(|calls| **calls > 1).count()
        ),
        (600, 0)
    );
    let workers = house
        .count("select count(distinct worker_id) from flyball.attempt")
        .await;
    let least = house.count("select min(n) from (select count(*) as n from flyball.attempt group by worker_id) shares").await;
    println!("{workers} workers, the smaller share is {least} of 600");
    assert_eq!(workers, 2);
}

#[tokio::test]
async fn three_processes_start_at_once_on_an_empty_database() {
    let house = House::new("rps = -1").await;
    sqlx::raw_sql("drop schema flyball cascade")
        .execute(house.pool())
        .await
        .unwrap();

    let processes = [house.serve(), house.serve(), house.serve()];

    for process in &processes {
        process.works().await;
    }
    let jobs = house.enqueue("job", 30).await;
    house.until_completed(&jobs, SOON).await;
}

#[tokio::test]
async fn migrations_run_while_a_worker_works() {
    let house = House::new("rps = 100\nwindow = 0.1").await;
    let _process = house.serve();
    let jobs = house.enqueue("job", 300).await;
    house.target.called(20, SOON).await;

    for _ in 0..3 {
        let output = house.command().arg("migrate").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    assert!(
        house.target.calls().len() < 300,
        "it worked while the migrations ran"
    );
    house.until_completed(&jobs, SOON).await;
    assert!(house.target.counts().values().all(|calls| *calls == 1));
}

#[tokio::test]
async fn a_runner_and_an_api_are_processes_of_their_own() {
    let house = House::new("rps = -1").await;
    let _runner = house.serve_with(&["--roles", "runner"], &[]);
    let api = house.serve_with(&["--roles", "api"], &[]);
    let url = api.url().await;
    let client = reqwest::Client::new();

    let body = json!({"kind": "http", "args": {"url": format!("{}/job", house.target.url)}});
    let answer = client
        .post(format!("{url}/api/v1/jobs"))
        .json(&body)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 201);
    let id = answer.json::<Value>().await.unwrap()["id"]
        .as_i64()
        .unwrap();

    eventually("the job is completed", SOON, || async {
        let job: Value = client
            .get(format!("{url}/api/v1/jobs/{id}"))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        (job["state"] == "completed").then_some(())
    })
    .await;
    let workers: Value = client
        .get(format!("{url}/api/v1/workers"))
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(
        workers["workers"].as_array().unwrap().len(),
        1,
        "the API is no worker: {workers}"
    );
}

#[tokio::test]
async fn a_job_of_a_long_transaction_is_claimed_within_three_seconds_of_its_commit() {
    let house = House::new("rps = 20\nwindow = 0.1").await;
    let _process = house.serve();
    let mut producer = PgConnection::connect(&house.database_url).await.unwrap();
    let mut transaction = producer.begin().await.unwrap();
    let url = format!("{}/long", house.target.url);
    sqlx::query(
        "select flyball.enqueue('http', jsonb_build_object('url', $1::text), key => 'long')",
    )
    .bind(&url)
    .execute(&mut *transaction)
    .await
    .unwrap();
    // Later jobs of the same throttle pass it by meanwhile; then nothing happens for a while, so that everybody sleeps.
    let others = house.enqueue("other", 60).await;
    house.until_completed(&others, SOON).await;
    eventually("the dispatcher sleeps", SOON, || async {
        (house
            .count("select count(*) from flyball.wakeup where asleep")
            .await
            == 1)
            .then_some(())
    })
    .await;

    transaction.commit().await.unwrap();

    let committed = Instant::now();
    house.target.called(61, Duration::from_secs(3)).await;
    println!("claimed {:?} after the commit", committed.elapsed());
}

#[tokio::test]
async fn an_edit_with_redis_cli_acts_within_a_second() {
    let house = House::new("rps = 2\nburst = 1\nwindow = 0.3").await;
    let _process = house.serve();
    house.enqueue("job", 400).await;
    house.target.called(2, SOON).await;

    house.redis("HSET {}throttle:default:knobs rps 40").await;
    let turned = Instant::now();
    let before = house.target.calls().len();

    // A second to hear of it, then forty a second.
    house.target.called(before + 40, SOON).await;
    let took = turned.elapsed();
    println!("40 more calls {took:?} after the edit");
    assert!(
        took < Duration::from_millis(2500),
        "forty calls took {took:?}"
    );
}

#[tokio::test]
async fn a_rate_of_zero_stops_and_resuming_gives_no_burst() {
    let house = House::new("rps = 40\nburst = 1\nwindow = 1").await;
    let _process = house.serve_with(&[], &[("FLYBALL_CONCURRENCY", "64")]);
    house.enqueue("job", 1000).await;
    house.target.called(20, SOON).await;

    house.redis("HSET {}throttle:default:knobs rps 0").await;
    let stopped = Instant::now();
    // A second to hear of it, and long enough for a bucket to fill, if it did.
    let looked = stopped + Duration::from_millis(3000);
    tokio::time::sleep_until(looked.into()).await;
    let after_stop = house
        .target
        .between(stopped + Duration::from_secs(1), looked);
    house.redis("HSET {}throttle:default:knobs rps 40").await;
    let resumed = Instant::now();
    house
        .target
        .called(house.target.calls().len() + 40, SOON)
        .await;

    let first = house
        .target
        .calls()
        .iter()
        .find(|(_, at)| *at >= resumed)
        .unwrap()
        .1;
    let half = house
        .target
        .between(first, first + Duration::from_millis(500));
    println!(
        "{after_stop} calls while stopped; the first {:?} after the edit, {half} in its first half second",
        first - resumed
    );
    assert_eq!(after_stop, 0);
    assert!(first - resumed < Duration::from_secs(1));
    assert!(half <= 22, "{half} calls in half a second at 40 a second");
}
