//! Live state: the last ten minutes of ticks, the latest sample, and a broadcast to all listeners.

use crate::throttle::RateLimit;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, MutexGuard};
use serde::Serialize;
use tokio::sync::broadcast;

use super::live_sample::{LiveSample, rank};
use crate::api::http::places::{PlacePermit, PlaceShares, Places};
use crate::governor::Phase;

/// The most ticks that are kept: ten minutes.
pub const TICKS_MAX: usize = 600;
/// The largest history that a listener gets at once, in bytes; the newest ticks are kept.
const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The most live streams of one process.
pub const STREAMS_MAX: usize = 64;
/// The shares of the live streams: some are left to administrators.
const STREAM_SHARES: PlaceShares = PlaceShares {
    all: STREAMS_MAX,
    others: STREAMS_OF_OTHERS,
    tenant: STREAMS_OF_TENANT,
    one: STREAMS_OF_ONE,
};
/// The most throttles in one tick that a listener gets.
pub const TICK_THROTTLES_MAX: usize = 200;
/// The last ticks that are kept whole, for listeners of a part of them. A listener that is behind
/// these gets its part of the throttles that all others get.
const WHOLE_TICKS_MAX: usize = 4;
/// The most live streams of one token that is not unrestricted.
const STREAMS_OF_ONE: usize = 16;
/// The most live streams of all such tokens of one tenant.
pub const STREAMS_OF_TENANT: usize = 24;
/// The most live streams of all such tokens together; the rest is for administrators.
const STREAMS_OF_OTHERS: usize = 48;
/// The most events by which a slow listener may lag before its stream ends; it reconnects and gets
/// the history.
const LAG_MAX: usize = 256;

/// One second of all throttles.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Tick {
    /// Unix seconds; also the id of the event.
    pub at: i64,
    /// The throttles, by name.
    pub throttles: BTreeMap<String, TickThrottle>,
    /// Jobs that hold a lease, over all throttles.
    pub running_total: i64,
    /// Live workers.
    pub workers: i64,
    /// Age of the depths in seconds; `null` before the first count.
    pub depth_age_s: Option<f64>,
    /// True while the store of the throttles (Redis) does not answer.
    pub store_lost: bool,
    /// True while Postgres does not answer, or accepts no writes, so that no job starts.
    pub queue_unwritable: bool,
    /// The replica from which lists are read; `null` without one.
    pub replica: Option<TickReplica>,
}

impl Tick {
    /// Returns the tick with the throttles whose names are wanted, and with the jobs that run there
    /// as the total.
    pub fn part(&self, is_wanted: impl Fn(&str) -> bool) -> Self {
        let wanted = self.throttles.iter().filter(|(name, _)| is_wanted(name));
        let part = self.with(wanted);
        Self {
            running_total: part.throttles.values().map(|one| one.running).sum(),
            ..part
        }
    }

    /// Returns the tick with at most `max` throttles: governed ones first, then busy ones, and
    /// those of tenants and of the API's limits last.
    pub fn cut(&self, max: usize) -> Self {
        let mut all: Vec<(&String, &TickThrottle)> = self.throttles.iter().collect();
        if all.len() > max {
            all.sort_by_key(|(name, one)| {
                rank(name, one.breaker.is_some(), one.ready + one.running > 0)
            });
            all.truncate(max);
        }
        self.with(all.into_iter())
    }

    fn with<'a>(&self, throttles: impl Iterator<Item = (&'a String, &'a TickThrottle)>) -> Self {
        Self {
            at: self.at,
            throttles: throttles
                .map(|(name, one)| (name.clone(), one.clone()))
                .collect(),
            running_total: self.running_total,
            workers: self.workers,
            depth_age_s: self.depth_age_s,
            store_lost: self.store_lost,
            queue_unwritable: self.queue_unwritable,
            replica: self.replica,
        }
    }
}

/// The replica from which lists are read, at one second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TickReplica {
    /// Seconds by which it lags; `null` while unknown.
    pub lag_s: Option<f64>,
    /// False while lists are read from the primary.
    pub used: bool,
}

/// One second of one throttle.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TickThrottle {
    /// The knob `rps`, in tokens per second; `null` if it could not be read.
    #[schema(value_type = Option<f64>)]
    pub rps: Option<RateLimit>,
    /// The rate in force, in tokens per second: 0 stopped, -1 unlimited.
    #[schema(value_type = Option<f64>)]
    pub effective_rps: Option<RateLimit>,
    /// The knob `concurrency`, the most jobs that may run at once: -1 unlimited; `null` if it could
    /// not be read.
    pub concurrency: Option<i64>,
    /// Tokens per second that were taken; `null` until known.
    pub achieved_rps: Option<f64>,
    /// Share of the time in which a job or a request waited for tokens.
    pub limiting_share: Option<f64>,
    /// The mode: `auto`, `manual`, `shadow` or `off`.
    pub mode: Option<String>,
    /// The state, as in a throttle.
    pub state: String,
    /// The state of the breaker: `closed`, `half_open` or `open`; `null` without a governor.
    #[schema(value_type = Option<String>, example = "closed")]
    pub breaker: Option<Phase>,
    /// Jobs that wait for tokens.
    pub ready: i64,
    /// Jobs that hold a lease.
    pub running: i64,
    /// Dead jobs.
    pub dead: i64,
    /// Seconds for which the oldest ready job has waited, from its creation or from the time for
    /// which it was enqueued; `null` where no job is ready.
    pub oldest_ready_s: Option<f64>,
    /// The signals, by name.
    pub signals: BTreeMap<String, TickSignal>,
}

/// One second of one signal.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TickSignal {
    /// The last reading.
    pub value: Option<f64>,
    /// The target of the reading.
    pub setpoint: f64,
    /// The threshold of the breaker.
    pub trip: f64,
    /// Age of the reading in seconds.
    pub age_s: Option<f64>,
    /// True if the reading is too old or unusable.
    pub stale: bool,
}

/// An event of the stream in its final form.
#[derive(Clone, Debug)]
pub struct StreamEvent {
    /// The name: `tick`, `decision`, `failure` or `audit`.
    pub name: &'static str,
    /// The id; only ticks have one.
    pub id: Option<i64>,
    /// The event as JSON.
    pub data: Arc<str>,
    /// The tick with the throttles that `data` has no room for; absent if it has all of them.
    pub whole: Option<Arc<Tick>>,
}

impl StreamEvent {
    /// Returns an event without an id; `None` for data that JSON cannot express.
    pub fn of(name: &'static str, data: &impl Serialize) -> Option<Self> {
        let text = serde_json::to_string(data).ok()?;
        Some(Self {
            name,
            id: None,
            data: text.into(),
            whole: None,
        })
    }

    /// Returns the event of a tick, with at most [`TICK_THROTTLES_MAX`] of its throttles as JSON.
    pub fn of_tick(tick: &Tick) -> Option<Self> {
        let is_cut = tick.throttles.len() > TICK_THROTTLES_MAX;
        let text = if is_cut {
            serde_json::to_string(&tick.cut(TICK_THROTTLES_MAX))
        } else {
            serde_json::to_string(tick)
        };
        Some(Self {
            name: "tick",
            id: Some(tick.at),
            data: text.ok()?.into(),
            whole: is_cut.then(|| Arc::new(tick.clone())),
        })
    }
}

/// The ring of ticks and the broadcast. A clone is another handle to the same state.
#[derive(Clone)]
pub struct Live(Arc<LiveInner>);

struct LiveInner {
    ring: Mutex<VecDeque<(i64, Arc<str>)>>,
    /// The last ticks that were cut, oldest first. They are not in the broadcast, where a slow
    /// listener would keep hundreds of them.
    whole: Mutex<VecDeque<Arc<Tick>>>,
    sender: broadcast::Sender<StreamEvent>,
    sample: ArcSwapOption<LiveSample>,
    places: Places,
}

/// A place among the live streams, released when dropped.
pub struct StreamPermit {
    live: Live,
    _place: PlacePermit,
}

impl StreamPermit {
    /// Adds to one of the last ticks what was cut from it.
    pub fn filled(&self, event: StreamEvent) -> StreamEvent {
        let whole = self.live.0.whole.lock();
        let found = whole.iter().find(|tick| Some(tick.at) == event.id);
        StreamEvent {
            whole: found.cloned(),
            ..event
        }
    }
}

impl Default for Live {
    fn default() -> Self {
        Self(Arc::new(LiveInner {
            ring: Mutex::new(VecDeque::with_capacity(TICKS_MAX)),
            whole: Mutex::default(),
            sender: broadcast::Sender::new(LAG_MAX),
            sample: ArcSwapOption::empty(),
            places: Places::with(STREAM_SHARES),
        }))
    }
}

impl Live {
    /// Stores a tick and sends it to all listeners.
    pub fn publish_tick(&self, tick: &Tick) {
        let Some(mut event) = StreamEvent::of_tick(tick) else {
            return;
        };
        if let Some(tick) = event.whole.take() {
            let mut whole = self.0.whole.lock();
            if whole.len() == WHOLE_TICKS_MAX {
                whole.pop_front();
            }
            whole.push_back(tick);
        }
        let mut ring = self.history_buffer();
        if ring.len() == TICKS_MAX {
            ring.pop_front();
        }
        ring.push_back((tick.at, event.data.clone()));
        // It is sent under the lock of the ring, so that a new listener gets each tick once: in its
        // history or as an event.
        let _ = self.0.sender.send(event);
    }

    /// Sends an event that is not stored.
    pub fn publish(&self, name: &'static str, data: &impl Serialize) {
        if let Some(event) = StreamEvent::of(name, data) {
            let _ = self.0.sender.send(event);
        }
    }

    /// Stores the latest sample, for the routes and the metrics.
    pub fn keep_sample(&self, sample: LiveSample) {
        self.0.sample.store(Some(Arc::new(sample)));
    }

    /// Returns the latest sample.
    pub fn sample(&self) -> Option<Arc<LiveSample>> {
        self.0.sample.load_full()
    }

    /// Returns the number of listeners.
    pub fn listeners(&self) -> usize {
        self.0.sender.receiver_count()
    }

    /// Takes a place among the [`STREAMS_MAX`] streams for a token; `None` if there is none. Each
    /// token that is not unrestricted has a share, and so have all of its tenant; all of them
    /// together leave some places to the others.
    pub fn place(&self, token: &str, tenant: Option<&str>, is_admin: bool) -> Option<StreamPermit> {
        let place = self.0.places.take(token, tenant, is_admin)?;
        Some(StreamPermit {
            live: self.clone(),
            _place: place,
        })
    }

    /// Returns the history after tick `after` (or all of it), with the id of its last tick, and a
    /// receiver of the events that follow.
    pub fn join(&self, after: Option<i64>) -> (StreamEvent, broadcast::Receiver<StreamEvent>) {
        let ring = self.history_buffer();
        let receiver = self.0.sender.subscribe();
        (history(&ring, after), receiver)
    }

    fn history_buffer(&self) -> MutexGuard<'_, VecDeque<(i64, Arc<str>)>> {
        self.0.ring.lock()
    }
}

fn history(ring: &VecDeque<(i64, Arc<str>)>, after: Option<i64>) -> StreamEvent {
    // An id from the future (from another machine's clock, or invented) must not hide everything.
    let after = after
        .filter(|after| ring.back().is_some_and(|(last, _)| after <= last))
        .unwrap_or(i64::MIN);
    let mut bytes = 0;
    let newest: Vec<&str> = ring
        .iter()
        .rev()
        .take_while(|(at, text)| {
            bytes += text.len() + 1;
            *at > after && bytes <= HISTORY_BYTES_MAX
        })
        .map(|(_, text)| &**text)
        .collect();
    let ticks: Vec<&str> = newest.into_iter().rev().collect();
    let data = format!("{{\"ticks\":[{}]}}", ticks.join(","));
    StreamEvent {
        name: "history",
        id: ring.back().map(|(at, _)| *at),
        data: data.into(),
        whole: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(at: i64) -> Tick {
        Tick {
            at,
            throttles: BTreeMap::new(),
            running_total: 0,
            workers: 0,
            depth_age_s: None,
            store_lost: false,
            queue_unwritable: false,
            replica: None,
        }
    }

    fn ticks(event: &StreamEvent) -> Vec<i64> {
        let value: serde_json::Value = serde_json::from_str(&event.data).unwrap();
        value["ticks"]
            .as_array()
            .unwrap()
            .iter()
            .map(|tick| tick["at"].as_i64().unwrap())
            .collect()
    }

    #[test]
    fn ten_minutes_are_kept_and_a_listener_is_replayed_what_it_missed() {
        let live = Live::default();
        for at in 0..700 {
            live.publish_tick(&tick(at));
        }

        assert_eq!(ticks(&live.join(None).0), (100..700).collect::<Vec<_>>());
        assert_eq!(ticks(&live.join(Some(697)).0), [698, 699]);
        assert_eq!(ticks(&live.join(Some(699)).0), Vec::<i64>::new());
        assert_eq!(ticks(&live.join(Some(5_000)).0).len(), TICKS_MAX);
        assert_eq!(live.join(None).0.id, Some(699));
    }

    #[test]
    fn a_tick_is_in_the_history_or_an_event_and_never_both() {
        let live = Live::default();
        live.publish_tick(&tick(1));
        let (history, mut events) = live.join(None);
        live.publish_tick(&tick(2));

        assert_eq!(ticks(&history), [1]);
        assert_eq!(events.try_recv().unwrap().id, Some(2));
        assert!(events.try_recv().is_err());
    }

    #[test]
    fn places_are_bounded_and_come_back() {
        let live = Live::default();
        let places: Vec<_> = std::iter::from_fn(|| live.place("a", None, true))
            .take(1000)
            .collect();
        assert_eq!(places.len(), STREAMS_MAX);
        drop(places);
        assert!(live.place("b", None, false).is_some());
    }

    #[test]
    fn one_token_cannot_take_the_places_of_the_others() {
        let live = Live::default();
        let take = |token: &'static str, is_admin: bool| {
            std::iter::from_fn(|| live.place(token, None, is_admin))
                .take(1000)
                .collect::<Vec<_>>()
        };
        let of_tokens = ["a", "b", "c", "d"].map(|token| take(token, false));
        assert_eq!(
            of_tokens.each_ref().map(Vec::len),
            [STREAMS_OF_ONE, STREAMS_OF_ONE, STREAMS_OF_ONE, 0]
        );
        assert_eq!(take("admin", true).len(), STREAMS_MAX - STREAMS_OF_OTHERS);
        drop(of_tokens);
        assert_eq!(take("d", false).len(), STREAMS_OF_ONE);
    }
    #[test]
    fn one_tenant_cannot_take_the_places_of_the_others() {
        let live = Live::default();
        let take = |token: &'static str, tenant: &'static str| {
            std::iter::from_fn(|| live.place(token, Some(tenant), false))
                .take(1000)
                .collect::<Vec<_>>()
        };
        let of_acme = ["a", "b", "c"].map(|token| take(token, "acme"));
        let held: usize = of_acme.iter().map(Vec::len).sum();
        assert_eq!(held, STREAMS_OF_TENANT);
        assert_eq!(take("d", "zeta").len(), STREAMS_OF_ONE);
        drop(of_acme);
        assert_eq!(take("a", "acme").len(), STREAMS_OF_ONE);
    }
}
