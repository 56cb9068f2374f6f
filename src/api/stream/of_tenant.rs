//! The live stream of one tenant: the ticks of its throttles, and the failures and changes that
//! Postgres selects for it. Nothing else reaches it.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::Stream;
use futures_util::stream::unfold;
use serde_json::Value;
use tokio::sync::broadcast;

use super::live::{StreamEvent, StreamPermit};
use super::seen::{FIRST_LOOK, FOLLOWED_MAX, SeenIds};
use crate::api::clock;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::postgres;
use crate::jobs::Queue;
use crate::throttle::tenant::tenant_of;

/// One listener of a tenant.
pub struct TenantListener {
    pub tenant: Arc<str>,
    pub queue: Queue,
    pub receiver: broadcast::Receiver<StreamEvent>,
    /// Its place among the streams, which is free again at its end.
    pub place: StreamPermit,
}

impl TenantListener {
    /// Streams the events of the tenant. Each tick is the occasion to read what is new.
    pub fn events(self) -> impl Stream<Item = StreamEvent> {
        let start = (self, SeenIds::default(), VecDeque::new());
        unfold(start, |(mut listener, mut seen, mut due)| async move {
            while due.is_empty() {
                // A listener that lags is disconnected, like every other.
                let event = listener.receiver.recv().await.ok()?;
                if event.name == "tick" {
                    let event = listener.place.filled(event);
                    due.push_back(within(&event, &listener.tenant));
                    listener.read(&mut seen, &mut due).await;
                }
            }
            let event = due.pop_front()?;
            Some((event, (listener, seen, due)))
        })
    }

    /// Reads the new failures and changes of the tenant. Rows that cannot be read now are still new
    /// at the next tick.
    async fn read(&self, seen: &mut SeenIds, due: &mut VecDeque<StreamEvent>) {
        let tenant = Some(&*self.tenant);
        let (failures, audit) = tokio::join!(
            with_timeout(ROW_TIMEOUT, self.queue.failures(tenant, FOLLOWED_MAX)),
            with_timeout(
                ROW_TIMEOUT,
                postgres::read_audit(&self.queue.pool, tenant, FOLLOWED_MAX)
            ),
        );
        let lately = clock::now() - FIRST_LOOK;
        let failures = failures.map(|items| seen.new_failures(items, lately));
        let audit = audit.map(|items| seen.new_entries(items, lately));
        due.extend(
            failures
                .unwrap_or_default()
                .iter()
                .filter_map(|failure| StreamEvent::of("failure", failure)),
        );
        due.extend(
            audit
                .unwrap_or_default()
                .iter()
                .filter_map(|entry| StreamEvent::of("audit", entry)),
        );
    }
}

/// Returns a tick or a history with the throttles of one tenant, and with the jobs that run there
/// as the total. A history has only those that all listeners get.
pub fn within(event: &StreamEvent, tenant: &str) -> StreamEvent {
    let whole = event.whole.as_ref();
    let part = whole.map(|whole| whole.part(|name| tenant_of(name) == Some(tenant)));
    if let Some(event) = part.and_then(|part| StreamEvent::of_tick(&part)) {
        return event;
    }
    let mut value: Value = serde_json::from_str(&event.data).unwrap_or_default();
    match value.get_mut("ticks").and_then(Value::as_array_mut) {
        Some(ticks) => ticks.iter_mut().for_each(|tick| narrow(tick, tenant)),
        None => narrow(&mut value, tenant),
    }
    StreamEvent {
        data: value.to_string().into(),
        ..event.clone()
    }
}

fn narrow(tick: &mut Value, tenant: &str) {
    let mut running = 0;
    if let Some(throttles) = tick.get_mut("throttles").and_then(Value::as_object_mut) {
        throttles.retain(|name, _| tenant_of(name) == Some(tenant));
        let jobs = throttles.values().map(|one| one["running"].as_i64());
        running = jobs.flatten().sum();
    }
    if let Some(total) = tick.get_mut("running_total") {
        *total = running.into();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::api::stream::live::{Tick, TickThrottle};

    #[test]
    fn a_tick_and_a_history_hold_the_throttles_of_one_tenant() {
        let tick = json!({
            "at": 7,
            "throttles": {
                "notify:acme": {"running": 2},
                "tenant:acme/mail": {"running": 1},
                "notify:zeta": {"running": 40},
                "mail": {"running": 50},
            },
            "running_total": 93,
            "workers": 3,
        });
        let event = |value: &Value| StreamEvent {
            name: "tick",
            id: Some(7),
            data: value.to_string().into(),
            whole: None,
        };
        let read = |event: &StreamEvent| -> Value { serde_json::from_str(&event.data).unwrap() };
        let own = json!({
            "at": 7,
            "throttles": {"notify:acme": {"running": 2}, "tenant:acme/mail": {"running": 1}},
            "running_total": 3,
            "workers": 3,
        });
        assert_eq!(read(&within(&event(&tick), "acme")), own);
        let history = json!({"ticks": [tick, tick]});
        assert_eq!(
            read(&within(&event(&history), "acme")),
            json!({"ticks": [own, own]})
        );
    }
    #[test]
    fn a_tenant_keeps_its_throttles_of_a_tick_that_is_cut() {
        let one = |running: i64| TickThrottle {
            rps: None,
            effective_rps: None,
            concurrency: None,
            achieved_rps: None,
            limiting_share: None,
            mode: None,
            state: "flowing".to_owned(),
            breaker: None,
            ready: 0,
            running,
            dead: 0,
            oldest_ready_s: None,
            signals: BTreeMap::new(),
        };
        let others = (0..300).map(|i| (format!("t{i:03}"), one(1)));
        let own = [
            ("notify:acme".to_owned(), one(0)),
            ("tenant:acme/mail".to_owned(), one(2)),
        ];
        let tick = Tick {
            at: 7,
            throttles: others.chain(own).collect(),
            running_total: 302,
            workers: 3,
            depth_age_s: None,
            store_lost: false,
            queue_unwritable: false,
            replica: None,
        };
        let event = StreamEvent::of_tick(&tick).unwrap();

        let own: Value = serde_json::from_str(&within(&event, "acme").data).unwrap();

        let names: Vec<&String> = own["throttles"].as_object().unwrap().keys().collect();
        assert_eq!(names, ["notify:acme", "tenant:acme/mail"]);
        assert_eq!(own["running_total"], 2);
        let other: Value = serde_json::from_str(&within(&event, "zeta").data).unwrap();
        assert_eq!(other["throttles"], json!({}));
    }
}
