//! The jobs that this worker serves among those of all workers. Pure; time is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::jobs::WorkerCapabilities;
use crate::jobs::serving::{Serves, is_served};

/// Time after the last job that this worker does not serve, after which it takes jobs of the
/// throttle again without looking at them first.
const LOOKS_FOR: Duration = Duration::from_secs(300);

/// Time for which a comparison of the live workers holds while their mark stays the same.
const COMPARISON_HOLDS: Duration = Duration::from_secs(15);

/// Shortest time between two notes that jobs were met which no worker serves.
const NOTE_EVERY: Duration = Duration::from_secs(5);

/// The part of all jobs that this worker serves.
pub(super) struct Served {
    /// The jobs that the worker is set to serve.
    pub(super) own: Serves,
    /// The throttles, as patterns, of each live worker that has a kind or a capability that this one
    /// does not have.
    others: Mutex<Arc<Vec<Vec<String>>>>,
    /// Throttles with jobs that this worker does not serve, each with the time until which it looks
    /// first.
    mixed: Mutex<HashMap<String, Instant>>,
    /// The live workers.
    live: Mutex<Arc<Vec<WorkerCapabilities>>>,
    /// The last time at which a job was met that no live worker serves, and that of its note.
    unserved: Mutex<(Option<Instant>, Option<Instant>)>,
    compared: Mutex<Option<Comparison>>,
}

/// The result of the last comparison of the live workers.
struct Comparison {
    own_id: i32,
    mark: i64,
    at: Instant,
    rank: Option<(u32, u32)>,
}

impl Served {
    pub(super) fn new(own: Serves) -> Self {
        Self {
            own,
            others: Mutex::default(),
            mixed: Mutex::default(),
            live: Mutex::default(),
            unserved: Mutex::default(),
            compared: Mutex::default(),
        }
    }

    /// Returns true if the lanes of the throttle may hold jobs that this worker does not serve, so
    /// that it must look before it takes.
    pub(super) fn is_partial(&self, throttle: &str, now: Instant) -> bool {
        if !self.own.kinds.is_empty() || !self.own.pools.is_empty() {
            return true;
        }
        let others = self.others.lock().clone();
        if others.iter().any(|other| is_served(other, throttle)) {
            return true;
        }
        let mixed = self.mixed.lock();
        !mixed.is_empty() && mixed.get(throttle).is_some_and(|until| *until > now)
    }

    /// Takes in the live workers; returns the rank of this one among its like and their number, or
    /// `None` if it serves all that any of them serves.
    pub(super) fn compare(
        &self,
        own_id: i32,
        live: Vec<WorkerCapabilities>,
        mark: i64,
        now: Instant,
    ) -> Option<(u32, u32)> {
        let own = live.iter().find(|worker| worker.id == own_id);
        let is_whole = own.is_none_or(|own| own.is_whole(&live));
        let rank = own.map_or((0, 1), |own| own.rank(&live));
        let lacks = |other: &&WorkerCapabilities| own.is_some_and(|own| own.lacks_of(other));
        let others = live.iter().filter(lacks);
        *self.others.lock() = Arc::new(others.map(|other| other.throttles.clone()).collect());
        self.mixed.lock().retain(|_, until| *until > now);
        *self.live.lock() = Arc::new(live);
        let rank = (!is_whole).then_some(rank);
        *self.compared.lock() = Some(Comparison {
            own_id,
            mark,
            at: now,
            rank,
        });
        rank
    }

    /// Returns the live workers as last compared.
    pub(super) fn live(&self) -> Arc<Vec<WorkerCapabilities>> {
        self.live.lock().clone()
    }

    /// Returns the result of the last comparison if the live workers still have the mark that they
    /// had; a mark of 0 is not known.
    pub(super) fn rank_of(
        &self,
        own_id: i32,
        mark: i64,
        now: Instant,
    ) -> Option<Option<(u32, u32)>> {
        let compared = self.compared.lock();
        let last = compared.as_ref()?;
        let holds = mark != 0
            && (last.own_id, last.mark) == (own_id, mark)
            && now.saturating_duration_since(last.at) < COMPARISON_HOLDS;
        holds.then_some(last.rank)
    }

    /// Records a job that this worker does not serve.
    pub(super) fn met(&self, throttle: &str, kind: &str, needs: &[String], now: Instant) {
        self.mixed
            .lock()
            .insert(throttle.to_owned(), now + LOOKS_FOR);
        let live = self.live.lock().clone();
        if !live.iter().any(|worker| worker.runs(throttle, kind, needs)) {
            self.unserved.lock().0 = Some(now);
        }
    }

    /// Returns true if jobs were met that no live worker serves, and no note of that is due to be
    /// fresh.
    pub(super) fn take_note(&self, now: Instant) -> bool {
        let mut unserved = self.unserved.lock();
        let (Some(met), noted) = *unserved else {
            return false;
        };
        let is_due = noted.is_none_or(|noted| noted < met && now >= noted + NOTE_EVERY);
        if is_due {
            unserved.1 = Some(now);
        }
        is_due
    }
}

/// Returns the shards of the worker of this rank among so many, as a bit set.
pub(super) fn shards_of((rank, all): (u32, u32)) -> u64 {
    (0..64)
        .filter(|shard| shard % all.max(1) == rank)
        .fold(0, |set, shard| set | 1 << shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: i32, kinds: &[&str]) -> WorkerCapabilities {
        WorkerCapabilities {
            id,
            is_fresh: true,
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..WorkerCapabilities::default()
        }
    }

    #[test]
    fn a_worker_that_serves_all_takes_without_a_look_until_it_meets_a_job_that_it_does_not_serve() {
        let (served, now) = (Served::new(Serves::default()), Instant::now());
        assert_eq!(served.compare(1, vec![worker(1, &["http"])], 7, now), None);
        assert!(!served.is_partial("sms", now));

        served.met("sms", "mail", &[], now);

        assert!(served.is_partial("sms", now + LOOKS_FOR / 2));
        assert!(!served.is_partial("hooks", now));
        assert!(!served.is_partial("sms", now + LOOKS_FOR));
    }

    #[test]
    fn a_worker_beside_one_that_serves_more_or_that_was_told_what_to_serve_looks_everywhere() {
        let (served, now) = (Served::new(Serves::default()), Instant::now());
        let live = vec![worker(1, &["http"]), worker(2, &["http", "mail"])];
        assert_eq!(served.compare(2, live.clone(), 7, now), None);
        assert!(!served.is_partial("sms", now));
        assert_eq!(served.compare(1, live, 7, now), Some((0, 1)));
        assert!(served.is_partial("sms", now));

        let own = Served::new(Serves {
            kinds: vec!["http".into()],
            ..Serves::default()
        });
        assert!(own.is_partial("sms", now));
    }

    #[test]
    fn a_worker_looks_only_in_throttles_where_another_serves_more() {
        let (served, now) = (Served::new(Serves::default()), Instant::now());
        let other = WorkerCapabilities {
            throttles: vec!["report:*".to_owned()],
            ..worker(2, &["mail"])
        };
        let live = vec![worker(1, &["http"]), other];

        assert_eq!(served.compare(1, live, 7, now), Some((0, 1)));

        assert!(served.is_partial("report:daily", now) && !served.is_partial("hooks", now));
    }

    #[test]
    fn a_worker_of_some_throttles_needs_no_look_and_takes_no_part_in_sharing() {
        let throttles = vec!["sms".to_owned()];
        let served = Served::new(Serves {
            throttles: throttles.clone(),
            ..Serves::default()
        });
        let own = WorkerCapabilities {
            throttles,
            ..worker(1, &["http"])
        };
        let now = Instant::now();

        assert_eq!(
            served.compare(1, vec![own, worker(2, &["http"])], 7, now),
            Some((0, 1))
        );
        assert!(!served.is_partial("sms", now));
    }

    #[test]
    fn a_comparison_holds_for_a_while_and_until_the_live_workers_change() {
        let (served, now) = (Served::new(Serves::default()), Instant::now());
        let live = vec![worker(1, &["http"]), worker(2, &["http", "mail"])];
        assert_eq!(served.rank_of(1, 7, now), None);
        served.compare(1, live, 7, now);

        let later = now + COMPARISON_HOLDS / 2;
        assert_eq!(served.rank_of(1, 7, later), Some(Some((0, 1))));
        assert_eq!(served.rank_of(1, 8, later), None, "another set of workers");
        assert_eq!(served.rank_of(3, 7, later), None, "registered again");
        assert_eq!(served.rank_of(1, 7, now + COMPARISON_HOLDS), None);
    }

    #[test]
    fn only_jobs_that_no_live_worker_serves_are_noted_and_not_each_of_them() {
        let (served, now) = (Served::new(Serves::default()), Instant::now());
        let live = vec![worker(1, &["http"]), worker(2, &["http", "mail"])];
        served.compare(1, live, 7, now);

        served.met("sms", "mail", &[], now);
        assert!(!served.take_note(now));

        served.met("sms", "post", &[], now);
        assert!(served.take_note(now));
        served.met("sms", "post", &[], now + NOTE_EVERY / 2);
        assert!(!served.take_note(now + NOTE_EVERY / 2));
        assert!(served.take_note(now + NOTE_EVERY));
    }

    #[test]
    fn workers_that_serve_the_same_divide_the_shards_among_them() {
        let all = [0, 1, 2].map(|rank| shards_of((rank, 3)));
        assert_eq!(all.iter().fold(0, |set, shards| set | shards), u64::MAX);
        assert_eq!(all.map(u64::count_ones).iter().sum::<u32>(), 64);
        assert_eq!(shards_of((0, 1)), u64::MAX);
    }
}
