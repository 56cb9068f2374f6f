//! The running jobs, with the reason for which each was asked to stop.
//!
//! A run is identified by job and fence: a job that was taken from this worker may come back to it
//! while the old run is still stopping, and the two must not be mixed up.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::ids::IdMap;

/// The reason for which a running job was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    /// The job was cancelled.
    Cancelled,
    /// The worker is stopping.
    Draining,
    /// The worker lost its leases.
    Fenced,
}

struct RunningEntry {
    lane_id: i64,
    token: CancellationToken,
    stop: Option<StopReason>,
}

/// The stage of a run.
enum RunStage {
    Running(RunningEntry),
    /// It has ended, and its end is not written yet.
    Unwritten,
}

#[derive(Default)]
struct Entries {
    by_run: IdMap<RunStage, RunId>,
    /// Number of runs that have not ended.
    running: usize,
    /// Lanes of jobs that ended since the dispatcher last asked, one entry per job.
    ended: Vec<i64>,
}

/// A job, and the fence of the lease under which it runs.
pub(super) type RunId = (i64, i64);

/// The running jobs. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct RunningJobs {
    entries: Arc<Mutex<Entries>>,
    /// Notified whenever a job ends.
    pub(super) ended: Arc<Notify>,
}

impl RunningJobs {
    /// Adds runs, each with its lane; returns one token per run, in their order.
    pub(super) fn begin(&self, runs: impl Iterator<Item = (RunId, i64)>) -> Vec<CancellationToken> {
        let mut entries = self.lock();
        let begin = |(run, lane_id)| {
            let token = CancellationToken::new();
            let entry = RunningEntry {
                lane_id,
                token: token.clone(),
                stop: None,
            };
            entries.by_run.insert(run, RunStage::Running(entry));
            token
        };
        let tokens: Vec<CancellationToken> = runs.map(begin).collect();
        entries.running += tokens.len();
        tokens
    }

    /// Removes a run; returns the reason for which it was asked to stop, if any.
    pub(super) fn end(&self, run: RunId) -> Option<StopReason> {
        let mut entries = self.lock();
        let stage = entries.by_run.get_mut(&run);
        let ended = stage.map(|stage| std::mem::replace(stage, RunStage::Unwritten));
        let mut stop = None;
        if let Some(RunStage::Running(entry)) = ended {
            entries.running -= 1;
            entries.ended.push(entry.lane_id);
            stop = entry.stop;
        }
        drop(entries);
        self.ended.notify_one();
        stop
    }

    /// Removes a run whose job goes on elsewhere: its lane still holds it.
    pub(super) fn handed_over(&self, run: RunId) {
        let mut entries = self.lock();
        if let Entry::Occupied(entry) = entries.by_run.entry(run)
            && matches!(entry.get(), RunStage::Running(_))
        {
            entry.remove();
            entries.running -= 1;
        }
    }

    /// Records the end of a job that was handed over.
    pub(super) fn ended_elsewhere(&self, lane_id: i64) {
        self.lock().ended.push(lane_id);
        self.ended.notify_one();
    }

    /// Records that the ends of runs were written.
    pub(super) fn written(&self, runs: impl Iterator<Item = RunId>) {
        let mut entries = self.lock();
        for run in runs {
            if let Entry::Occupied(entry) = entries.by_run.entry(run)
                && matches!(entry.get(), RunStage::Unwritten)
            {
                entry.remove();
            }
        }
    }

    /// Returns the fences of all runs here that still run or whose end is not written yet.
    pub(super) fn fences(&self) -> HashSet<i64> {
        let entries = self.lock();
        entries.by_run.keys().map(|(_, fence)| *fence).collect()
    }

    /// Returns the lanes of the jobs that ended since the last call, one entry per job.
    pub(super) fn take_ended(&self) -> Vec<i64> {
        std::mem::take(&mut self.lock().ended)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().running
    }

    /// Returns the reason for which the run was asked to stop, if any.
    pub(super) fn why(&self, run: RunId) -> Option<StopReason> {
        match self.lock().by_run.get(&run)? {
            RunStage::Running(entry) => entry.stop,
            RunStage::Unwritten => None,
        }
    }

    pub(super) fn stop(&self, job_id: i64, why: StopReason) {
        self.stop_those(why, |job| job == job_id);
    }

    pub(super) fn stop_all(&self, why: StopReason) {
        self.stop_those(why, |_| true);
    }

    fn stop_those(&self, why: StopReason, is_meant: impl Fn(i64) -> bool) {
        for ((job, _), stage) in &mut self.lock().by_run {
            if let RunStage::Running(entry) = stage
                && is_meant(*job)
            {
                entry.stop.get_or_insert(why);
                entry.token.cancel();
            }
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Entries> {
        self.entries.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_came_back_is_not_taken_for_its_old_run() {
        let running = RunningJobs::default();
        let old = running.begin([((1, 10), 5)].into_iter()).remove(0);
        running.stop_all(StopReason::Fenced);
        let new = running.begin([((1, 11), 5)].into_iter()).remove(0);

        assert_eq!(running.end((1, 10)), Some(StopReason::Fenced));

        assert_eq!(running.len(), 1, "the new run keeps its permit");
        assert!(old.is_cancelled() && !new.is_cancelled());
        running.stop(1, StopReason::Cancelled);
        assert!(new.is_cancelled());
        assert_eq!(running.end((1, 11)), Some(StopReason::Cancelled));
        assert_eq!(running.take_ended(), [5, 5]);
    }

    #[test]
    fn a_lease_is_held_from_the_beginning_of_the_run_until_its_end_is_written() {
        let running = RunningJobs::default();
        running.begin([((1, 10), 5), ((2, 11), 5)].into_iter());
        running.end((1, 10));
        assert_eq!(running.fences(), [10, 11].into());

        running.written([(1, 10)].into_iter());

        assert_eq!(running.fences(), [11].into());
    }
}
