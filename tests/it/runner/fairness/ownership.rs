//! Ownership of lanes by workers.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::fixture::{FairnessFixture, SOON, config, until_begun};
use crate::support::eventually;

async fn owners(fixture: &FairnessFixture) -> BTreeMap<i32, i64> {
    let sql = "select worker_id, count(*) from flyball.shard where expires_at > clock_timestamp() and worker_id is not null group by 1";
    sqlx::query_as::<_, (i32, i64)>(sql)
        .fetch_all(&fixture.queue.pool)
        .await
        .unwrap()
        .into_iter()
        .collect()
}

#[tokio::test]
async fn workers_share_the_lanes_out_and_take_over_those_of_a_dead_one_within_fifteen_seconds() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    fixture.turn("t", &[("rps", "-1")]).await;
    let first = fixture.worker(config(8)).await;
    assert_eq!(
        owners(&fixture).await,
        [(first.id(), 64)].into(),
        "a worker alone looks after all lanes"
    );
    let second = fixture.worker(config(8)).await;
    let both: BTreeMap<i32, i64> = [(first.id(), 32), (second.id(), 32)].into();
    eventually("they share", SOON, || async {
        (owners(&fixture).await == both).then_some(())
    })
    .await;
    for key in 0..40 {
        fixture.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(200).await;

    // A third worker that disappears keeps its lanes only until its time to live ends.
    let gone = flyball::jobs::postgres::NewWorker {
        name: "gone".into(),
        host: "h".into(),
        pid: 1,
        ttl: Duration::from_secs(30),
        kinds: vec!["note".into()],
    };
    let gone = fixture.queue.register(&gone).await.unwrap();
    second.stop().await;
    fixture
        .queue
        .hold_shards(gone, Duration::from_secs(10))
        .await
        .unwrap();
    assert!(owners(&fixture).await.contains_key(&gone));
    let since = Instant::now();
    for key in 0..40 {
        fixture.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(400).await;
    let all: BTreeMap<i32, i64> = [(first.id(), 64)].into();
    eventually("the first looks after all again", SOON, || async {
        (owners(&fixture).await == all).then_some(())
    })
    .await;
    assert!(
        since.elapsed() < Duration::from_secs(15),
        "{:?}",
        since.elapsed()
    );

    first.stop().await;
    assert_eq!(notes.len(), 400, "each job ran once");
    assert!(
        owners(&fixture).await.is_empty(),
        "a worker that stops lets its part go at once"
    );
}

#[tokio::test]
async fn a_worker_whose_permits_are_all_in_use_lets_its_lanes_go_until_one_is_free() {
    let mut fixture = FairnessFixture::new().await;
    let notes = fixture.note();
    let (long, gate) = fixture.gated("long");
    fixture.turn("t", &[("rps", "-1")]).await;
    fixture.enqueue_as("long", "t", "", 1, 2).await;
    let first = fixture.worker(config(2)).await;
    until_begun(&long, 2).await;

    let second = fixture.worker(config(2)).await;

    let all: BTreeMap<i32, i64> = [(second.id(), 64)].into();
    eventually("the second looks after all", SOON, || async {
        (owners(&fixture).await == all).then_some(())
    })
    .await;
    for key in 0..40 {
        fixture.enqueue("t", &key.to_string(), 1, 5).await;
    }
    notes.reach(200).await;
    gate.send_replace(true);
    let both: BTreeMap<i32, i64> = [(first.id(), 32), (second.id(), 32)].into();
    eventually("they share again", SOON, || async {
        (owners(&fixture).await == both).then_some(())
    })
    .await;
    tokio::join!(first.stop(), second.stop());
}

#[tokio::test]
async fn the_last_worker_keeps_its_lanes_however_busy_it_is() {
    let mut fixture = FairnessFixture::new().await;
    let (long, gate) = fixture.gated("long");
    fixture.turn("t", &[("rps", "-1")]).await;
    fixture.enqueue_as("long", "t", "", 1, 2).await;
    let worker = fixture.worker(config(2)).await;
    until_begun(&long, 2).await;

    // Two seconds without a free permit are enough to release lanes. Those renewed after that are
    // kept.
    let sql = "select clock_timestamp() + interval '2 s'";
    let unable_at: jiff_sqlx::Timestamp = sqlx::query_scalar(sql)
        .fetch_one(&fixture.queue.pool)
        .await
        .unwrap();
    eventually("it renews its part", SOON, || async {
        let sql = "select bool_and(expires_at - interval '10 s' > $1) from flyball.shard";
        let is_renewed: bool = sqlx::query_scalar(sql)
            .bind(unable_at)
            .fetch_one(&fixture.queue.pool)
            .await
            .unwrap();
        is_renewed.then_some(())
    })
    .await;

    assert_eq!(owners(&fixture).await, [(worker.id(), 64)].into());
    gate.send_replace(true);
    worker.stop().await;
}
