//! The admission of messages: takes slots, accepts, and estimates how long a message will wait.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;

use super::excess::Excess;
use super::pause::{ModulePause, PAUSED_RETRY_S, PausedBy};
use super::postgres::{self, AcceptRequest, Acceptance, Batch, Batches, Digests};
use super::usage::{
    AWAY_RETRY_S, AdmissionLevel, AdmissionUsage, WaitingMessage, after_pause_s, by_rate_s,
    due_in_s, place_of_tenant,
};
use crate::jobs::{Error, Queue};
use crate::throttle::admission::{TenantLimits, critical_throttle_of, throttle_of};
use crate::throttle::rolling_window::WindowUsage;
use crate::throttle::{AcquireRequest, Knobs, LaneRequest, Name, Store};

/// Slots that were taken for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The number taken.
    pub granted: u32,
    /// True if the store decided; nothing was counted otherwise.
    pub was_asked: bool,
}

/// The admission of all tenants.
#[derive(Clone)]
pub struct Admission {
    pub(super) store: Arc<dyn Store>,
    pub(super) queue: Queue,
    pub(super) limits: TenantLimits,
    pub(super) excess: Arc<Mutex<Excess>>,
}

impl Admission {
    /// Creates the admission; `limits` are reported while the store is away.
    pub fn new(store: Arc<dyn Store>, queue: Queue, limits: TenantLimits) -> Self {
        Self {
            store,
            queue,
            limits,
            excess: Arc::default(),
        }
    }

    /// Takes up to `want` slots of a tenant and its module.
    pub async fn take(&self, tenant: &str, module: &str, want: u32) -> Slots {
        self.acquire(throttle_of(tenant), module, want).await
    }

    /// Takes up to `want` slots for critical messages of a tenant, which do not wait for the
    /// others. While the store is away or has lost its knobs there is no limit.
    pub async fn take_critical(&self, tenant: &str, want: u32) -> Slots {
        let slots = self.acquire(critical_throttle_of(tenant), "", want).await;
        match slots.was_asked {
            true => slots,
            false => Slots {
                granted: want,
                was_asked: false,
            },
        }
    }

    async fn acquire(&self, throttle: Option<Name>, key: &str, want: u32) -> Slots {
        let none = Slots {
            granted: 0,
            was_asked: false,
        };
        let Some(throttle) = throttle else {
            return none;
        };
        let lane = LaneRequest {
            key: key.to_owned(),
            want,
            ..LaneRequest::default()
        };
        let answer = self
            .store
            .acquire(&AcquireRequest {
                throttle,
                lanes: vec![lane],
                holder: None,
            })
            .await;
        let granted = answer.lanes.first().map_or(0, |lane| lane.granted);
        match answer.is_decided() {
            false => none,
            true => Slots {
                granted,
                was_asked: true,
            },
        }
    }

    /// Returns unused slots.
    pub async fn give_back(&self, tenant: &str, module: &str, messages: u32) {
        let tokens = -f64::from(messages);
        settle(&*self.store, throttle_of(tenant), module, tokens).await;
    }

    /// Returns unused slots of critical messages.
    pub async fn give_back_critical(&self, tenant: &str, messages: u32) {
        let tokens = -f64::from(messages);
        settle(&*self.store, critical_throttle_of(tenant), "", tokens).await;
    }

    /// Counts messages that were sent without waiting for a slot.
    pub async fn count(&self, tenant: &str, module: &str, messages: u32) {
        let tokens = f64::from(messages);
        settle(&*self.store, throttle_of(tenant), module, tokens).await;
    }

    /// Returns the earlier request that this one repeats; `None` if it is new.
    pub async fn find_request(&self, digests: &Digests) -> Result<Option<Acceptance>, Error> {
        postgres::find_request(&self.queue, digests).await
    }

    /// Accepts a message, or finds the earlier request that it repeats.
    pub async fn accept(&self, request: &AcceptRequest<'_>) -> Result<Acceptance, Error> {
        postgres::accept(&self.queue, request).await
    }

    /// Returns the wait of a message; `None` if it does not wait for its admission.
    pub async fn waiting(&self, job_id: i64) -> Result<Option<WaitingMessage>, Error> {
        waiting(&self.queue, &*self.store, job_id).await
    }

    /// Returns the waits of messages with these places.
    pub(super) async fn waits(
        &self,
        places: &HashMap<i64, postgres::Place>,
    ) -> HashMap<i64, WaitingMessage> {
        waits(&self.queue, &*self.store, places).await
    }

    /// Returns a batch with the time at which the last of its waiting messages is admitted.
    pub async fn show_batch(
        &self,
        batches: &Batches,
        tenant: Option<&str>,
        id: i64,
    ) -> Result<Option<Batch>, Error> {
        match batches.show(tenant, id).await? {
            Some(batch) => self.estimated(batch).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns a batch with its estimate.
    pub(super) async fn estimated(&self, mut batch: Batch) -> Result<Batch, Error> {
        let expanding = batch.counts.get("expanding").copied().unwrap_or(0);
        let waiting = match batch.last_waiting {
            Some(last) => postgres::places(&self.queue, &[last]).await?.remove(&last),
            None => None,
        };
        if waiting.is_none() && expanding == 0 || batch.state == "paused" {
            return Ok(batch);
        }
        let sender = SenderState::read(&*self.store, &batch.tenant, &batch.module).await;
        if let (Some(usage), None) = (&sender.usage, sender.paused_by)
            && !matches!(self.queue.paused().await, Ok(Some(_)))
        {
            let (place, beside) =
                waiting.map_or((0, Vec::new()), |found| (found.place, found.beside));
            let (wait_s, _) = sender.wait(usage, (place + expanding) as f64, &beside);
            let at_us = usage.at_us.saturating_add(wait_s as i64 * 1_000_000);
            batch.estimate = jiff::Timestamp::from_microsecond(at_us).ok();
        }
        Ok(batch)
    }

    /// Returns the usage of a tenant and its module. `now_s` is the time in unix seconds, used
    /// while the store is away; `waits` says if messages of the module wait, and Postgres is asked
    /// if it is `None`.
    pub async fn quota_usage(
        &self,
        tenant: &str,
        module: &str,
        now_s: i64,
        waits: Option<bool>,
    ) -> AdmissionUsage {
        let waiting = async {
            match waits {
                Some(waits) => waits,
                None => postgres::has_waiting(&self.queue, tenant, module)
                    .await
                    .unwrap_or(false),
            }
        };
        let (usage, waits) = tokio::join!(usage(&*self.store, tenant, module), waiting);
        match usage {
            Some(usage) => AdmissionUsage::of(&usage, waits),
            None => AdmissionUsage::away(&self.limits, now_s),
        }
    }
}

/// Returns the wait of a message; `None` if it does not wait for its admission.
pub async fn waiting(
    queue: &Queue,
    store: &dyn Store,
    job_id: i64,
) -> Result<Option<WaitingMessage>, Error> {
    let places = postgres::places(queue, &[job_id]).await?;
    Ok(waits(queue, store, &places).await.remove(&job_id))
}

/// Returns the waits of messages with these places.
async fn waits(
    queue: &Queue,
    store: &dyn Store,
    places: &HashMap<i64, postgres::Place>,
) -> HashMap<i64, WaitingMessage> {
    let mut senders: HashMap<(&str, &str), SenderState> = HashMap::new();
    let mut waiting = HashMap::with_capacity(places.len());
    if places.is_empty() {
        return waiting;
    }
    let all_paused = matches!(queue.paused().await, Ok(Some(_)));
    for (id, found) in places {
        let name = (found.tenant.as_str(), found.module.as_str());
        if let Entry::Vacant(new) = senders.entry(name) {
            new.insert(SenderState::read(store, name.0, name.1).await);
        }
        let Some(sender) = senders.get(&name) else {
            continue;
        };
        let usage = &sender.usage;
        let all = all_paused.then_some(PausedBy::OperatorsAll);
        let paused_by = sender.paused_by.or(all);
        let (wait_s, level) = match usage {
            _ if paused_by.is_some() => (PAUSED_RETRY_S, None),
            Some(usage) => {
                let (wait_s, level) = sender.wait(usage, found.place as f64, &found.beside);
                (wait_s, Some(level))
            }
            None => (AWAY_RETRY_S, None),
        };
        let message = WaitingMessage {
            wait_s,
            level,
            paused_by,
            module_pause: sender.module_pause,
            place: found.place,
            priority: found.priority.into(),
            usage: usage.as_ref().map(|usage| AdmissionUsage::of(usage, true)),
        };
        waiting.insert(*id, message);
    }
    waiting
}

/// The state of a tenant and its module.
#[derive(Default)]
struct SenderState {
    /// The grants that count; `None` while the store is away.
    usage: Option<WindowUsage>,
    /// The knobs of the tenant's throttle; `None` if they are not known.
    knobs: Option<Knobs>,
    /// The side that paused the tenant; `None` while its messages go.
    paused_by: Option<PausedBy>,
    module_pause: Option<ModulePause>,
}

impl SenderState {
    async fn read(store: &dyn Store, tenant: &str, module: &str) -> Self {
        let Some(throttle) = throttle_of(tenant) else {
            return Self::default();
        };
        let throttles = [throttle];
        let modules = [module.to_owned()];
        let (usage, mut written, keys) = tokio::join!(
            usage(store, tenant, module),
            store.written_knobs(&throttles),
            store.look(&throttles[0], &modules)
        );
        let Some(usage) = usage else {
            return Self::default();
        };
        let knobs = match written.pop() {
            Some(Ok(Some(written))) => Some(Knobs::read(&written.fields).0),
            _ => None,
        };
        let key = keys.ok().and_then(|mut keys| keys.pop());
        Self {
            paused_by: knobs
                .as_ref()
                .and_then(|knobs| PausedBy::of(tenant, knobs, usage.at_us)),
            module_pause: key.and_then(|key| ModulePause::of(tenant, &key, usage.at_us)),
            knobs,
            usage: Some(usage),
        }
    }

    /// Returns the seconds until the message at `place` of the module is due, and the level with
    /// the longest wait. `beside` are the numbers of messages of the tenant's other modules.
    fn wait(&self, usage: &WindowUsage, place: f64, beside: &[i64]) -> (u64, AdmissionLevel) {
        let tenant_place = |place| place_of_tenant(place, beside);
        let by_windows = due_in_s(usage, place, tenant_place);
        let by_rate = self
            .knobs
            .as_ref()
            .and_then(|knobs| by_rate_s(knobs, usage.at_us, place, tenant_place(place)));
        let after_pause = self
            .module_pause
            .map(|pause| (after_pause_s(usage, place, pause), AdmissionLevel::Module));
        [by_rate, after_pause]
            .into_iter()
            .flatten()
            .fold(by_windows, |longest, other| {
                if other.0 > longest.0 { other } else { longest }
            })
    }
}

/// Returns the grants that count; `None` while the store is away or has no such throttle yet.
async fn usage(store: &dyn Store, tenant: &str, module: &str) -> Option<WindowUsage> {
    let throttle = throttle_of(tenant)?;
    let read = async || {
        let found = store.window_usage(&throttle, module).await;
        found.map(|usage| usage.map(|usage| of_module(usage, module)))
    };
    match read().await {
        Ok(Some(usage)) => Some(usage),
        // The first request of a tenant creates its throttle.
        Ok(None) => {
            let none = LaneRequest {
                key: module.to_owned(),
                ..LaneRequest::default()
            };
            let ask = AcquireRequest {
                throttle: throttle.clone(),
                lanes: vec![none],
                holder: None,
            };
            store.peek(&ask).await;
            read().await.ok().flatten()
        }
        Err(_) => None,
    }
}

/// Returns the usage that counts for a module: one without a name has the limit of its tenant
/// alone.
pub(super) fn of_module(mut usage: WindowUsage, module: &str) -> WindowUsage {
    if module.is_empty() {
        usage.key.clear();
    }
    usage
}

async fn settle(store: &dyn Store, throttle: Option<Name>, key: &str, tokens: f64) {
    let Some(throttle) = throttle.filter(|_| tokens != 0.0) else {
        return;
    };
    // A lost return delays the next message for a moment, and a lost count is one message.
    if let Err(error) = store.settle_many(&throttle, &[(key, tokens)]).await {
        tracing::debug!(throttle.name = %throttle, %error, "settling the slots of messages failed");
    }
}
