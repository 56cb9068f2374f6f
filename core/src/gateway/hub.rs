//! The hub: the open connections of this process and their channels.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use super::ask_pace::FramePace;
use super::channel_name::ChannelName;
use super::join_point::JoinPoint;
use super::outbox::Outbox;
use super::postgres::StoredMessage;
use super::server_frame::{self, Warning};
use super::subscription::{Arrived, ReadPlace, Subscription};
use super::tenant_mark::TenantMark;

/// The parts of the table of channels, each with a lock of its own.
const HUB_PARTS: usize = 64;

/// The shortest time between two warnings about the limit to one connection.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

/// The connections of one tenant that are woken before those of the next.
const WOKEN_MAX: usize = 32;

/// An open connection, as the hub sees it.
pub struct Peer {
    id: u64,
    pub tenant: Arc<TenantPeers>,
    state: Mutex<PeerState>,
    /// True while the connection stands in `TenantPeers::to_wake`.
    is_to_wake: AtomicBool,
    /// Wakes the connection when something waits for it.
    pub wake: Notify,
}

/// The frames that wait for a connection, and its subscriptions.
#[derive(Default)]
pub struct PeerState {
    pub outbox: Outbox<Bytes>,
    pub subscriptions: Vec<Subscription>,
    warned_at: Option<Instant>,
    /// The number of the last subscription.
    last_number: u32,
    /// The place in `subscriptions` at which the next reader that is behind is looked for.
    next_turn: usize,
}

/// The connections of one tenant.
#[derive(Default)]
pub struct TenantPeers {
    pub name: Arc<str>,
    mark: TenantMark,
    pub frames: FramePace,
    limited_until: Mutex<Option<Instant>>,
    /// Warnings that were not reported yet.
    warnings: Mutex<i64>,
    peers: Mutex<HashMap<u64, Arc<Peer>>>,
    /// The connections for which something came since they were woken last.
    to_wake: Mutex<VecDeque<Arc<Peer>>>,
}

/// A reader that is behind in a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BehindReader {
    pub channel: ChannelName,
    pub epoch: i64,
    /// The offset from which the history must be read.
    pub next: i64,
    /// True if the client has not been notified yet.
    pub is_news: bool,
}

type ChannelKey = (Arc<str>, ChannelName);

/// The open connections of this process. Share it in an [`Arc`].
pub struct Hub {
    hasher: RandomState,
    channels: Vec<Mutex<HashMap<ChannelKey, Vec<Arc<Peer>>>>>,
    tenants: Mutex<HashMap<Arc<str>, Arc<TenantPeers>>>,
    next_id: AtomicU64,
    /// The tenants with connections to wake; each stands here once.
    to_wake: Mutex<VecDeque<Arc<TenantPeers>>>,
    /// Tells of the first tenant with connections to wake.
    has_to_wake: Notify,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            channels: (0..HUB_PARTS).map(|_| Mutex::default()).collect(),
            tenants: Mutex::default(),
            next_id: AtomicU64::new(1),
            to_wake: Mutex::default(),
            has_to_wake: Notify::new(),
        }
    }
}

impl Peer {
    /// Locks what waits for the connection.
    pub fn state(&self) -> MutexGuard<'_, PeerState> {
        self.state.lock()
    }

    /// Returns the time until which messages of the tenant wait for its limit.
    pub fn limited_until(&self) -> Option<Instant> {
        self.tenant
            .limited_until
            .lock()
            .filter(|until| *until > Instant::now())
    }

    /// Warns about the limit of the tenant, at most once a second.
    fn warn(&self, frame: &Bytes, now: Instant) -> bool {
        let mut state = self.state();
        let is_due = state
            .warned_at
            .is_none_or(|at| now.duration_since(at) >= WARNING_INTERVAL);
        // A connection without room for a frame of control has worse trouble than a limit.
        let is_reported = is_due && state.outbox.push_control(frame.clone());
        if is_reported {
            state.warned_at = Some(now);
        }
        is_reported
    }
}

impl PeerState {
    /// Returns the subscription to a channel.
    pub fn subscription(&mut self, channel: &ChannelName) -> Option<&mut Subscription> {
        self.subscriptions
            .iter_mut()
            .find(|sub| sub.channel == *channel)
    }

    /// Returns a reader that is behind, once no frame of a channel waits before what it has missed.
    /// Readers take turns: one whose channel is faster than the client is behind for long.
    pub fn behind(&mut self) -> Option<BehindReader> {
        if !self.outbox.has_no_data() {
            return None;
        }
        let count = self.subscriptions.len();
        let mut places = (0..count).map(|n| (self.next_turn + n) % count);
        let (place, next) =
            places.find_map(|place| Some((place, self.subscriptions[place].behind()?)))?;
        self.next_turn = place + 1;
        let sub = &mut self.subscriptions[place];
        Some(BehindReader {
            channel: sub.channel.clone(),
            epoch: sub.epoch,
            next,
            is_news: !std::mem::replace(&mut sub.is_reported, true),
        })
    }

    /// Lets the subscription to a channel begin at its place; there is none without a history.
    pub fn join(&mut self, channel: &ChannelName, point: Option<&JoinPoint>) {
        if let Some(sub) = self.subscription(channel) {
            match point {
                Some(point) => point.join(sub),
                None => sub.place = ReadPlace::Unnumbered,
            }
        }
    }

    /// Notes that a reader got everything up to an offset from the history.
    pub fn caught_up(&mut self, behind: &BehindReader, last: i64) {
        if let Some(sub) = self.subscription(&behind.channel) {
            sub.advance(behind.epoch, last + 1);
        }
    }

    /// Takes the numbers of messages without offsets that were dropped, by channel.
    pub fn take_gaps(&mut self) -> Vec<(ChannelName, u32)> {
        let missed = self.subscriptions.iter_mut().filter(|sub| sub.missed > 0);
        missed
            .map(|sub| (sub.channel.clone(), std::mem::take(&mut sub.missed)))
            .collect()
    }

    /// Puts a gap in place of what waits of a channel: frames of control go first, so older messages
    /// would follow it. Where too many of these wait, it comes after them like a dropped message.
    fn report_gap(&mut self, channel: &ChannelName, frame: &Bytes) {
        let is_its = |sub: &&mut Subscription| sub.channel == *channel;
        let Some(sub) = self.subscriptions.iter_mut().find(is_its) else {
            return;
        };
        self.outbox.end(sub.number);
        if !self.outbox.push_control(frame.clone()) {
            sub.missed = sub.missed.saturating_add(1);
        }
    }

    /// Hands a message over; returns true if something waits for the connection now. `bare` is its
    /// frame without an offset, once that is needed.
    fn deliver(
        &mut self,
        message: &StoredMessage,
        frame: &Bytes,
        bare: &mut Option<Bytes>,
    ) -> bool {
        let is_its = |sub: &&mut Subscription| sub.channel == message.channel;
        let Some(sub) = self.subscriptions.iter_mut().find(is_its) else {
            return false;
        };
        if message.offset == 0 || sub.place == ReadPlace::Unnumbered {
            let frame = match message.offset {
                0 => frame,
                _ => &*bare.get_or_insert_with(|| server_frame::bare_message(message)),
            };
            let dropped = self.outbox.push_droppable(frame.clone(), sub.number);
            sub.missed = sub.missed.saturating_add(dropped);
            return true;
        }
        match sub.arrive(message.epoch, message.offset) {
            Arrived::Leave => false,
            Arrived::FellBehind => true,
            Arrived::Deliver => {
                match self.outbox.push(frame.clone(), sub.number) {
                    true => sub.sample(message.offset, Instant::now()),
                    false => sub.fall_behind(message.offset),
                }
                true
            }
        }
    }
}

impl Hub {
    /// Adds a connection of a tenant.
    pub fn join(&self, tenant: &Arc<str>) -> Arc<Peer> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut tenants = self.tenants.lock();
        let entry = tenants.entry(tenant.clone()).or_insert_with(|| {
            Arc::new(TenantPeers {
                name: tenant.clone(),
                mark: TenantMark::of(tenant),
                ..TenantPeers::default()
            })
        });
        let peer = Arc::new(Peer {
            id,
            tenant: entry.clone(),
            state: Mutex::default(),
            is_to_wake: AtomicBool::new(false),
            wake: Notify::new(),
        });
        entry.peers.lock().insert(id, peer.clone());
        peer
    }

    /// Removes a connection and its subscriptions.
    pub fn leave(&self, peer: &Arc<Peer>) {
        let subscriptions = std::mem::take(&mut peer.state().subscriptions);
        for sub in &subscriptions {
            self.remove(peer, &sub.channel);
        }
        let mut tenants = self.tenants.lock();
        let mut peers = peer.tenant.peers.lock();
        peers.remove(&peer.id);
        if peers.is_empty() {
            tenants.remove(&peer.tenant.name);
        }
    }

    /// Adds a subscription whose place is not known yet: messages that come meanwhile are noted.
    /// An earlier subscription of the connection to the channel ends, and its frames with offsets
    /// that wait are removed: they would come before what the client has missed, which the history
    /// has. Without `since` they are not sent at all.
    pub fn subscribe(&self, peer: &Arc<Peer>, channel: &ChannelName) {
        let is_new = {
            let mut state = peer.state();
            state.last_number += 1;
            let number = state.last_number;
            let fresh = Subscription::new(channel.clone(), number);
            let earlier = state.subscription(channel);
            match earlier.map(|sub| std::mem::replace(sub, fresh.clone())) {
                Some(ended) => {
                    state.outbox.forget(ended.number, number);
                    false
                }
                None => {
                    state.subscriptions.push(fresh);
                    true
                }
            }
        };
        if is_new {
            let key = (peer.tenant.name.clone(), channel.clone());
            let mut part = self.part(&key).lock();
            part.entry(key).or_default().push(peer.clone());
        }
    }

    /// Ends a subscription, of which nothing waits after that; returns false if there is none.
    pub fn unsubscribe(&self, peer: &Arc<Peer>, channel: &ChannelName) -> bool {
        let had = {
            let mut state = peer.state();
            let is_its = |sub: &Subscription| sub.channel == *channel;
            let place = state.subscriptions.iter().position(is_its);
            let ended = place.map(|place| state.subscriptions.remove(place));
            if let Some(ended) = &ended {
                state.outbox.end(ended.number);
            }
            ended.is_some()
        };
        if had {
            self.remove(peer, channel);
        }
        had
    }

    /// Hands a message to all its subscribers here; returns their number.
    pub fn deliver(&self, message: &StoredMessage) -> usize {
        let key = (Arc::from(message.tenant.as_str()), message.channel.clone());
        let part = self.part(&key).lock();
        let Some(peers) = part.get(&key) else {
            return 0;
        };
        let (frame, mut bare) = (server_frame::message(message), None);
        for peer in peers {
            if peer.state().deliver(message, &frame, &mut bare) {
                self.wake_in_turn(peer);
            }
        }
        peers.len()
    }

    /// Wakes connections as messages come for them, until it is dropped.
    ///
    /// Tenants take turns and those that were woken run before the next turn, so that a message
    /// for a few connections does not wait until the thousand connections of another tenant have
    /// written theirs.
    pub async fn wake_peers(&self) {
        loop {
            while self.wake_next() {
                tokio::task::yield_now().await;
            }
            self.has_to_wake.notified().await;
        }
    }

    /// Wakes some connections of the next tenant; returns false if there is none.
    fn wake_next(&self) -> bool {
        let Some(tenant) = self.to_wake.lock().pop_front() else {
            return false;
        };
        let (woken, has_more) = {
            let mut queue = tenant.to_wake.lock();
            let count = queue.len().min(WOKEN_MAX);
            let woken: Vec<Arc<Peer>> = queue.drain(..count).collect();
            (woken, !queue.is_empty())
        };
        if has_more {
            self.to_wake.lock().push_back(tenant);
        }
        for peer in woken {
            peer.is_to_wake.store(false, Ordering::Release);
            peer.wake.notify_one();
        }
        true
    }

    fn wake_in_turn(&self, peer: &Arc<Peer>) {
        if peer.is_to_wake.swap(true, Ordering::AcqRel) {
            return;
        }
        let is_first = {
            let mut queue = peer.tenant.to_wake.lock();
            queue.push_back(peer.clone());
            queue.len() == 1
        };
        if is_first {
            self.to_wake.lock().push_back(peer.tenant.clone());
            self.has_to_wake.notify_one();
        }
    }

    /// Returns the tenant with this mark, if it has connections here.
    pub(super) fn tenant_of(&self, mark: TenantMark) -> Option<Arc<str>> {
        let tenants = self.tenants.lock();
        let found = tenants.values().find(|entry| entry.mark == mark)?;
        Some(found.name.clone())
    }

    /// Returns the tenants that have connections here.
    pub(super) fn tenant_names(&self) -> Vec<Arc<str>> {
        self.tenants.lock().keys().cloned().collect()
    }

    /// Notes that messages of a tenant wait for `wait`, and warns its connections; returns the number
    /// of warnings. The note holds for a second at most, because it is made again.
    pub fn limit(&self, tenant: &str, wait: Duration) -> usize {
        let Some(entry) = self.tenants.lock().get(tenant).cloned() else {
            return 0;
        };
        let now = Instant::now();
        *entry.limited_until.lock() = Some(now + wait.min(WARNING_INTERVAL));
        // A day at most, because whoever may connect to the database can send such a note.
        let begun_s = u64::from(wait.subsec_millis() > 0);
        let wait_s = wait.as_secs().saturating_add(begun_s).clamp(1, 86_400);
        let frame = server_frame::warning(Warning::RateLimited { wait_s });
        let peers: Vec<Arc<Peer>> = entry.peers.lock().values().cloned().collect();
        let warned = peers.iter().filter(|peer| {
            let is_reported = peer.warn(&frame, now);
            if is_reported {
                self.wake_in_turn(peer);
            }
            is_reported
        });
        let warned = warned.count();
        *entry.warnings.lock() += warned as i64;
        warned
    }

    /// Lets all readers read what the history has after their places, because its end has gone
    /// back: they find that something is missing.
    pub fn restart(&self) {
        let tenants: Vec<Arc<TenantPeers>> = self.tenants.lock().values().cloned().collect();
        for tenant in tenants {
            let peers: Vec<Arc<Peer>> = tenant.peers.lock().values().cloned().collect();
            for peer in &peers {
                peer.state()
                    .subscriptions
                    .iter_mut()
                    .for_each(Subscription::doubt);
                self.wake_in_turn(peer);
            }
        }
    }

    /// Returns the inboxes that connections of this process read, each with its tenant.
    pub fn inboxes(&self) -> Vec<(Arc<str>, ChannelName)> {
        let mut inboxes = Vec::new();
        for part in &self.channels {
            let part = part.lock();
            let read = part.keys().filter(|(_, name)| name.recipient().is_some());
            inboxes.extend(read.cloned());
        }
        inboxes
    }

    /// Tells the readers of a channel that a message is missing, so that they load its state again;
    /// returns their number.
    pub fn report_gap(&self, tenant: &str, channel: &ChannelName) -> usize {
        let key = (Arc::from(tenant), channel.clone());
        let part = self.part(&key).lock();
        let Some(peers) = part.get(&key) else {
            return 0;
        };
        let frame = server_frame::gap(channel, 1);
        for peer in peers {
            peer.state().report_gap(channel, &frame);
            self.wake_in_turn(peer);
        }
        peers.len()
    }

    /// Returns the connections of each tenant, and takes the warnings that were not reported yet.
    pub fn reports(&self) -> Vec<(Arc<str>, usize, i64)> {
        let tenants: Vec<Arc<TenantPeers>> = self.tenants.lock().values().cloned().collect();
        tenants
            .iter()
            .map(|entry| {
                let warnings = std::mem::take(&mut *entry.warnings.lock());
                (entry.name.clone(), entry.peers.lock().len(), warnings)
            })
            .collect()
    }

    fn remove(&self, peer: &Arc<Peer>, channel: &ChannelName) {
        let key = (peer.tenant.name.clone(), channel.clone());
        let mut part = self.part(&key).lock();
        if let Some(peers) = part.get_mut(&key) {
            if let Some(place) = peers.iter().position(|one| Arc::ptr_eq(one, peer)) {
                peers.swap_remove(place);
            }
            if peers.is_empty() {
                part.remove(&key);
            } else if peers.capacity() > 4 * peers.len() {
                peers.shrink_to(2 * peers.len());
            }
        }
    }

    fn part(&self, key: &ChannelKey) -> &Mutex<HashMap<ChannelKey, Vec<Arc<Peer>>>> {
        &self.channels[self.hasher.hash_one(key) as usize % HUB_PARTS]
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
