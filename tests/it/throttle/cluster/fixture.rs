//! A throttle on a Redis Cluster under a recorded load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flyball::throttle::{Change, LaneRequest, Name, RedisStore, Status, Store};
use futures_util::FutureExt;
use tokio::task::JoinSet;

use crate::support::eventually;
use crate::support::redis_cluster::{PATIENCE, RedisCluster};
use crate::support::timeline::{Control, Habit, Timeline};

/// Longer than any pause of the machine, so no live server is declared dead.
pub const CALM: Duration = Duration::from_secs(30);

/// Short, for a failover within seconds.
pub const HASTY: Duration = Duration::from_secs(2);

/// The store's timeout.
pub const BOUND: Duration = Duration::from_millis(250);

/// A throttle of 200 per second that holds at most 50.
pub const FLOW: [(&str, &str); 4] = [
    ("rps", "200"),
    ("burst", "1"),
    ("window", "0.25"),
    ("on_store_loss", "closed"),
];

pub const RPS: f64 = 200.0;

pub const DEPTH: f64 = 50.0;

const HABIT: Habit = Habit {
    want: 5,
    rest: Duration::from_millis(4),
};

pub fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub fn change(fields: &[(&str, &str)]) -> Change {
    let fields: BTreeMap<_, _> = fields
        .iter()
        .map(|(field, text)| ((*field).to_owned(), Some((*text).to_owned())))
        .collect();
    Change {
        fields,
        by: "test".into(),
        why: "test".into(),
        create: true,
        ..Change::default()
    }
}

pub fn lane(key: &str, want: u32) -> LaneRequest {
    LaneRequest {
        key: key.into(),
        want,
        ..LaneRequest::default()
    }
}

pub fn store(cluster: &RedisCluster, bound: Duration) -> Arc<RedisStore> {
    Arc::new(
        RedisStore::connect(&cluster.url(), "")
            .unwrap()
            .with_bound(bound),
    )
}

/// Polls until the condition holds.
pub async fn until<F, Fut>(what: &str, mut is_so: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    eventually(what, PATIENCE, || is_so().map(|is_so| is_so.then_some(()))).await;
}

pub async fn set(store: &RedisStore, throttle: &str, fields: &[(&str, &str)]) {
    let change = change(fields);
    until("the knobs are set", async || {
        store.set(&name(throttle), &change).await.is_ok()
    })
    .await;
}

/// Returns the throttle's status, with retries in case a server is slow for a moment.
pub async fn look(store: &RedisStore, throttle: &str) -> Status {
    eventually("the knobs are there", PATIENCE, || async {
        store.status(&name(throttle)).await.ok()?
    })
    .await
}

/// Clients of one throttle and their grants.
pub struct Load {
    pub timeline: Timeline,
    pub stop: Arc<AtomicBool>,
    pub tasks: JoinSet<()>,
    pub control: Arc<Control>,
}

impl Load {
    pub fn new() -> Self {
        let (stop, control) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(Control::default()),
        );
        let mut tasks = JoinSet::new();
        tasks.spawn(control.clone().watch(stop.clone()));
        Self {
            timeline: Timeline::new(Instant::now()),
            stop,
            tasks,
            control,
        }
    }

    pub fn on(&mut self, throttle: &str, stores: &[Arc<RedisStore>]) -> Timeline {
        let timeline = self.timeline.beside();
        for (client, store) in stores.iter().enumerate() {
            self.tasks.spawn(timeline.clone().call(
                client,
                store.clone(),
                name(throttle),
                HABIT,
                self.stop.clone(),
            ));
        }
        timeline
    }

    pub fn now(&self) -> Duration {
        self.timeline.now()
    }

    pub async fn end(mut self) -> Arc<Control> {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("a client ended by itself");
        }
        self.control
    }
}

pub fn granted(timeline: &Timeline, from: Duration, to: Duration, is_stored: bool) -> u32 {
    timeline
        .within(from, to)
        .iter()
        .filter(|entry| entry.is_stored == is_stored)
        .map(|entry| entry.granted)
        .sum()
}
