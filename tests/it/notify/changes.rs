//! The reports of changes of accounts' breakers.

use std::collections::BTreeMap;
use std::time::Duration;

use flyball::jobs::Queue;
use flyball::notify::{Alarms, publish_changes};
use flyball::providers::PoolMetrics;
use flyball::providers::pool::{BreakerState, Change};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::support::database;

const SOON: Duration = Duration::from_secs(60);

/// The number of changes: too many to be reported by luck.
const MANY: i64 = 40;

#[tokio::test]
async fn changes_that_wait_when_the_process_ends_are_reported_before_it_does() {
    let database = database().await;
    let queue = Queue::connect(database.url(), 1, SOON).await.unwrap();
    let mut registry = Registry::default();
    let metrics = PoolMetrics::register(&mut registry);
    let (tell, changes) = mpsc::unbounded_channel();
    for at_ms in 0..MANY {
        let change = Change {
            account: "account_1".to_owned(),
            from: BreakerState::Closed,
            to: BreakerState::Open,
            why: "answered 503".to_owned(),
            at_ms,
            until_ms: 0,
        };
        tell.send(("sms".to_owned(), change)).unwrap();
    }
    let cancel = CancellationToken::new();
    cancel.cancel();

    // The channel stays open, as that of a process whose pools end later.
    publish_changes(
        BTreeMap::new(),
        Alarms::new(queue),
        metrics,
        changes,
        cancel,
    )
    .await;

    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let counted = text
        .lines()
        .find_map(|line| line.strip_prefix("flyball_account_breaker_changes_total{"));
    assert!(
        counted.is_some_and(|counted| counted.ends_with(&format!(" {MANY}"))),
        "{text}"
    );
    drop(tell);
}
