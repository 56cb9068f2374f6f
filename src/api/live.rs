//! What happens now: the last ten minutes of ticks, the latest sample, and a broadcast to whoever listens.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use serde::Serialize;
use tokio::sync::broadcast;

use super::sample::Sample;

/// Ticks that are kept: ten minutes.
pub const TICKS_MAX: usize = 600;
/// The largest history that a listener gets at once, in bytes; the newest ticks are kept.
const HISTORY_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Live streams of one process.
pub const STREAMS_MAX: usize = 64;
/// Live streams of one token that may not do everything,
const STREAMS_OF_ONE: usize = 16;
/// and of all such tokens together: the rest is for administrators.
const STREAMS_OF_OTHERS: usize = 48;
/// Events that a slow listener may lag behind before its stream ends (it comes back and is replayed).
const LAG_MAX: usize = 256;

/// One second of all throttles.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Tick {
    /// Unix seconds; also the id of the event.
    pub at: i64,
    /// By name.
    pub throttles: BTreeMap<String, TickThrottle>,
    /// Jobs that hold a lease, over all throttles.
    pub running_total: i64,
    /// Live workers.
    pub workers: i64,
    /// Age of the figures of depth in seconds; `null` before the first count.
    pub depth_age_s: Option<f64>,
}

/// One second of one throttle.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TickThrottle {
    /// The knob; `null` when it could not be read.
    pub rps: Option<f64>,
    /// The rate in force: 0 stopped, -1 unlimited.
    pub effective_rps: Option<f64>,
    /// The knob of how many jobs may run at once: -1 unlimited; `null` when it could not be read.
    pub concurrency: Option<i64>,
    /// Tokens per second that were really taken; `null` until known.
    pub achieved_rps: Option<f64>,
    /// Share of the time in which somebody waited for tokens.
    pub limiting_share: Option<f64>,
    /// `auto`, `manual`, `shadow` or `off`.
    pub mode: Option<String>,
    /// As in a throttle.
    pub state: String,
    /// `closed`, `half_open` or `open`; `null` without a governor.
    pub breaker: Option<String>,
    /// Jobs that wait for tokens.
    pub ready: i64,
    /// Jobs that hold a lease.
    pub running: i64,
    /// Dead letters.
    pub dead: i64,
    /// Seconds since the oldest ready job was enqueued; `null` where no job is ready.
    pub oldest_ready_s: Option<f64>,
    /// By name.
    pub signals: BTreeMap<String, TickSignal>,
}

/// One second of one signal.
#[derive(Clone, Debug, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TickSignal {
    /// The last reading.
    pub value: Option<f64>,
    /// Where it shall be.
    pub setpoint: f64,
    /// Where the breaker trips.
    pub trip: Option<f64>,
    /// Age of the reading in seconds.
    pub age_s: Option<f64>,
    /// True when the reading is too old or unusable.
    pub stale: bool,
}

/// An event of the stream, ready to be sent.
#[derive(Clone, Debug)]
pub struct Event {
    /// `tick`, `decision`, `failure` or `audit`.
    pub name: &'static str,
    /// The id, which only ticks have.
    pub id: Option<i64>,
    /// JSON.
    pub data: Arc<str>,
}

/// The ring of ticks and the broadcast. A clone is another handle to the same.
#[derive(Clone)]
pub struct Live(Arc<Inner>);

struct Inner {
    ring: Mutex<VecDeque<(i64, Arc<str>)>>,
    sender: broadcast::Sender<Event>,
    sample: ArcSwapOption<Sample>,
    /// Open streams by the digest of their token, with whether it may do everything.
    streams: Mutex<BTreeMap<(bool, String), usize>>,
}

/// A place among the live streams, given back when it is dropped.
pub struct Seat {
    live: Live,
    of: (bool, String),
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut streams = self.live.streams();
        if let Some(open) = streams.get_mut(&self.of) {
            *open -= 1;
            if *open == 0 {
                streams.remove(&self.of);
            }
        }
    }
}

impl Default for Live {
    fn default() -> Self {
        Self(Arc::new(Inner {
            ring: Mutex::new(VecDeque::with_capacity(TICKS_MAX)),
            sender: broadcast::Sender::new(LAG_MAX),
            sample: ArcSwapOption::empty(),
            streams: Mutex::default(),
        }))
    }
}

impl Live {
    /// Keeps a tick and sends it to whoever listens.
    pub fn publish_tick(&self, tick: &Tick) {
        let Ok(text) = serde_json::to_string(tick) else {
            return;
        };
        let data: Arc<str> = text.into();
        let mut ring = self.ring();
        if ring.len() == TICKS_MAX {
            ring.pop_front();
        }
        ring.push_back((tick.at, data.clone()));
        // Sent while the ring is held, so that a listener that joins gets each tick once: in its history or as an event.
        let _ = self.0.sender.send(Event {
            name: "tick",
            id: Some(tick.at),
            data,
        });
    }

    /// Sends an event that is not kept.
    pub fn publish(&self, name: &'static str, data: &impl Serialize) {
        if let Ok(text) = serde_json::to_string(data) {
            let _ = self.0.sender.send(Event {
                name,
                id: None,
                data: text.into(),
            });
        }
    }

    /// Keeps the latest sample, for the routes and the metrics.
    pub fn keep_sample(&self, sample: Sample) {
        self.0.sample.store(Some(Arc::new(sample)));
    }

    /// The latest sample.
    pub fn sample(&self) -> Option<Arc<Sample>> {
        self.0.sample.load_full()
    }

    /// Listeners now.
    pub fn listeners(&self) -> usize {
        self.0.sender.receiver_count()
    }

    /// A place among the [`STREAMS_MAX`] streams for a token, held until it is dropped. Tokens that may not do everything have a share
    /// each, and leave some for those that may.
    pub fn place(&self, token: &str, is_admin: bool) -> Option<Seat> {
        let mut streams = self.streams();
        let (all, of_others) = streams
            .iter()
            .fold((0, 0), |(all, others), ((admin, _), open)| {
                (all + open, others + if *admin { 0 } else { *open })
            });
        let of = (is_admin, token.to_owned());
        let own = streams.get(&of).copied().unwrap_or(0);
        let is_free = all < STREAMS_MAX
            && (is_admin || own < STREAMS_OF_ONE && of_others < STREAMS_OF_OTHERS);
        if !is_free {
            return None;
        }
        streams.insert(of.clone(), own + 1);
        Some(Seat {
            live: self.clone(),
            of,
        })
    }

    fn streams(&self) -> MutexGuard<'_, BTreeMap<(bool, String), usize>> {
        // The map is whole between any two statements, so a poisoned lock is still good.
        self.0
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins: the history after tick `after` (or all of it), with the id of its last tick, and what comes next.
    pub fn join(&self, after: Option<i64>) -> (Event, broadcast::Receiver<Event>) {
        let ring = self.ring();
        let receiver = self.0.sender.subscribe();
        (history(&ring, after), receiver)
    }

    fn ring(&self) -> MutexGuard<'_, VecDeque<(i64, Arc<str>)>> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn history(ring: &VecDeque<(i64, Arc<str>)>, after: Option<i64>) -> Event {
    // An id from the future (another machine's clock, or an invention) must not hide everything.
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
    Event {
        name: "history",
        id: ring.back().map(|(at, _)| *at),
        data: data.into(),
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
        }
    }

    fn ticks(event: &Event) -> Vec<i64> {
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
        let places: Vec<_> = std::iter::from_fn(|| live.place("a", true))
            .take(1000)
            .collect();
        assert_eq!(places.len(), STREAMS_MAX);
        drop(places);
        assert!(live.place("b", false).is_some());
    }

    #[test]
    fn one_token_cannot_take_the_places_of_the_others() {
        let live = Live::default();
        let take = |token: &'static str, is_admin: bool| {
            std::iter::from_fn(|| live.place(token, is_admin))
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
}
