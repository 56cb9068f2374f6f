//! The process behind the API: readiness, shutdown, statements.

use std::time::Duration;

use flyball::api;
use flyball::jobs::NewJob;
use reqwest::StatusCode;
use serde_json::json;

use super::server::{SOON, spawn_api};
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
