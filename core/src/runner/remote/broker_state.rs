//! The state of a broker besides that of every worker: who waits, and the jobs that were handed over.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use parking_lot::Mutex;

use super::polls::Polls;
use crate::jobs::postgres::CountedJob;
use crate::jobs::remote::RemoteOffer;
use crate::runner::running::RunId;
use crate::throttle::Name;

/// A job that a remote worker holds and that this broker counts.
#[derive(Clone, Debug)]
pub struct HandedJob {
    pub lane_id: i64,
    pub throttle: String,
}

/// A job that another broker counted until now.
pub struct AdoptedJob {
    pub lane_id: i64,
    pub throttle: Name,
    pub key: String,
}

/// The differences between the jobs that a broker counts and those in the store.
#[derive(Default)]
pub struct CountChanges {
    /// Jobs that ended in another process, or whose leases expired.
    pub gone: Vec<HandedJob>,
    /// Jobs that this broker does not know.
    pub unknown: Vec<CountedJob>,
}

/// The state of a broker.
pub struct BrokerState {
    /// The jobs that its workers ask for.
    pub offer: RemoteOffer,
    /// The claims that wait.
    pub polls: Polls,
    handed: Mutex<HashMap<RunId, HandedJob>>,
    adopted: Mutex<Vec<AdoptedJob>>,
    /// The time until which its workers count as live.
    seen_until: Mutex<Instant>,
    /// The last time at which a worker asked for jobs or was answered.
    last_seen: Mutex<Instant>,
}

impl BrokerState {
    pub fn new(offer: RemoteOffer, now: Instant) -> Self {
        Self {
            offer,
            polls: Polls::default(),
            handed: Mutex::default(),
            adopted: Mutex::default(),
            seen_until: Mutex::new(now),
            last_seen: Mutex::new(now),
        }
    }

    /// Returns true if jobs of this tenant may be handed out.
    pub fn has_tenant(&self, tenant: &str) -> bool {
        self.offer.tenant.as_deref().is_none_or(|own| own == tenant)
    }

    /// Records that a worker was seen that counts as live until then.
    pub fn seen(&self, now: Instant, until: Instant) {
        let mut seen_until = self.seen_until.lock();
        *seen_until = until.max(*seen_until);
        *self.last_seen.lock() = now;
    }

    /// Returns true if no worker is left and no job is counted.
    pub fn is_idle(&self, now: Instant) -> bool {
        *self.seen_until.lock() < now && self.handed.lock().is_empty()
    }

    /// Returns the last time at which a worker was seen; `None` while a claim waits or a job is
    /// counted.
    pub fn unused_since(&self) -> Option<Instant> {
        let is_unused = self.polls.len() == 0 && self.handed.lock().is_empty();
        is_unused.then(|| *self.last_seen.lock())
    }

    /// Counts a job that was handed over.
    pub fn hand(&self, run: RunId, job: HandedJob) {
        self.handed.lock().insert(run, job);
    }

    /// Removes a job that ended; `None` if this broker does not count it.
    pub fn ended(&self, run: RunId) -> Option<HandedJob> {
        self.handed.lock().remove(&run)
    }

    /// Returns true if this broker counts the job.
    pub fn counts(&self, run: RunId) -> bool {
        self.handed.lock().contains_key(&run)
    }

    /// Returns the number of jobs that are counted.
    pub fn counted(&self) -> usize {
        self.handed.lock().len()
    }

    /// Returns the jobs that are counted, to compare them later with what was stored by then.
    pub fn snapshot(&self) -> Vec<RunId> {
        self.handed.lock().keys().copied().collect()
    }

    /// Compares the jobs of a snapshot with those that were stored after it, and forgets those that
    /// are gone.
    pub fn compare(&self, snapshot: &[RunId], stored: &[CountedJob]) -> CountChanges {
        let mut handed = self.handed.lock();
        let known = |one: &CountedJob| (one.job_id, one.fence);
        let there: HashSet<RunId> = stored.iter().map(known).collect();
        let gone = snapshot
            .iter()
            .filter(|run| !there.contains(run))
            .filter_map(|run| handed.remove(run))
            .collect();
        let unknown = stored
            .iter()
            .filter(|one| !handed.contains_key(&known(one)))
            .copied()
            .collect();
        CountChanges { gone, unknown }
    }

    /// Counts a job that another broker counted.
    pub fn adopt(&self, run: RunId, job: AdoptedJob) {
        let handed = HandedJob {
            lane_id: job.lane_id,
            throttle: job.throttle.to_string(),
        };
        self.handed.lock().insert(run, handed);
        self.adopted.lock().push(job);
    }

    /// Returns the jobs that were adopted since the last call.
    pub fn take_adopted(&self) -> Vec<AdoptedJob> {
        std::mem::take(&mut self.adopted.lock())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn job(lane_id: i64) -> HandedJob {
        HandedJob {
            lane_id,
            throttle: "mail".into(),
        }
    }

    fn stored(job_id: i64) -> CountedJob {
        CountedJob {
            job_id,
            fence: 1,
            lane_id: job_id,
        }
    }

    #[test]
    fn only_jobs_that_were_counted_before_the_store_was_read_can_be_gone() {
        let broker = BrokerState::new(RemoteOffer::default(), Instant::now());
        broker.hand((1, 1), job(1));
        broker.hand((2, 1), job(2));
        let snapshot = broker.snapshot();
        broker.hand((3, 1), job(3));

        let changes = broker.compare(&snapshot, &[stored(2), stored(4)]);

        let gone: Vec<i64> = changes.gone.iter().map(|job| job.lane_id).collect();
        assert_eq!(gone, [1]);
        assert_eq!(changes.unknown, [stored(4)]);
        assert_eq!(broker.counted(), 2);
        assert!(broker.counts((2, 1)) && !broker.counts((1, 1)));
    }

    #[test]
    fn a_broker_is_unused_without_a_claim_and_a_job_although_its_workers_count_as_live() {
        let now = Instant::now();
        let (later, live) = (
            now + Duration::from_secs(1),
            now + Duration::from_secs(3600),
        );
        let broker = BrokerState::new(RemoteOffer::default(), now);
        broker.seen(now, live);
        let waiting = broker.polls.push(1, Duration::from_secs(9), 1).unwrap();
        assert_eq!(broker.unused_since(), None);
        broker.hand((1, 1), job(1));
        assert!(broker.polls.remove(waiting.number));
        assert_eq!(broker.unused_since(), None);

        broker.ended((1, 1));
        broker.seen(later, later);

        assert_eq!(broker.unused_since(), Some(later));
        assert!(!broker.is_idle(later));
    }

    #[test]
    fn a_broker_of_a_tenant_hands_out_its_jobs_alone() {
        let of = |tenant: Option<&str>| {
            let tenant = tenant.map(str::to_owned);
            let offer = RemoteOffer::new(vec!["pdf".into()], Vec::new(), tenant);
            BrokerState::new(offer, Instant::now())
        };
        assert!(of(None).has_tenant("") && of(None).has_tenant("acme"));
        let bound = of(Some("acme"));
        assert!(bound.has_tenant("acme") && !bound.has_tenant("") && !bound.has_tenant("zeta"));
    }
}
