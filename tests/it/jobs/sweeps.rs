//! Sweeps: every lane with a ready job is found, whether lanes are short or long.

use std::collections::BTreeMap;

use flyball::jobs::NewJob;

use super::fixture::{http, queue};

fn job(key: &str, priority: i32) -> NewJob {
    NewJob {
        key: key.into(),
        priority,
        ..http()
    }
}

#[tokio::test]
async fn slices_find_short_and_long_lanes_with_their_priorities_and_first_jobs() {
    let (_database, queue) = queue().await;
    let short = (0..700).map(|n| job(&format!("short {n}"), n % 4));
    let long = (0..1600).map(|n| job(["long a", "long b"][n % 2], [1, 3][n / 800]));
    let jobs: Vec<NewJob> = short.chain(long).collect();
    let mut wanted: BTreeMap<String, (u8, i64)> = BTreeMap::new();
    for part in jobs.chunks(1000) {
        let made = queue.enqueue(part).await.unwrap();
        for (job, made) in part.iter().zip(made) {
            // The lowest priority number comes first, so the first job of a lane is its head.
            let lane = wanted.entry(job.key.clone()).or_insert((0, made.id));
            lane.0 |= 1 << job.priority;
        }
    }

    let mut found = BTreeMap::new();
    let mut next = Some(i64::MIN);
    let mut slices = 0;
    while let Some(from) = next {
        let slice = queue.sweep_lanes(from..=i64::MAX).await.unwrap();
        assert!(slice.lanes.len() <= 500);
        for lane in &slice.lanes {
            let seen = found.entry(lane.lane_id).or_insert((0, lane.head));
            seen.0 |= lane.priorities;
        }
        next = slice.next;
        slices += 1;
    }
    assert!(slices > 1);

    // The first time they get their names from their jobs, then from the directory.
    for _ in 0..2 {
        let named = queue.ready_lanes().await.unwrap();
        let named: BTreeMap<String, (u8, i64)> = named
            .into_iter()
            .map(|lane| (lane.key, found[&lane.lane_id]))
            .collect();
        assert_eq!(named, wanted);
    }
}
