//! The sender of events that are due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::FakeProvider;
use super::clock::Clock;
use super::crypt::Keys;
use super::event_forms::{EventPost, at_once, post};
use super::events::PendingEvent;
use super::wire::FormatState;

/// The most concurrent requests.
const MAX_CONCURRENT_POSTS: usize = 16;

/// The most attempts to post an event.
const MAX_POST_TRIES: u32 = 5;

/// Counters of the posted events.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub posted: AtomicU64,
    pub refused: AtomicU64,
}

/// The task that posts events.
pub(super) struct EventPoster {
    pub speaks: FakeProvider,
    pub format_state: Arc<FormatState>,
    pub keys: Arc<Keys>,
    pub secret: String,
    pub clock: Clock,
    pub client: reqwest::Client,
    pub counts: Arc<Counts>,
    pub stop: CancellationToken,
}

/// The events by due time; the number distinguishes events that are due at the same instant.
type Queue = BinaryHeap<Reverse<(Instant, u64)>>;

impl EventPoster {
    /// Posts incoming events when they are due, until the fake is stopped.
    pub(super) async fn run(self, mut coming: mpsc::UnboundedReceiver<(Duration, PendingEvent)>) {
        let me = Arc::new(self);
        let permits = Arc::new(Semaphore::new(MAX_CONCURRENT_POSTS));
        let (mut queue, mut waiting, mut number) = (Queue::new(), BTreeMap::new(), 0u64);
        loop {
            let next = queue.peek().map_or_else(
                || Instant::now() + Duration::from_secs(3_600),
                |Reverse((due, _))| *due,
            );
            tokio::select! {
                () = me.stop.cancelled() => return,
                came = coming.recv() => {
                    let Some((delay, message)) = came else { return };
                    number += 1;
                    queue.push(Reverse((Instant::now() + delay, number)));
                    waiting.insert(number, message);
                }
                () = sleep_until(next) => {
                    let mut due: BTreeMap<String, Vec<PendingEvent>> = BTreeMap::new();
                    while let Some(Reverse((at, number))) = queue.peek().copied().filter(|Reverse((at, _))| *at <= Instant::now()) {
                        let _ = at;
                        queue.pop();
                        if let Some(message) = waiting.remove(&number) {
                            due.entry(message.callback.clone()).or_default().push(message);
                        }
                    }
                    for message in due.into_values().flat_map(|message| message.chunks(at_once(me.speaks)).map(<[_]>::to_vec).collect::<Vec<_>>()) {
                        let Ok(permit) = permits.clone().acquire_owned().await else { return };
                        let me = me.clone();
                        tokio::spawn(async move {
                            let stop = me.stop.clone();
                            tokio::select! {
                                () = stop.cancelled() => {}
                                () = me.deliver(&message) => {}
                            }
                            drop(permit);
                        });
                    }
                }
            }
        }
    }

    async fn deliver(&self, message: &[PendingEvent]) {
        for nth in 1..=MAX_POST_TRIES {
            let now_ms = self.clock.now_ms();
            let Some(post) = post(
                self.speaks,
                message,
                &self.format_state,
                &self.keys,
                &self.secret,
                now_ms,
            ) else {
                return;
            };
            match send(&self.client, post).await {
                Some(200..=299) => {
                    self.counts
                        .posted
                        .fetch_add(message.len() as u64, Ordering::Relaxed);
                    return;
                }
                _ => {
                    self.counts
                        .refused
                        .fetch_add(message.len() as u64, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(200) * 2u32.pow(nth)).await;
                }
            }
        }
    }
}

/// Sends a request and returns the status of the answer; `None` without an answer.
pub(super) async fn send(client: &reqwest::Client, post: EventPost) -> Option<u16> {
    let mut request = client
        .post(&post.url)
        .timeout(Duration::from_secs(10))
        .body(post.body);
    for (name, value) in post.headers {
        request = request.header(name, value);
    }
    request
        .send()
        .await
        .ok()
        .map(|answer| answer.status().as_u16())
}
