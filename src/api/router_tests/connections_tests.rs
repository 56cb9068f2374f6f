//! The reports of open connections.

use super::*;
use crate::gateway::connection_counts::ConnectionCounts;
use crate::throttle::admission::connections_throttle_of;

const TENANTS: usize = 16;

#[tokio::test]
async fn a_tenant_whose_report_fails_delays_no_other() {
    let map_store = Arc::new(MapStore::default());
    let counts = ConnectionCounts::new(map_store.clone(), 1);
    let mut seats = Vec::new();
    for n in 0..TENANTS {
        let tenant = format!("tenant-{n}");
        let throttle = connections_throttle_of(&tenant).unwrap();
        let status = status_of(&throttle, 5.0, 1);
        map_store.throttles.lock().insert(throttle.clone(), status);
        let seat = counts.admit(&tenant).await.expect("a place");
        seats.push((throttle, seat));
    }
    // Whatever the order of the reports is, some that fail come before others.
    for (throttle, _) in seats.iter().step_by(2) {
        map_store.throttles.lock().remove(throttle);
    }
    let cancel = CancellationToken::new();
    let reports = tokio::spawn(counts.run(cancel.clone()));
    let reported = || map_store.holds.lock().len();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(reported(), TENANTS / 2);
    cancel.cancel();
    reports.await.unwrap();
}
