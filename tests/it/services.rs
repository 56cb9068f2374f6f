//! `flyball services`: the supervisor of the private servers, run as a program.

use std::time::Duration;

use sqlx::Row;

use crate::support::{database, eventually, redis_prefix, stack};

#[tokio::test]
async fn each_test_has_a_database_and_a_prefix_of_its_own() {
    let (one, two) = (database().await, database().await);

    sqlx::raw_sql("create table mine (id int)").execute(one.pool()).await.unwrap();

    sqlx::raw_sql("create table mine (id int)").execute(two.pool()).await.unwrap();
    let row = sqlx::query("select current_database()").fetch_one(one.pool()).await.unwrap();
    assert!(one.url().contains(&row.get::<String, _>(0)));
    assert_ne!(redis_prefix(), redis_prefix());
}

#[tokio::test]
async fn a_target_file_is_scraped_while_prometheus_runs() {
    let stack = stack().await;
    let Some(targets) = &stack.targets_dir else { return };
    let own = stack.prometheus_url.trim_start_matches("http://");
    let file = format!(r#"[{{"targets": ["{own}"], "labels": {{"job": "itself"}}}}]"#);
    std::fs::write(targets.join("itself.json"), file).unwrap();
    let client = prometheus_http_query::Client::try_from(stack.prometheus_url.as_str()).unwrap();

    let up = eventually("a scrape of the new target", Duration::from_secs(30), || async {
        let answer = client.query(r#"up{job="itself"}"#).get().await.ok()?;
        Some(answer.data().as_vector()?.first()?.sample().value())
    })
    .await;

    assert_eq!(up, 1.0);
}
