//! Answers of receivers, kept until they are reported to the throttles, so that a refused key finds
//! its rate.
//!
//! Only watched lanes, of which a throttle has learned something, and answers that carry a quota
//! are recorded; all others need no report.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::shared::WorkerContext;
use crate::jobs::JobInfo;
use crate::throttle::{KeyOutcomes, Name, Quota};

/// Most lanes watched at once.
const MAX_WATCHED: usize = 100_000;

/// Pauses before a failed report is sent again; after the last one the report is dropped.
const REPORT_RETRY_DELAYS: [Duration; 2] = [Duration::from_millis(20), Duration::from_millis(200)];

/// The end of a job, as reported to the throttles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    Succeeded,
    /// Any other end.
    Failed,
}

/// Recorded answers that await their report.
#[derive(Default)]
pub(super) struct Completions {
    noted: Mutex<CompletionsInner>,
    /// True while some lane is watched.
    watching: AtomicBool,
    wake: Notify,
}

#[derive(Default)]
struct CompletionsInner {
    watched: HashSet<i64>,
    tallies: BTreeMap<Name, BTreeMap<String, Tally>>,
    /// Lanes whose answers were sent since the dispatcher last asked.
    heard: Vec<i64>,
}

/// The answers of one key.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    lane_id: i64,
    succeeded: u32,
    tokens: f64,
    failed: u32,
    quota: Option<Quota>,
    is_hearsay: bool,
}

impl Completions {
    /// Starts or stops recording the ends of a lane's jobs.
    pub(super) fn watch(&self, lane_id: i64, is_watched: bool) {
        if !is_watched && !self.watching.load(Ordering::Relaxed) {
            return;
        }
        let mut noted = self.lock();
        if is_watched {
            // Lanes that are still watched are marked again by their next grant.
            if noted.watched.len() >= MAX_WATCHED {
                noted.watched.clear();
            }
            noted.watched.insert(lane_id);
        } else {
            noted.watched.remove(&lane_id);
        }
        self.watching
            .store(!noted.watched.is_empty(), Ordering::Relaxed);
    }

    /// Records the end of a job if its lane is watched or the answer carries a quota.
    pub(super) fn note(&self, lane_id: i64, job: &JobInfo, answer: Completion) {
        let quota = job.attempt_report().quota;
        if quota.is_none() && !self.watching.load(Ordering::Relaxed) {
            return;
        }
        let mut noted = self.lock();
        if !noted.watched.contains(&lane_id) && quota.is_none() {
            return;
        }
        let Ok(throttle) = Name::new(job.throttle.clone()) else {
            return;
        };
        let tally = noted
            .tallies
            .entry(throttle)
            .or_default()
            .entry(job.key.clone())
            .or_default();
        tally.lane_id = lane_id;
        match answer {
            Completion::Succeeded => {
                tally.succeeded += 1;
                tally.tokens += job.cost;
            }
            Completion::Failed => tally.failed += 1,
        }
        if quota.is_some() {
            (tally.quota, tally.is_hearsay) = (quota, job.attempt_report().is_hearsay);
        }
        drop(noted);
        self.wake.notify_one();
    }

    /// Records that granted jobs of a lane did not begin.
    pub(super) fn unused(&self, lane_id: i64, throttle: &Name, key: &str, jobs: u32) {
        let mut noted = self.lock();
        let tally = noted
            .tallies
            .entry(throttle.clone())
            .or_default()
            .entry(key.to_owned())
            .or_default();
        tally.lane_id = lane_id;
        tally.failed += jobs;
        drop(noted);
        self.wake.notify_one();
    }

    /// Returns the lanes whose answers were sent since the last call; they may be granted jobs now.
    pub(super) fn take_acknowledged(&self) -> Vec<i64> {
        std::mem::take(&mut self.lock().heard)
    }

    fn lock(&self) -> MutexGuard<'_, CompletionsInner> {
        self.noted.lock()
    }
}

/// Reports the recorded answers to the throttles, as fast as these accept them, until cancelled.
pub(super) async fn report_completions(shared: Arc<WorkerContext>, cancel: CancellationToken) {
    while !cancel.is_cancelled() {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = shared.answers.wake.notified() => {}
        }
        let tallies = std::mem::take(&mut shared.answers.lock().tallies);
        for (throttle, tallies) in &tallies {
            report_tallies(&shared, throttle, tallies).await;
        }
    }
}

async fn report_tallies(
    shared: &WorkerContext,
    throttle: &Name,
    tallies: &BTreeMap<String, Tally>,
) {
    let ended: Vec<KeyOutcomes<'_>> = tallies
        .iter()
        .map(|(key, tally)| tally.ended(key))
        .collect();
    for pause in REPORT_RETRY_DELAYS.into_iter().map(Some).chain([None]) {
        match (shared.throttles.ended(throttle, &ended).await, pause) {
            (Ok(()), _) => break,
            (Err(_), Some(pause)) => tokio::time::sleep(pause).await,
            (Err(error), None) => {
                tracing::debug!(throttle.name = %throttle, %error, "reporting job outcomes to the throttles failed");
            }
        }
    }
    shared
        .answers
        .lock()
        .heard
        .extend(tallies.values().map(|tally| tally.lane_id));
    shared.running.ended.notify_one();
}

impl Tally {
    fn ended<'a>(&self, key: &'a str) -> KeyOutcomes<'a> {
        let Self {
            succeeded,
            tokens,
            failed,
            quota,
            is_hearsay,
            ..
        } = *self;
        KeyOutcomes {
            key,
            succeeded,
            tokens,
            failed,
            quota,
            is_hearsay,
        }
    }
}
