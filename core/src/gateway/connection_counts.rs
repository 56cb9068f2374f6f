//! The open connections of each tenant over all processes.
//!
//! Each process reports its own number to the throttle `ws-connections:<tenant>`, whose knob
//! `concurrency` is the limit, with every connection that it admits and every few seconds. A report
//! lapses, so the connections of a process that died are free again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex as Lock;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::service::{LoopOptions, periodic};
use crate::throttle::admission::connections_throttle_of;
use crate::throttle::{AcquireRequest, Error, Holder, LaneRequest, Store};

/// The validity of a report.
const REPORT_TTL: Duration = Duration::from_secs(15);

/// The time between two reports of everything.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The time within which a closed connection is reported.
const RELEASE_EVERY: Duration = Duration::from_millis(250);

/// The rounds of releases between two reports of everything.
const ROUNDS: u32 = (REPORT_EVERY.as_millis() / RELEASE_EVERY.as_millis()) as u32;

/// The time for which a store that does not answer is asked again, because each process alone would
/// admit as many connections as all together may have.
const ASK_FOR: Duration = Duration::from_secs(1);

/// The pause before a store is asked again.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// The time for which a store that did not answer counts as away.
const AWAY_FOR: Duration = Duration::from_secs(2);

/// The time after which a round in which reports fail leaves the rest to the next one.
const FAILING_FOR: Duration = Duration::from_secs(1);

/// The connections of this process by tenant. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionCounts {
    store: Arc<dyn Store>,
    holder: Arc<str>,
    /// The limit while the store is away, of this process alone.
    fallback_max: u32,
    /// The time until which the store counts as away.
    away_until: Arc<Lock<Option<Instant>>>,
    tenants: Arc<Lock<HashMap<Arc<str>, Arc<TenantCount>>>>,
}

struct TenantCount {
    tenant: Arc<str>,
    /// The open connections. Held while the store is asked, because a report beside an ask would
    /// miss its grant.
    open: Mutex<u32>,
    /// Connections that closed and are not counted in `open` yet.
    closed: Lock<u32>,
    is_changed: AtomicBool,
    /// True if the last report failed.
    has_failed: AtomicBool,
}

/// An admitted connection; it is given back when dropped.
pub struct ConnectionSeat(Arc<TenantCount>);

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        *self.0.closed.lock() += 1;
        self.0.is_changed.store(true, Ordering::Release);
    }
}

impl TenantCount {
    /// Takes the closed connections off, and returns the number of those that are open.
    fn settled(&self, open: &mut u32) -> u32 {
        *open = open.saturating_sub(std::mem::take(&mut *self.closed.lock()));
        *open
    }
}

impl ConnectionCounts {
    /// Creates the counts of a process; `fallback_max` holds while the store is away.
    pub fn new(store: Arc<dyn Store>, fallback_max: u32) -> Self {
        Self {
            store,
            holder: format!("gateway-{:016x}", rand::random::<u64>()).into(),
            fallback_max,
            away_until: Arc::default(),
            tenants: Arc::default(),
        }
    }

    /// Returns the name of this process in reports.
    pub fn process(&self) -> &str {
        &self.holder
    }

    /// Admits one more connection of a tenant, by the name that it has in throttles; `None` if it has
    /// as many as it may have.
    pub async fn admit(&self, tenant: &str) -> Option<ConnectionSeat> {
        let count = self.count_of(tenant);
        let mut open = count.open.lock().await;
        let held = count.settled(&mut open);
        let granted = match connections_throttle_of(&count.tenant) {
            None => held < self.fallback_max,
            Some(throttle) => {
                let lane = LaneRequest {
                    held,
                    ..LaneRequest::default()
                };
                let ask = AcquireRequest {
                    throttle,
                    lanes: vec![lane],
                    holder: Some(self.holder(held)),
                };
                let answer = self.ask(&ask).await;
                answer.unwrap_or(held < self.fallback_max)
            }
        };
        if !granted {
            return None;
        }
        *open += 1;
        drop(open);
        Some(ConnectionSeat(count))
    }

    /// Returns the decision of the store; `None` while it is away.
    async fn ask(&self, ask: &AcquireRequest) -> Option<bool> {
        let until = Instant::now() + ASK_FOR;
        loop {
            let answer = self.store.acquire(ask).await;
            if answer.is_decided() {
                *self.away_until.lock() = None;
                return Some(answer.lanes.first().is_some_and(|lane| lane.granted > 0));
            }
            let now = Instant::now();
            if self.away_until.lock().is_some_and(|away| now < away) {
                return None;
            }
            if now >= until {
                *self.away_until.lock() = Some(now + AWAY_FOR);
                return None;
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }

    fn count_of(&self, tenant: &str) -> Arc<TenantCount> {
        let mut tenants = self.tenants.lock();
        if let Some(count) = tenants.get(tenant) {
            return count.clone();
        }
        let count = Arc::new(TenantCount {
            tenant: tenant.into(),
            open: Mutex::new(0),
            closed: Lock::new(0),
            is_changed: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        });
        tenants.insert(tenant.into(), count.clone());
        count
    }

    fn holder(&self, held: u32) -> Holder {
        Holder {
            id: self.holder.to_string(),
            ttl: REPORT_TTL,
            held,
        }
    }

    /// Reports the numbers until `cancel` fires, and once more then.
    pub async fn run(self, cancel: CancellationToken) {
        let pace = LoopOptions {
            name: "report_connections",
            every: RELEASE_EVERY,
            wake: None,
        };
        let round = Arc::new(std::sync::atomic::AtomicU32::new(0));
        periodic(pace, cancel, || {
            let counts = self.clone();
            let is_full = round.fetch_add(1, Ordering::Relaxed).is_multiple_of(ROUNDS);
            async move { counts.report(is_full).await }
        })
        .await;
        // The connections have been closed by now, so that others need not wait for the reports to
        // lapse.
        let _ = self.report(false).await;
    }

    /// Reports the tenants that have changed, or all; forgets those without a connection. One whose
    /// report fails, as while its shard of a Redis Cluster is away, delays no other: the reports of
    /// others would lapse, and other processes would open as many connections once more.
    async fn report(&self, all: bool) -> Result<(), Error> {
        let mut counts: Vec<_> = self
            .tenants
            .lock()
            .iter()
            .map(|(tenant, count)| (tenant.clone(), count.clone()))
            .collect();
        counts.sort_by_key(|(_, count)| count.has_failed.load(Ordering::Relaxed));
        let (began, mut failed) = (Instant::now(), None);
        for (tenant, count) in counts {
            if !count.is_changed.swap(false, Ordering::AcqRel) && !all {
                continue;
            }
            if failed.is_some() && began.elapsed() > FAILING_FOR {
                count.is_changed.store(true, Ordering::Release);
                continue;
            }
            let mut open = count.open.lock().await;
            let held = count.settled(&mut open);
            if let Some(throttle) = connections_throttle_of(&count.tenant) {
                let lanes = [(String::new(), held)];
                let reported = self.store.hold(&throttle, &self.holder(held), &lanes).await;
                count.has_failed.store(reported.is_err(), Ordering::Relaxed);
                if let Err(error) = reported {
                    count.is_changed.store(true, Ordering::Release);
                    failed = Some(error);
                    continue;
                }
            }
            let mut tenants = self.tenants.lock();
            // The table and this loop are the only owners, so no connection is being admitted.
            if held == 0 && Arc::strong_count(&count) == 2 {
                tenants.remove(&tenant);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
