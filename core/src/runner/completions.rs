//! Answers of receivers, kept until they are reported to the throttles, so that a refused key finds
//! its rate.
//!
//! Only watched lanes, of which a throttle has learned something, and answers that carry a quota
//! are recorded; all others need no report.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::jobs::JobInfo;
use crate::throttle::{KeyOutcomes, Name, Quota};

/// Most lanes watched at once.
const MAX_WATCHED: usize = 100_000;

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
    pub(super) wake: Notify,
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
pub(super) struct Tally {
    pub(super) lane_id: i64,
    succeeded: u32,
    tokens: f64,
    failed: u32,
    /// The time at which the last of them began.
    begun: Option<Instant>,
    quota: Option<Quota>,
    is_untrusted: bool,
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

    /// Records the end of a job that ran since `begun` if its lane is watched or the answer carries
    /// a quota.
    pub(super) fn note(
        &self,
        lane_id: i64,
        job: &JobInfo,
        begun: Option<Instant>,
        answer: Completion,
    ) {
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
        tally.begun = tally.begun.max(begun);
        match answer {
            Completion::Succeeded => {
                tally.succeeded += 1;
                tally.tokens += job.cost;
            }
            Completion::Failed => tally.failed += 1,
        }
        if quota.is_some() {
            (tally.quota, tally.is_untrusted) = (quota, job.attempt_report().is_untrusted);
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

    pub(super) fn take_tallies(&self) -> BTreeMap<Name, BTreeMap<String, Tally>> {
        std::mem::take(&mut self.lock().tallies)
    }

    /// Notes that the answers of these lanes were sent.
    pub(super) fn acknowledge(&self, lanes: impl Iterator<Item = i64>) {
        self.lock().heard.extend(lanes);
    }

    fn lock(&self) -> MutexGuard<'_, CompletionsInner> {
        self.noted.lock()
    }
}

impl Tally {
    pub(super) fn ended<'a>(&self, key: &'a str) -> KeyOutcomes<'a> {
        let Self {
            succeeded,
            tokens,
            failed,
            begun,
            quota,
            is_untrusted,
            ..
        } = *self;
        KeyOutcomes {
            key,
            succeeded,
            tokens,
            failed,
            begun_ago: begun.map(|begun| begun.elapsed()),
            quota,
            is_untrusted,
        }
    }
}
