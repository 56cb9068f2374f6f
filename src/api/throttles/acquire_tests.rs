//! Tests of requests for tokens.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::throttle::{MemoryStore, Name};

#[test]
fn holders_of_two_tenants_never_share_a_name() {
    let holders = [
        (Some("a"), "b/x"),
        (Some("a/b"), "x"),
        (None, "a/b/x"),
        (None, "a|b/x"),
    ];
    let names: BTreeSet<String> = holders.map(|(tenant, id)| holder_id(tenant, id)).into();
    assert_eq!(names.len(), holders.len());
}

/// A throttle in memory, and its clock in microseconds.
fn throttle_of(fields: &[(&str, &str)]) -> (MemoryStore, Arc<AtomicI64>) {
    let now_us = Arc::new(AtomicI64::new(1_700_000_000_000_000));
    let clock = now_us.clone();
    let store = MemoryStore::new(Arc::new(move || clock.load(Ordering::Relaxed)));
    for (field, text) in fields {
        store.write_raw(&Name::new("mixed").unwrap(), field, text);
    }
    (store, now_us)
}

fn ask(key: &str, cost: f64) -> AcquireRequest {
    AcquireRequest {
        throttle: Name::new("mixed").unwrap(),
        lanes: vec![LaneRequest {
            key: key.to_owned(),
            cost,
            ..LaneRequest::default()
        }],
        holder: None,
    }
}

async fn taken(store: &MemoryStore, ask: &AcquireRequest, turns_lost: u32) -> u32 {
    let answer = take_turn(store, ask, turns_lost, &mut 0).await;
    answer.lanes[0].granted
}

#[tokio::test]
async fn a_request_that_has_lost_its_turns_begins_with_one_token_and_owes_the_rest() {
    let (store, now_us) = throttle_of(&[("rps", "20")]);
    let (one, many) = (ask("few", 1.0), ask("many", 8.0));
    for _ in 0..100 {
        taken(&store, &one, 0).await;
    }
    now_us.fetch_add(60_000, Ordering::Relaxed);
    assert_eq!(taken(&store, &many, TURNS_LOST - 1).await, 0);
    assert_eq!(taken(&store, &many, TURNS_LOST).await, 1);
    now_us.fetch_add(60_000, Ordering::Relaxed);
    assert_eq!(taken(&store, &one, 0).await, 0);
}

#[tokio::test]
async fn what_lost_its_turns_asks_for_one_token_at_once_until_something_else_refuses_it() {
    let (store, now_us) = throttle_of(&[("rps", "20")]);
    let (one, many) = (ask("few", 1.0), ask("many", 8.0));
    for _ in 0..100 {
        taken(&store, &one, 0).await;
    }
    let mut tries = 0;
    for left in [TRIES_WITH_ONE - 1, TRIES_WITH_ONE - 2] {
        let answer = take_turn(&store, &many, TURNS_LOST, &mut tries).await;
        assert_eq!((answer.lanes[0].granted, tries), (0, left));
    }
    store.write_raw(&Name::new("mixed").unwrap(), "key_rps", "0");
    now_us.fetch_add(60_000, Ordering::Relaxed);
    let answer = take_turn(&store, &many, TURNS_LOST, &mut tries).await;
    assert_eq!((answer.lanes[0].granted, tries), (0, 0));
}

#[tokio::test]
async fn windows_hold_for_a_request_that_has_lost_its_turns() {
    for windows in ["windows", "key_windows"] {
        let (store, _) = throttle_of(&[("rps", "-1"), (windows, "10/3600")]);
        let (one, many) = (ask("many", 1.0), ask("many", 8.0));
        for _ in 0..9 {
            assert_eq!(taken(&store, &one, 0).await, 1, "{windows}");
        }
        assert_eq!(taken(&store, &many, TURNS_LOST).await, 0, "{windows}");
        assert_eq!(taken(&store, &one, 0).await, 1, "{windows}");
    }
}
