//! The grants of a throttle, call by call, compared with the commanded rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flyball::throttle::{AcquireRequest, LaneRequest, Limit, Name, Store};

/// One call of a client.
#[derive(Clone, Copy)]
pub struct Entry {
    pub client: usize,
    /// The time of the call, since the beginning of the timeline.
    pub begin: Duration,
    /// The time of the answer, since the beginning of the timeline.
    pub end: Duration,
    pub granted: u32,
    /// False if the answer did not come from the store.
    pub is_stored: bool,
}

/// All calls for one throttle, in the order of their answers.
#[derive(Clone)]
pub struct Timeline {
    start: Instant,
    entries: Arc<Mutex<Vec<Entry>>>,
}

/// A client: it asks for `want` units, sleeps for `rest`, and repeats.
#[derive(Clone, Copy)]
pub struct Habit {
    pub want: u32,
    pub rest: Duration,
}

impl Timeline {
    pub fn new(start: Instant) -> Self {
        Self {
            start,
            entries: Arc::default(),
        }
    }

    /// Creates another timeline with the same start.
    pub fn beside(&self) -> Self {
        Self::new(self.start)
    }

    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Calls the store until `stop` is set.
    pub async fn call(
        self,
        client: usize,
        store: Arc<dyn Store>,
        throttle: Name,
        habit: Habit,
        stop: Arc<AtomicBool>,
    ) {
        let lanes = vec![LaneRequest {
            want: habit.want,
            ..LaneRequest::default()
        }];
        let ask = AcquireRequest {
            throttle,
            lanes,
            holder: None,
        };
        while !stop.load(Ordering::Relaxed) {
            let begin = self.now();
            let answer = store.acquire(&ask).await;
            let is_stored = answer.at_us != 0 && answer.lanes[0].limit != Some(Limit::StoreLost);
            let entry = Entry {
                client,
                begin,
                end: self.now(),
                granted: answer.lanes[0].granted,
                is_stored,
            };
            self.entries.lock().unwrap().push(entry);
            tokio::time::sleep(habit.rest).await;
        }
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap().clone()
    }

    /// Returns the calls that began and were answered within the span.
    pub fn within(&self, from: Duration, to: Duration) -> Vec<Entry> {
        self.entries()
            .into_iter()
            .filter(|entry| entry.begin >= from && entry.end <= to)
            .collect()
    }

    pub fn longest(&self) -> Duration {
        self.entries()
            .iter()
            .map(|entry| entry.end - entry.begin)
            .max()
            .unwrap_or_default()
    }

    /// Returns the largest excess over `rps` in any interval of the span, in units.
    ///
    /// Only calls that began and ended inside an interval count; those were certainly granted in
    /// it.
    pub fn beyond(&self, rps: f64, from: Duration, to: Duration) -> f64 {
        const STEP: Duration = Duration::from_millis(20);
        let entries: Vec<Entry> = self
            .within(from, to)
            .into_iter()
            .filter(|entry| entry.is_stored)
            .collect();
        let steps = ((to - from).as_nanos() / STEP.as_nanos()) as usize + 1;
        let mut worst = f64::MIN;
        for first in 0..steps {
            let begin = from + STEP * first as u32;
            let mut ended = vec![0; steps + 1];
            for entry in entries.iter().filter(|entry| entry.begin >= begin) {
                let step = (entry.end - from).as_nanos().div_ceil(STEP.as_nanos()) as usize;
                ended[step.min(steps)] += entry.granted;
            }
            let mut granted = 0.0;
            for (step, ended) in ended.iter().enumerate().skip(first) {
                granted += f64::from(*ended);
                worst = worst.max(granted - rps * STEP.as_secs_f64() * (step - first) as f64);
            }
        }
        worst
    }

    /// Formats one line per 100 ms: the units granted by the store, those granted without it, and
    /// the longest call that ended in it.
    pub fn table(&self, title: &str, events: &[(Duration, &str)]) -> String {
        const WINDOW: Duration = Duration::from_millis(100);
        let entries = self.entries();
        let windows = entries
            .iter()
            .map(|entry| entry.end.as_millis() / WINDOW.as_millis())
            .max()
            .unwrap_or(0)
            + 1;
        let mut text = format!("{title}\n    ms  by the store  without it  longest call, ms\n");
        for window in 0..windows as u32 {
            let (from, to) = (WINDOW * window, WINDOW * (window + 1));
            let ended: Vec<&Entry> = entries
                .iter()
                .filter(|entry| (from..to).contains(&entry.end))
                .collect();
            let granted = |is_stored| {
                ended
                    .iter()
                    .filter(|e| e.is_stored == is_stored)
                    .map(|e| e.granted)
                    .sum::<u32>()
            };
            let longest = ended
                .iter()
                .map(|entry| entry.end - entry.begin)
                .max()
                .unwrap_or_default();
            let output = events
                .iter()
                .filter(|(at, _)| (from..to).contains(at))
                .map(|(_, event)| format!("  <- {event}"));
            text += &format!(
                "{:6}  {:12}  {:10}  {:16.1}{}\n",
                from.as_millis(),
                granted(true),
                granted(false),
                longest.as_secs_f64() * 1e3,
                output.collect::<String>()
            );
        }
        text
    }
}

/// The timing precision of the machine during a test: a task that sleeps and measures how late it
/// wakes.
#[derive(Default)]
pub struct Control {
    worst_us: AtomicU64,
    stalls: AtomicU64,
}

impl Control {
    /// The shortest delay that counts as a stall.
    pub const STALL: Duration = Duration::from_millis(20);

    pub async fn watch(self: Arc<Self>, stop: Arc<AtomicBool>) {
        const NAP: Duration = Duration::from_millis(5);
        while !stop.load(Ordering::Relaxed) {
            let begin = Instant::now();
            tokio::time::sleep(NAP).await;
            let late = begin.elapsed().saturating_sub(NAP);
            self.worst_us
                .fetch_max(late.as_micros() as u64, Ordering::Relaxed);
            self.stalls
                .fetch_add(u64::from(late >= Self::STALL), Ordering::Relaxed);
        }
    }

    /// Returns the longest time that a call with the timeout `bound` may seem to take on this
    /// machine.
    pub fn allows(&self, bound: Duration) -> Duration {
        bound
            + 3 * Duration::from_micros(self.worst_us.load(Ordering::Relaxed))
            + Duration::from_millis(200)
    }

    pub fn stalls(&self) -> usize {
        self.stalls.load(Ordering::Relaxed) as usize
    }
}
