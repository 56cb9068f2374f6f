//! The servers of a cluster, each with a link of its own, so that a lost server affects only its
//! own slots.
//!
//! A call goes to the known server of its slot and follows MOVED and ASK within its time limit. One
//! task queries CLUSTER SLOTS: at first, after a call found the map to be wrong, and while any
//! server is lost, which detects a fail-over. Callers never wait for it.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use redis::aio::ConnectionManager;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, RedisResult, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, Redirection};
use super::link::{CallBound, CallError, PROBE_EVERY, PROBE_TIMEOUT, RedisLink};
use super::slots::{Address, Range, SLOTS, ranges};

/// The number of redirections that one call follows.
const MAX_REDIRECTIONS: u32 = 8;

/// The pause before a call is repeated whose keys are split between two servers.
const UNDERWAY_PAUSE: Duration = Duration::from_millis(5);

/// The owner of a slot without a server.
const NOBODY: u16 = u16::MAX;

/// The servers of a cluster.
pub(super) struct Cluster {
    inner: Arc<ClusterInner>,
}

struct ClusterInner {
    /// The servers that the URL names.
    seeds: Vec<Client>,
    map: ArcSwap<Map>,
    /// The lock held while the map is replaced.
    turn: Mutex<()>,
    /// The migrating slots in which a call has waited in vain.
    underway: Mutex<HashSet<u16>>,
    /// False until the map has been queried once.
    asked: watch::Sender<bool>,
    wake: Arc<Notify>,
}

#[derive(Clone)]
struct Map {
    nodes: Vec<Arc<Node>>,
    /// The index in `nodes` of each slot's server, or [`NOBODY`].
    owners: Box<[u16]>,
}

struct Node {
    address: Address,
    link: RedisLink,
}

impl Cluster {
    /// Connects in the background, starting from any reachable seed.
    pub(super) fn open(seeds: Vec<Client>) -> Self {
        let inner = Arc::new(ClusterInner {
            seeds,
            map: ArcSwap::from_pointee(Map::empty()),
            turn: Mutex::default(),
            underway: Mutex::default(),
            asked: watch::Sender::new(false),
            wake: Arc::new(Notify::new()),
        });
        tokio::spawn(follow(Arc::downgrade(&inner), inner.wake.clone()).boxed());
        Self { inner }
    }

    /// Runs `call` at the server of `slot` and returns within `bound`.
    ///
    /// Only before the map is known for the first time may a call wait longer, up to a second.
    pub(super) async fn run<T, F>(
        &self,
        slot: u16,
        bound: CallBound,
        call: impl Fn(Connection) -> F,
    ) -> Result<T, CallError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.settled().await;
        let deadline = Instant::now() + bound.time;
        let mut asked_to: Option<Arc<Node>> = None;
        let mut redirections = 0;
        loop {
            let is_asking = asked_to.is_some();
            let Some(node) = asked_to
                .take()
                .or_else(|| self.inner.map.load().owner(slot))
            else {
                self.inner.wake.notify_one();
                return Err(CallError::new(
                    "no server of the cluster is known to serve the slot",
                ));
            };
            let _ = timeout(
                deadline.saturating_duration_since(Instant::now()),
                node.link.settled(),
            )
            .await;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || redirections > MAX_REDIRECTIONS {
                return Err(CallError::new("the slot keeps moving between servers"));
            }
            let failure = match node
                .link
                .run(bound.within(left), |manager| {
                    call(Connection::new(manager, is_asking))
                })
                .await
            {
                Ok(answer) => {
                    locked(&self.inner.underway).remove(&slot);
                    return Ok(answer);
                }
                Err(failure) => failure,
            };
            match failure.error.as_ref().and_then(Redirection::read) {
                Some(Redirection::Moved(address)) => {
                    let moved = Address::read(address, &node.address)
                        .and_then(|address| self.inner.moved(slot, &address));
                    moved.ok_or_else(|| {
                        CallError::new(
                            "the server of the slot has moved to an address that cannot be used",
                        )
                    })?;
                }
                Some(Redirection::Ask(address)) => {
                    asked_to = Address::read(address, &node.address)
                        .and_then(|address| self.inner.node(&address));
                }
                Some(Redirection::Underway) => {
                    let waited_in_vain =
                        deadline.saturating_duration_since(Instant::now()) <= UNDERWAY_PAUSE;
                    let is_known = locked(&self.inner.underway).contains(&slot);
                    if waited_in_vain || is_known {
                        locked(&self.inner.underway).insert(slot);
                        return Err(CallError::new(
                            "the slot is migrating to another server of the cluster",
                        ));
                    }
                    sleep(UNDERWAY_PAUSE).await;
                    continue;
                }
                Some(Redirection::Down) | None => {
                    self.inner.wake.notify_one();
                    return Err(failure);
                }
            }
            redirections += 1;
        }
    }

    /// Runs `call` at the server with index `number`, counted from 0; returns `None` if there is
    /// none.
    pub(super) async fn run_at<T, F>(
        &self,
        number: usize,
        bound: CallBound,
        call: impl Fn(Connection) -> F,
    ) -> Option<Result<T, CallError>>
    where
        F: Future<Output = RedisResult<T>>,
    {
        self.settled().await;
        let node = self.inner.map.load().nodes.get(number).cloned()?;
        Some(
            node.link
                .run(bound, |manager| call(Connection::new(manager, false)))
                .await,
        )
    }

    async fn settled(&self) {
        let mut asked = self.inner.asked.subscribe();
        let _ = timeout(PROBE_TIMEOUT, asked.wait_for(|asked| *asked)).await;
    }
}

impl Map {
    fn empty() -> Self {
        Self {
            nodes: Vec::new(),
            owners: vec![NOBODY; SLOTS].into(),
        }
    }

    fn owner(&self, slot: u16) -> Option<Arc<Node>> {
        self.nodes
            .get(usize::from(self.owners[usize::from(slot)]))
            .cloned()
    }

    fn place(
        &mut self,
        address: &Address,
        open: impl FnOnce() -> Option<Arc<Node>>,
    ) -> Option<u16> {
        let place = self.nodes.iter().position(|node| node.address == *address);
        let place = match place {
            Some(place) => place,
            None => {
                self.nodes.push(open()?);
                self.nodes.len() - 1
            }
        };
        u16::try_from(place).ok()
    }

    /// Returns true if every slot has a server and no server is lost.
    fn is_whole(&self) -> bool {
        self.owners.iter().all(|owner| *owner != NOBODY)
            && self.nodes.iter().all(|node| node.link.is_up())
    }
}

impl ClusterInner {
    /// Returns the known server at `address`, or opens a link to a new one.
    fn open(&self, address: &Address) -> Option<Arc<Node>> {
        let known = self
            .map
            .load()
            .nodes
            .iter()
            .find(|node| node.address == *address)
            .cloned();
        known.or_else(|| {
            let seed = self.seeds.first()?.get_connection_info();
            let info = seed.clone().set_addr(elsewhere(seed.addr(), address));
            let link = RedisLink::open(Client::open(info).ok()?).ok()?;
            Some(Arc::new(Node {
                address: address.clone(),
                link,
            }))
        })
    }

    /// Returns the server of an ASK redirection, which stays in the map until it is read again.
    fn node(&self, address: &Address) -> Option<Arc<Node>> {
        let _turn = locked(&self.turn);
        let mut map = Map::clone(&self.map.load());
        let place = map.place(address, || self.open(address))?;
        let node = map.nodes[usize::from(place)].clone();
        self.map.store(Arc::new(map));
        Some(node)
    }

    /// Assigns one slot to another server and wakes the map task, because probably more slots have
    /// moved; `None` if that server cannot be opened.
    fn moved(&self, slot: u16, address: &Address) -> Option<()> {
        let _turn = locked(&self.turn);
        let mut map = Map::clone(&self.map.load());
        map.owners[usize::from(slot)] = map.place(address, || self.open(address))?;
        self.map.store(Arc::new(map));
        self.wake.notify_one();
        Some(())
    }

    /// Replaces the map, dropping servers that are no longer in it.
    fn adopt(&self, ranges: &[Range]) {
        let _turn = locked(&self.turn);
        let mut map = Map::empty();
        for range in ranges {
            let Some(place) = map.place(&range.primary, || self.open(&range.primary)) else {
                continue;
            };
            map.owners[usize::from(range.first)..=usize::from(range.last)].fill(place);
        }
        self.map.store(Arc::new(map));
    }

    /// Queries the map from a server that is up, another one each round, or else from the seeds.
    async fn ask(&self, round: usize) -> Option<Vec<Range>> {
        let map = self.map.load_full();
        let count = map.nodes.len();
        for node in (0..count)
            .map(|i| &map.nodes[(round + i) % count])
            .filter(|node| node.link.is_up())
        {
            let answer = node.link.run(PROBE_TIMEOUT / 2, cluster_slots).await;
            let found = answer
                .map(|answer| ranges(&answer, &node.address))
                .unwrap_or_default();
            if !found.is_empty() {
                return Some(found);
            }
        }
        for i in 0..self.seeds.len() {
            let seed = &self.seeds[(round + i) % self.seeds.len()];
            let Some(address) = address_of(seed.get_connection_info().addr()) else {
                continue;
            };
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(PROBE_TIMEOUT))
                .set_response_timeout(Some(PROBE_TIMEOUT));
            let answer = async {
                let mut connection = seed
                    .get_multiplexed_async_connection_with_config(&config)
                    .await?;
                redis::cmd("CLUSTER")
                    .arg("SLOTS")
                    .query_async::<Value>(&mut connection)
                    .await
            };
            let found = answer
                .await
                .map(|answer| ranges(&answer, &address))
                .unwrap_or_default();
            if !found.is_empty() {
                return Some(found);
            }
        }
        None
    }
}

impl Drop for ClusterInner {
    fn drop(&mut self) {
        self.wake.notify_one();
    }
}

async fn cluster_slots(mut manager: ConnectionManager) -> RedisResult<Value> {
    redis::cmd("CLUSTER")
        .arg("SLOTS")
        .query_async(&mut manager)
        .await
}

/// Keeps the map current: queries it, pauses, and sleeps while the map is whole until a call finds
/// it wrong.
async fn follow(inner: Weak<ClusterInner>, wake: Arc<Notify>) {
    for round in 0.. {
        let Some(cluster) = inner.upgrade() else {
            return;
        };
        if let Ok(Some(ranges)) = timeout(PROBE_TIMEOUT, cluster.ask(round)).await {
            cluster.adopt(&ranges);
        }
        let map = cluster.map.load_full();
        if !*cluster.asked.borrow() {
            for node in &map.nodes {
                node.link.settled().await;
            }
            cluster.asked.send_replace(true);
        }
        drop(cluster);
        sleep(PROBE_EVERY).await;
        if map.is_whole() {
            drop(map);
            wake.notified().await;
        }
    }
}

/// Returns `address` with the transport of `like`.
fn elsewhere(like: &ConnectionAddr, address: &Address) -> ConnectionAddr {
    let Address { host, port } = address.clone();
    match like {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}

fn address_of(address: &ConnectionAddr) -> Option<Address> {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some(Address {
                host: host.clone(),
                port: *port,
            })
        }
        _ => None,
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // usable.
    mutex.lock()
}
