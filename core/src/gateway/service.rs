//! The gateway at work: publishes, collects, reads the history as it grows, and forgets what is old.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::batches::{TENANT_MAX, batcher, counted, lost};
use super::connection_counts::ConnectionCounts;
use super::history_end::HistoryEnd;
use super::hub::Hub;
use super::limits::GatewayLimits;
use super::metrics::GatewayMetrics;
use super::pace::LimitedTenants;
use super::postgres::{
    self, ChannelPlace, ChannelPosition, ConnectionReport, HistoryPage, NewPublication, Published,
    StoredMessage,
};
use super::rates::TenantRates;
use super::tenant_mark::TenantMark;
use super::turns::in_turns;
use super::window_lease::WindowLease;
use crate::jobs::{Error, Queue};
use crate::postgres::{Db, TenantQueues};
use crate::service::{Batcher, DueWork, LoopOptions, periodic, periodic_unless_watched};
use crate::throttle::Store;
use crate::throttle::admission::{channels_throttle_of, connections_throttle_of};
use crate::throttle::rolling_window::WindowGrants;

/// The channel on which Postgres notifies of publications.
const PUBLISHED: &str = "flyball_publish";

/// The channel on which collectors notify of new messages, and of tenants at their limit.
const COLLECTED: &str = "flyball_channel";

/// The time between two polls for publications or messages where notifications are not heard.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// The same where they are heard, and come sooner.
const SAFETY_POLL_EVERY: Duration = Duration::from_secs(5);

/// The time that connections get beyond the drain.
const DRAIN_GRACE: Duration = Duration::from_secs(2);

/// The messages that are read at once after a notification.
const READ_MAX: i64 = 256;

/// The bytes of data after which no further message is read at once.
const READ_BYTES: usize = 1024 * 1024;

/// The deliveries after which the reader lets other tasks run.
const HANDED_MAX: usize = 2000;

/// The messages of one page of the history.
pub const PAGE_MAX: i64 = 64;

/// The bytes of data after which a page of the history ends.
const PAGE_BYTES: usize = 256 * 1024;

/// The time between two steps of maintenance.
const PRUNE_EVERY: Duration = Duration::from_secs(2);

/// The time between two reports of open connections.
const REPORT_EVERY: Duration = Duration::from_secs(5);

/// The time between two polls for reported limits where notifications are heard: nothing else makes
/// them due.
const LIMITS_POLL_EVERY: Duration = Duration::from_secs(60);

/// The time between two steps of maintenance while there is nothing to do.
const UNUSED_PRUNE_EVERY: Duration = Duration::from_secs(20);

/// Messages deleted in one step.
const PRUNED_MAX: i32 = 5000;

/// Channels looked at in one step.
const FORGOTTEN_MAX: i32 = 1000;

/// The gateway of this process. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Gateway {
    pub db: Db,
    pub hub: Arc<Hub>,
    pub limits: Arc<GatewayLimits>,
    pub metrics: GatewayMetrics,
    pub counts: ConnectionCounts,
    /// Cancelled when the process sends its connections away.
    pub drain: CancellationToken,
    /// The connections that are being served.
    pub sessions: TaskTracker,
    queue: Queue,
    pub(super) store: Arc<dyn Store>,
    default_tenant: &'static str,
    /// The begin of the times in `own_windows`.
    pub(super) began: Instant,
    pub(super) due: DueWork,
    read_to: Arc<AtomicI64>,
    pub(super) end: Arc<Mutex<HistoryEnd>>,
    pub(super) limited: Arc<Mutex<LimitedTenants>>,
    /// Tells of the first of them.
    pub(super) has_limited: Arc<Notify>,
    /// Held by what takes the lock of collectors, so that one of this process waits for another no
    /// longer than it works.
    pub(super) collecting: Arc<tokio::sync::Mutex<()>>,
    pub(super) rates: Arc<Mutex<TenantRates>>,
    /// The waits of tenants whose limits notifications have named, until they are confirmed.
    pub(super) heard: Arc<Mutex<HashMap<String, Duration>>>,
    /// The marks of inboxes that notifications have named as erased.
    pub(super) erased: Arc<Mutex<HashSet<TenantMark>>>,
    /// Tells of the first of either.
    pub(super) has_heard: Arc<Notify>,
    /// The windows that hold while the store of throttles is away.
    pub(super) own_windows: Arc<Mutex<HashMap<String, WindowGrants>>>,
    pub(super) window_lease: WindowLease,
    publishes: Batcher<NewPublication, Result<Published, Error>>,
    positions: Batcher<(String, String), Result<ChannelPosition, Error>>,
    pages: Batcher<HistoryPage, Result<Vec<StoredMessage>, Error>>,
    tickets: Batcher<Vec<u8>, Result<Option<Value>, Error>>,
    page_queues: TenantQueues,
    publish_queues: TenantQueues,
}

impl Gateway {
    /// Opens the gateway on this database, whose schema must be up to date. `default_tenant` names
    /// the throttles of operators' own channels; `due` is what a worker of this process wakes.
    pub fn new(
        queue: Queue,
        store: Arc<dyn Store>,
        limits: GatewayLimits,
        default_tenant: &'static str,
        due: DueWork,
    ) -> Self {
        let db: Db = (&queue.pool).into();
        let publishes = batcher(&db, |db, items: Arc<Vec<NewPublication>>| {
            Box::pin(async move { postgres::publish(&db, &items).await })
        });
        let positions = batcher(&db, |db, items: Arc<Vec<(String, String)>>| {
            Box::pin(async move { postgres::positions(&db, &items).await })
        });
        let pages = batcher(&db, |db, items: Arc<Vec<HistoryPage>>| {
            Box::pin(async move { postgres::pages(&db, &items, PAGE_MAX, PAGE_BYTES).await })
        });
        let tickets = batcher(&db, |db, items: Arc<Vec<Vec<u8>>>| {
            Box::pin(async move { postgres::take_tickets(&db, &items).await })
        });
        let counts = ConnectionCounts::new(store.clone(), limits.connections);
        Self {
            window_lease: WindowLease::new(&db, counts.process()),
            db,
            hub: Arc::default(),
            counts,
            limits: Arc::new(limits),
            metrics: GatewayMetrics::default(),
            drain: CancellationToken::new(),
            sessions: TaskTracker::new(),
            queue,
            store,
            default_tenant,
            began: Instant::now(),
            due,
            read_to: Arc::new(AtomicI64::new(-1)),
            end: Arc::default(),
            limited: Arc::default(),
            has_limited: Arc::default(),
            collecting: Arc::default(),
            rates: Arc::default(),
            heard: Arc::default(),
            erased: Arc::default(),
            has_heard: Arc::default(),
            own_windows: Arc::default(),
            publishes,
            positions,
            pages,
            tickets,
            page_queues: TenantQueues::new(TENANT_MAX),
            publish_queues: TenantQueues::new(TENANT_MAX),
        }
    }

    /// Publishes a message; concurrent calls share a statement. Tenants take turns.
    pub async fn publish(&self, message: NewPublication) -> Result<Published, Error> {
        let publications = counted(&message.data);
        let queues = &self.publish_queues;
        let _place = queues.enter_as(&message.tenant, publications).await;
        let mark = TenantMark::of(&message.tenant);
        let published = self.publishes.submit(message).await.unwrap_or_else(lost)?;
        self.hear_publication(Some(mark));
        if let Published::Accepted { .. } = published {
            self.metrics.published(1);
        }
        Ok(published)
    }

    /// Returns where a channel stands.
    pub async fn position(&self, tenant: &str, channel: &str) -> Result<ChannelPosition, Error> {
        let channel = (tenant.to_owned(), channel.to_owned());
        self.positions.submit(channel).await.unwrap_or_else(lost)
    }

    /// Returns up to [`PAGE_MAX`] messages of a channel from an offset on; fewer if they are large.
    /// Tenants take turns.
    pub async fn page(&self, page: HistoryPage) -> Result<Vec<StoredMessage>, Error> {
        let _place = self.page_queues.enter(&page.tenant).await;
        self.pages.submit(page).await.unwrap_or_else(lost)
    }

    /// Takes a ticket by the digest of its secret; `None` if there is none, or its time is over.
    /// Concurrent calls share a statement, so wrong tickets without end cost Postgres little.
    pub async fn take_ticket(&self, digest: &[u8]) -> Result<Option<Value>, Error> {
        let taken = self.tickets.submit(digest.to_vec()).await;
        taken.unwrap_or_else(lost)
    }

    /// Returns the tenant whose throttles limit a tenant's channels: operators have a name of their
    /// own there.
    pub fn throttle_tenant<'a>(&self, tenant: &'a str) -> &'a str {
        match tenant {
            "" => self.default_tenant,
            tenant => tenant,
        }
    }

    /// Returns the limits of a tenant, and its use of them.
    pub async fn channel_limits(&self, tenant: &str) -> ChannelLimits {
        let tenant = self.throttle_tenant(tenant);
        let mut limits = ChannelLimits {
            used: Some(0),
            per_second: Some(self.limits.per_second.into()),
            connections: Some(self.limits.connections.into()),
        };
        if let Some(throttle) = channels_throttle_of(tenant) {
            match self.store.window_usage(&throttle, "").await {
                Ok(Some(usage)) => {
                    let window = usage.throttle.first();
                    limits.used = window.map(|window| window.used().round() as i64);
                    limits.per_second = window.map(|window| window.limit().tokens as i64);
                }
                Ok(None) => {}
                Err(_) => return ChannelLimits::default(),
            }
        }
        if let Some(throttle) = connections_throttle_of(tenant)
            && let Ok(Some(status)) = self.store.status(&throttle).await
        {
            limits.connections = status.knobs.concurrency.map(i64::from);
        }
        limits
    }

    /// Sends all connections away over the time of the settings, and waits until they have gone.
    pub async fn send_away(&self) {
        self.drain.cancel();
        self.sessions.close();
        let most = self.limits.drain + DRAIN_GRACE;
        if tokio::time::timeout(most, self.sessions.wait())
            .await
            .is_err()
        {
            let connections = self.sessions.len();
            tracing::warn!(connections, "connections of the gateway were cut off");
        }
    }

    /// Returns the time after which a connection leaves a draining gateway. Clients come back at
    /// once, so the server spreads them.
    pub fn drain_delay(&self) -> Duration {
        self.limits.drain.mul_f64(rand::random::<f64>())
    }

    /// Collects, reads and prunes until `cancel` fires.
    pub async fn run(self, cancel: CancellationToken) {
        let poll_every = match self.queue.can_listen() {
            true => SAFETY_POLL_EVERY,
            false => POLL_EVERY,
        };
        let hub = self.hub.clone();
        // A task of its own, because it takes turns with the tasks of connections.
        let woken = tokio::spawn(async move { hub.wake_peers().await });
        let woken = AbortOnDropHandle::new(woken);
        let loops = async {
            tokio::join!(
                self.hear_publications(&cancel),
                self.hear_collectors(&cancel),
                self.collect_publications(poll_every, &cancel),
                self.pace_publications(&cancel),
                self.read_channels(poll_every, &cancel),
                self.prune_channels(&cancel),
                self.warn_limited_tenants(&cancel),
                self.counts.clone().run(cancel.clone()),
                self.report_channels(&cancel),
            )
        };
        tokio::select! {
            _ = loops => {}
            // Without it no connection would ever hear of a message again.
            ended = woken => tracing::error!(?ended, "the task that wakes connections died"),
        }
    }

    async fn hear_publications(&self, cancel: &CancellationToken) {
        let gateway = self.clone();
        let notify = move |mark: &str| gateway.hear_publication(TenantMark::parse(mark));
        self.queue
            .listen_to(PUBLISHED, notify, cancel.clone())
            .await;
    }

    async fn hear_collectors(&self, cancel: &CancellationToken) {
        let gateway = self.clone();
        let notify = move |payload: &str| gateway.hear(payload);
        self.queue
            .listen_to(COLLECTED, notify, cancel.clone())
            .await;
    }

    async fn collect_publications(&self, poll_every: Duration, cancel: &CancellationToken) {
        periodic_unless_watched(
            LoopOptions {
                name: "collect_publications",
                every: poll_every,
                wake: Some(self.due.publications.clone()),
            },
            self.due.clone(),
            cancel.clone(),
            || {
                let gateway = self.clone();
                async move { gateway.collect_round().await }
            },
        )
        .await;
    }

    /// Moves the messages of tenants at their limit. A round without such tenants costs nothing,
    /// and a step that failed is soon made again.
    async fn pace_publications(&self, cancel: &CancellationToken) {
        periodic(
            LoopOptions {
                name: "pace_publications",
                every: POLL_EVERY,
                wake: Some(self.has_limited.clone()),
            },
            cancel.clone(),
            || {
                let gateway = self.clone();
                async move { gateway.pace_round().await }
            },
        )
        .await;
    }

    async fn read_channels(&self, poll_every: Duration, cancel: &CancellationToken) {
        periodic_unless_watched(
            LoopOptions {
                name: "read_channels",
                every: poll_every,
                wake: Some(self.due.channel_messages.clone()),
            },
            self.due.clone(),
            cancel.clone(),
            || {
                let gateway = self.clone();
                async move {
                    let read = gateway.read_round().await;
                    read.inspect_err(|_| gateway.end.lock().note_failure())
                }
            },
        )
        .await;
    }

    async fn report_channels(&self, cancel: &CancellationToken) {
        let gone: Arc<Mutex<HashSet<Arc<str>>>> = Arc::default();
        periodic(
            LoopOptions {
                name: "report_channels",
                every: REPORT_EVERY,
                wake: None,
            },
            cancel.clone(),
            || {
                let (gateway, gone) = (self.clone(), gone.clone());
                async move { gateway.report_round(&gone).await }
            },
        )
        .await;
    }

    async fn prune_channels(&self, cancel: &CancellationToken) {
        let place: Arc<Mutex<ChannelPlace>> = Arc::default();
        periodic(
            LoopOptions {
                name: "prune_channels",
                every: PRUNE_EVERY,
                wake: None,
            },
            cancel.clone(),
            || {
                let (gateway, place) = (self.clone(), place.clone());
                async move { gateway.prune_round(&place).await }
            },
        )
        .await;
    }

    async fn warn_limited_tenants(&self, cancel: &CancellationToken) {
        let can_hear = self.queue.can_listen();
        let every = match can_hear {
            true => LIMITS_POLL_EVERY,
            false => POLL_EVERY,
        };
        periodic(
            LoopOptions {
                name: "warn_tenants",
                every,
                wake: Some(self.has_heard.clone()),
            },
            cancel.clone(),
            || {
                let gateway = self.clone();
                async move {
                    let told = gateway.report_erased().await;
                    match can_hear {
                        true => gateway.warn_tenants().await?,
                        false => gateway.warn_unheard_tenants().await?,
                    }
                    told
                }
            },
        )
        .await;
    }

    /// Lets this process read the messages that come from now on. Call it before reading the place
    /// of a channel: a message between the two would reach no reader.
    pub(super) async fn begin_reading(&self) -> Result<(), Error> {
        if self.read_to.load(Ordering::Relaxed) < 0 {
            let last = postgres::last_seq(&self.db).await?;
            let mark = postgres::last_mark(&self.db).await?;
            self.end.lock().begin(mark);
            let (relaxed, unread) = (Ordering::Relaxed, -1);
            // Another may have been faster.
            let _ = self
                .read_to
                .compare_exchange(unread, last, relaxed, relaxed);
        }
        Ok(())
    }

    /// Hands over what came into the history since the last poll.
    async fn read_round(&self) -> Result<(), Error> {
        self.begin_reading().await?;
        let mut read_to = self.read_to.load(Ordering::Relaxed);
        self.check_end().await?;
        loop {
            let messages = postgres::after(&self.db, read_to, READ_MAX, READ_BYTES).await?;
            let Some(last) = messages.last() else {
                // After a failover to a copy that lacks the end, the numbers begin again before it.
                let last = postgres::last_seq(&self.db).await?;
                self.read_to.fetch_min(last, Ordering::Relaxed);
                return Ok(());
            };
            read_to = last.seq;
            self.end.lock().note(&messages);
            let mut handed = 0;
            for message in in_turns(&messages) {
                handed += self.hub.deliver(message);
                if handed > HANDED_MAX {
                    handed = 0;
                    tokio::task::yield_now().await;
                }
            }
            self.read_to.store(read_to, Ordering::Relaxed);
            let bytes: usize = messages.iter().map(|message| message.data.len()).sum();
            if (messages.len() as i64) < READ_MAX && bytes < READ_BYTES {
                return Ok(());
            }
        }
    }

    /// Reports the open connections of each tenant; a tenant whose last connection has gone is
    /// reported once more.
    async fn report_round(&self, known: &Mutex<HashSet<Arc<str>>>) -> Result<(), Error> {
        let open = self.hub.reports();
        let now: HashSet<Arc<str>> = open.iter().map(|(tenant, ..)| tenant.clone()).collect();
        let gone: Vec<Arc<str>> = known.lock().difference(&now).cloned().collect();
        let none = gone.into_iter().map(|tenant| (tenant, 0, 0));
        let reports: Vec<ConnectionReport> = open
            .into_iter()
            .chain(none)
            .map(|(tenant, connections, warnings)| ConnectionReport {
                tenant: tenant.to_string(),
                connections: connections as i32,
                warnings,
            })
            .collect();
        if !reports.is_empty() {
            postgres::report_connections(&self.db, self.counts.process(), &reports).await?;
        }
        *known.lock() = now;
        Ok(())
    }

    async fn prune_round(&self, place: &Mutex<ChannelPlace>) -> Result<(), Error> {
        let backlog = postgres::gateway_backlog(&self.db).await?;
        self.metrics.oldest_publication(backlog.oldest_s);
        if !backlog.needs_maintenance {
            tokio::time::sleep(UNUSED_PRUNE_EVERY - PRUNE_EVERY).await;
            return Ok(());
        }
        while self.prune_step().await? >= i64::from(PRUNED_MAX) {}
        let _collecting = self.collecting.lock().await;
        let from = place.lock().clone();
        let next = postgres::forget(&self.db, &from, FORGOTTEN_MAX).await?;
        *place.lock() = next;
        Ok(())
    }

    /// Deletes up to [`PRUNED_MAX`] messages. Collectors get their turn before the next step.
    async fn prune_step(&self) -> Result<i64, Error> {
        let _collecting = self.collecting.lock().await;
        postgres::prune(&self.db, PRUNED_MAX).await
    }
}

/// The limits of a tenant's channels and its use of them; `None` without a limit, and while the
/// store of throttles is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Messages within the last second, or the first window of the throttle if that is another.
    pub used: Option<i64>,
    /// The most messages within that time.
    pub per_second: Option<i64>,
    /// The most open connections.
    pub connections: Option<i64>,
}
