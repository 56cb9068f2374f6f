//! The claims of remote workers that wait for jobs, first come first served.

use std::collections::VecDeque;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::jobs::remote::RemoteJob;

/// A claim that waits.
pub struct Poll {
    number: u64,
    /// The remote worker.
    pub worker_id: i32,
    /// The time without a heartbeat after which its jobs are lost.
    pub lease: Duration,
    limit: usize,
    /// The way to the worker; closed if it does not wait any more.
    pub answer: oneshot::Sender<Vec<RemoteJob>>,
}

/// The receiver of a claim's jobs.
pub struct Waiting {
    pub number: u64,
    pub jobs: oneshot::Receiver<Vec<RemoteJob>>,
}

#[derive(Default)]
struct PollQueue {
    polls: VecDeque<Poll>,
    last: u64,
    is_closed: bool,
}

/// The waiting claims of one broker.
#[derive(Default)]
pub struct Polls(Mutex<PollQueue>);

impl Polls {
    /// Adds a claim; `None` if the broker is closed.
    pub fn push(&self, worker_id: i32, lease: Duration, limit: usize) -> Option<Waiting> {
        let mut queue = self.0.lock();
        if queue.is_closed {
            return None;
        }
        queue.last += 1;
        let number = queue.last;
        let (answer, jobs) = oneshot::channel();
        queue.polls.push_back(Poll {
            number,
            worker_id,
            lease,
            limit,
            answer,
        });
        Some(Waiting { number, jobs })
    }

    /// Removes a claim that waits no longer; false if jobs are on their way to it.
    pub fn remove(&self, number: u64) -> bool {
        let mut queue = self.0.lock();
        let before = queue.polls.len();
        queue.polls.retain(|poll| poll.number != number);
        queue.polls.len() < before
    }

    /// Returns the number of jobs for which claims wait.
    pub fn wanted(&self) -> usize {
        let mut queue = self.0.lock();
        queue.polls.retain(|poll| !poll.answer.is_closed());
        queue.polls.iter().map(|poll| poll.limit).sum()
    }

    /// Returns the number of waiting claims.
    pub fn len(&self) -> usize {
        self.0.lock().polls.len()
    }

    /// Takes the claims to which so many jobs go, each with its part of them; together at most so
    /// many.
    pub fn take(&self, mut jobs: usize) -> Vec<(Poll, usize)> {
        let mut queue = self.0.lock();
        let mut taken = Vec::new();
        while jobs > 0
            && let Some(poll) = queue.polls.pop_front()
        {
            if poll.answer.is_closed() {
                continue;
            }
            let part = poll.limit.min(jobs);
            jobs -= part;
            taken.push((poll, part));
        }
        taken
    }

    /// Lets no claim wait any more, if none does or `always`; returns true if the broker is closed.
    /// Waiting claims get no jobs.
    pub fn close(&self, always: bool) -> bool {
        let mut queue = self.0.lock();
        if always || queue.polls.is_empty() {
            queue.is_closed = true;
            queue.polls.clear();
        }
        queue.is_closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    #[test]
    fn jobs_go_to_the_claims_that_came_first_and_to_none_that_has_gone() {
        let polls = Polls::default();
        let first = polls.push(1, LEASE, 2).unwrap();
        let gone = polls.push(2, LEASE, 50).unwrap();
        let last = polls.push(3, LEASE, 4).unwrap();
        drop(gone);

        assert_eq!(polls.wanted(), 6);
        let taken = polls.take(3);

        let parts: Vec<(i32, usize)> = taken
            .iter()
            .map(|(poll, jobs)| (poll.worker_id, *jobs))
            .collect();
        assert_eq!(parts, [(1, 2), (3, 1)]);
        assert!(!polls.remove(first.number) && !polls.remove(last.number));
        assert_eq!(polls.wanted(), 0);
    }

    #[test]
    fn a_closed_broker_takes_no_claim_and_ends_those_that_wait() {
        let polls = Polls::default();
        let mut waiting = polls.push(1, LEASE, 1).unwrap();

        assert!(!polls.close(false));
        assert!(polls.close(true));

        assert!(waiting.jobs.try_recv().is_err());
        assert!(polls.push(1, LEASE, 1).is_none());
    }
}
