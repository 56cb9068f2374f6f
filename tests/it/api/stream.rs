//! The live stream.

use std::time::Duration;

use reqwest::Response;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::server::{SOON, spawn_api};

#[tokio::test]
async fn an_edit_by_redis_cli_shows_in_the_stream_within_two_seconds_with_the_pace_that_follows() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "50")]).await;
    // Several, so that at least one is always waiting, however slow the machine.
    let takers = (0..4).map(|_| {
        let (client, url) = (
            api.client.clone(),
            format!("{}/api/v1/throttles/reindex/acquire", api.base),
        );
        tokio::spawn(async move {
            loop {
                let answer = client
                    .post(&url)
                    .json(&json!({"want": 100}))
                    .send()
                    .await
                    .unwrap()
                    .json::<Value>()
                    .await
                    .unwrap();
                let wait_s = answer["wait_s"].as_f64().unwrap();
                // Real time: the wait that the answer names.
                tokio::time::sleep(Duration::from_secs_f64(wait_s.clamp(0.005, 0.2))).await;
            }
        })
    });
    let takers: Vec<JoinHandle<()>> = takers.collect();
    let mut stream = api.get("/api/v1/stream").await;
    let paced = |low: f64, high: f64| {
        move |tick: &Value| {
            let one = &tick["throttles"]["reindex"];
            one["achieved_rps"]
                .as_f64()
                .is_some_and(|rps| rps > low && rps < high)
                && one["limiting_share"].as_f64() > Some(0.5)
        }
    };
    // On a busy machine a tick may deviate from a second by a few tenths.
    tick_where(&mut stream, paced(30.0, 70.0)).await;

    api.hset("reindex", "rps", "5").await;

    let tick = tick_where(&mut stream, |tick| {
        tick["throttles"]["reindex"]["rps"] == 5.0
    })
    .await;
    assert_eq!(tick["throttles"]["reindex"]["effective_rps"], 5.0);
    tick_where(&mut stream, paced(3.0, 7.0)).await;
    api.hset("reindex", "rps", "ten").await;
    tick_where(&mut stream, |tick| {
        tick["throttles"]["reindex"]["state"] == "safe_rps"
    })
    .await;
    let shown = api.body("/api/v1/throttles/reindex").await;
    assert!(
        shown["problems"][0]["message"]
            .as_str()
            .unwrap()
            .contains("ten"),
        "{shown}"
    );
    takers.iter().for_each(JoinHandle::abort);
}

/// Reads the stream until a tick satisfies the condition.
async fn tick_where(stream: &mut Response, wanted: impl Fn(&Value) -> bool) -> Value {
    let mut text = String::new();
    let found = async {
        loop {
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((event, rest)) = text
                .split_once("\n\n")
                .map(|(event, rest)| (event.to_owned(), rest.to_owned()))
            {
                text = rest;
                let data = event.lines().find_map(|line| line.strip_prefix("data: "));
                let is_tick = event.lines().any(|line| line == "event: tick");
                if let Some(tick) = data
                    .filter(|_| is_tick)
                    .map(|data| serde_json::from_str::<Value>(data).unwrap())
                    && wanted(&tick)
                {
                    return tick;
                }
            }
        }
    };
    tokio::time::timeout(SOON, found)
        .await
        .expect("the tick that was wanted")
}

#[tokio::test]
async fn a_listener_gets_the_failures_of_the_group_that_it_names_and_of_no_other_job() {
    let api = spawn_api(None).await;
    let group = api.post("/api/v1/groups", json!({})).await;
    let group = group.json::<Value>().await.unwrap()["id"].as_i64().unwrap();
    let member = api.enqueue(json!({"group": group})).await;
    let other = api.enqueue(json!({})).await;
    let mut stream = api.get(&format!("/api/v1/stream?group={group}")).await;
    let refused = api.get("/api/v1/stream?group=mine").await;
    assert_eq!(refused.status(), 400);
    let mut text = String::new();
    let seen = async {
        // The first read of the journals sets the mark, so failures are written until one arrives.
        while !text.contains("event: failure") {
            for job in [other, member] {
                let insert = "insert into flyball.failure (job_id, attempt, outcome, error) values ($1, 1, 'failed', 'boom')";
                let insert = sqlx::query(insert).bind(job);
                insert.execute(&api.queue.pool).await.unwrap();
            }
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    tokio::time::timeout(SOON, seen)
        .await
        .expect("a failure of the group");
    assert!(text.contains(&format!("\"job_id\":{member},")), "{text}");
    assert!(!text.contains(&format!("\"job_id\":{other},")), "{text}");
}

#[tokio::test]
async fn a_change_by_anybody_is_an_event_of_the_stream() {
    let api = spawn_api(None).await;
    api.turn("reindex", &[("rps", "5")]).await;
    let mut stream = api.get("/api/v1/stream").await;
    let insert = "insert into flyball.audit (actor, action, subject) values ('cli', 'throttle.set', 'reindex')";
    let mut text = String::new();
    let seen = async {
        // The first read of the journals sets the mark, so lines are written until one arrives.
        while !text.contains("event: audit") {
            sqlx::query(insert).execute(&api.queue.pool).await.unwrap();
            let chunk = stream.chunk().await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    };
    tokio::time::timeout(SOON, seen)
        .await
        .expect("an audit event");
    assert!(text.contains("\"actor\":\"cli\""), "{text}");
}
