//! The process behind the API: readiness, shutdown, statements.

use std::time::Duration;

use flyball::api;
use flyball::jobs::postgres::READ_ONLY;
use flyball::jobs::{NewJob, Queue};
use reqwest::StatusCode;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::server::{SOON, spawn_api};
use crate::support::api_server::ApiServer;
use crate::support::fixture::Fixture;
use crate::support::{database, eventually};

#[tokio::test]
async fn the_process_is_ready_counts_its_jobs_and_ends_although_somebody_listens() {
    let mut api = spawn_api(Some("s3cret")).await;
    api.turn("default", &[("rps", "5")]).await;
    api.queue
        .enqueue(&vec![NewJob::new("mail", json!({"to": "a"})); 3])
        .await
        .unwrap();
    assert_eq!(
        api.body("/readyz").await["checks"],
        json!({"postgres": "ok", "redis": "ok"})
    );
    let metrics = eventually("the count of jobs in the metrics", SOON, || async {
        let text = api
            .client
            .get(format!("{}/metrics", api.base))
            .bearer_auth("s3cret")
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        text.contains("flyball_throttle_ready_jobs{throttle=\"default\"} 3.0")
            .then_some(text)
    })
    .await;
    assert!(
        metrics.contains("flyball_throttle_rps{throttle=\"default\"} 5.0")
            && metrics.contains("flyball_throttle_store_unavailable 0.0")
    );
    let stream = api
        .client
        .get(format!("{}/api/v1/stream", api.base))
        .bearer_auth("s3cret")
        .send()
        .await
        .unwrap();
    assert_eq!(stream.status(), StatusCode::OK);

    api.cancel.cancel();

    tokio::time::timeout(Duration::from_secs(5), &mut api.0.served)
        .await
        .expect("the server ends")
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn every_statement_of_the_api_can_be_prepared_on_the_migrated_schema() {
    use sqlx::{Executor as _, SqlSafeStr as _};
    let database = database().await;
    let mut connection = database.pool().acquire().await.unwrap();
    for (name, statement) in api::postgres::STATEMENTS {
        let prepared = connection
            .prepare(sqlx::AssertSqlSafe(statement.to_owned()).into_sql_str())
            .await;
        assert!(prepared.is_ok(), "{name}: {:?}", prepared.err());
    }
}

#[tokio::test]
async fn a_process_whose_postgres_accepts_no_writes_is_not_ready() {
    let fixture = Fixture::new().await;
    let url = url::Url::parse(fixture.database.url()).unwrap();
    let name = url.path().trim_start_matches('/');
    let set = format!("alter database {name} set default_transaction_read_only = on");
    sqlx::raw_sql(AssertSqlSafe(set))
        .execute(&fixture.database.superuser())
        .await
        .unwrap();
    let late = Queue::connect(fixture.database.url(), 2, SOON).await;
    let api = ApiServer::start(fixture, |deps| deps.queue = late.unwrap()).await;

    let answer = api.request(reqwest::Method::GET, "/readyz").send().await;

    let answer = answer.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    let told: Value = answer.json().await.unwrap();
    assert_eq!(
        (&told["code"], &told["detail"]),
        (&json!("not_ready"), &json!(READ_ONLY))
    );
}
