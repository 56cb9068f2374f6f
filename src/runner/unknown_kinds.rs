//! Strangers: jobs that this worker does not run, each with the wait before its next claim, and
//! throttles where it has met only such jobs, which it leaves to other workers for a while. Pure;
//! time is an argument.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// First wait of a job that this worker does not run, because another worker may run its kind.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// Longest wait of a job. Waits double up to this, so that a kind that no worker runs keeps none
/// busy.
const MAX_CLAIM_DELAY: Duration = Duration::from_secs(300);

/// Most jobs remembered.
const MAX_REMEMBERED_JOBS: usize = 50_000;

/// Multiple of its wait after which a job that has not come back has found its worker, and is
/// forgotten if room is needed.
const GONE_AFTER: u32 = 4;

struct UnservedJob {
    wait: Duration,
    sent_off: Instant,
}

/// Number of jobs of a throttle in a row that this worker does not run, after which it leaves the
/// throttle to others.
const REST_AFTER_JOBS: u32 = 8;

/// First rest of a throttle. Rests double each time that the next job is not for this worker
/// either.
const FIRST_REST: Duration = Duration::from_secs(1);

/// Longest rest of a throttle: this worker gains the settings for its jobs only with a restart, but
/// another worker that ran them may have gone.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// Time by which this worker rests longer than a job that came back to it waits, so that another
/// worker meets the job first.
const AHEAD: Duration = Duration::from_secs(2);

/// Longest such rest of a throttle with only unknown jobs in a row, and of one with too
/// few came to know: jobs that this worker runs may wait there.
const LONGEST_AHEAD: Duration = Duration::from_secs(62);
const LONGEST_AHEAD_OF_FEW: Duration = Duration::from_secs(12);

/// A throttle with only unknown jobs lately.
struct UnservedThrottle {
    jobs: u32,
    rest: Duration,
    until: Instant,
}

/// The jobs postponed lately, by id, and the throttles with only such jobs.
#[derive(Default)]
pub(super) struct UnknownKinds {
    jobs: Mutex<HashMap<i64, UnservedJob>>,
    rows: Mutex<HashMap<String, UnservedThrottle>>,
}

impl UnknownKinds {
    /// Returns the next wait of the job.
    pub(super) fn wait(&self, job_id: i64, now: Instant) -> Duration {
        let mut known = self.jobs.lock();
        if known.len() >= MAX_REMEMBERED_JOBS && !known.contains_key(&job_id) {
            known.retain(|_, known_job| {
                now.duration_since(known_job.sent_off) < known_job.wait * GONE_AFTER
            });
            if known.len() >= MAX_REMEMBERED_JOBS {
                return MAX_CLAIM_DELAY;
            }
        }
        let wait = known
            .get(&job_id)
            .map_or(FIRST_WAIT, |before| (before.wait * 2).min(MAX_CLAIM_DELAY));
        known.insert(
            job_id,
            UnservedJob {
                wait,
                sent_off: now,
            },
        );
        wait
    }

    /// Records a job of the throttle that this worker does not run, and that waits for so long now.
    ///
    /// A job that waits longer than the first time has come back: while it waits, this worker rests
    /// from the throttle for a little longer. Two workers that take turns by chance would otherwise
    /// bounce a job for minutes that one of them runs.
    pub(super) fn met(&self, throttle: &str, wait: Duration, now: Instant) {
        let mut rows = self.rows.lock();
        let row = rows.entry(throttle.to_owned()).or_insert(UnservedThrottle {
            jobs: 0,
            rest: FIRST_REST / 2,
            until: now,
        });
        row.jobs += 1;
        if row.jobs >= REST_AFTER_JOBS && row.until <= now {
            row.rest = (row.rest * 2).min(LONGEST_REST);
            row.until = now + row.rest;
        }
        if wait > FIRST_WAIT {
            let longest = if row.jobs >= REST_AFTER_JOBS {
                LONGEST_AHEAD
            } else {
                LONGEST_AHEAD_OF_FEW
            };
            row.until = row.until.max(now + (wait + AHEAD).min(longest));
        }
    }

    /// Records a job of the throttle that this worker runs.
    pub(super) fn served(&self, throttle: &str) {
        let mut rows = self.rows.lock();
        if !rows.is_empty() {
            rows.remove(throttle);
        }
    }

    /// Returns the throttles that rest here, each with the end of its rest.
    pub(super) fn resting(&self, now: Instant) -> Vec<(String, Instant)> {
        let rows = self.rows.lock();
        rows.iter()
            .filter(|(_, row)| row.until > now)
            .map(|(throttle, row)| (throttle.clone(), row.until))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_comes_back_waits_twice_as_long_each_time_up_to_five_minutes() {
        let (unknown, now) = (UnknownKinds::default(), Instant::now());

        let waits: Vec<u64> = (0..9).map(|_| unknown.wait(1, now).as_secs()).collect();

        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(
            unknown.wait(2, now),
            FIRST_WAIT,
            "another job has its own count"
        );
    }

    #[test]
    fn a_throttle_of_which_only_strangers_come_rests_ever_longer_until_one_comes_that_is_served() {
        let (unknown, now) = (UnknownKinds::default(), Instant::now());
        let rests = |now| {
            unknown
                .resting(now)
                .first()
                .map(|(_, until)| until.duration_since(now).as_secs())
        };
        for _ in 0..7 {
            unknown.met("sms", FIRST_WAIT, now);
        }
        assert_eq!(rests(now), None);

        for _ in 0..50 {
            unknown.met("sms", FIRST_WAIT, now);
        }
        assert_eq!(
            rests(now),
            Some(1),
            "those that were claimed together count once"
        );
        let mut later = now;
        let mut seen = Vec::new();
        for _ in 0..6 {
            later += LONGEST_REST;
            unknown.met("sms", FIRST_WAIT, later);
            seen.extend(rests(later));
        }
        assert_eq!(seen, [2, 4, 8, 16, 30, 30]);

        unknown.served("sms");
        unknown.met("sms", FIRST_WAIT, later);
        assert_eq!(rests(later), None);
    }

    #[test]
    fn while_a_job_that_came_back_waits_another_worker_meets_it_first() {
        let (unknown, now) = (UnknownKinds::default(), Instant::now());
        let rests = |now| {
            let resting = unknown.resting(now);
            resting
                .first()
                .map(|(_, until)| until.duration_since(now).as_secs())
        };
        let wait = unknown.wait(1, now);
        unknown.met("sms", wait, now);
        assert_eq!(rests(now), None, "it may have been chance");

        let now = now + wait;
        let wait = unknown.wait(1, now);
        unknown.met("sms", wait, now);
        assert_eq!((wait.as_secs(), rests(now)), (10, Some(12)));
        assert_eq!(
            rests(now + wait),
            Some(2),
            "it is due while this worker rests"
        );

        // A job that this worker runs ends the rest, and few unknown jobs cause no long one.
        unknown.served("sms");
        assert_eq!(rests(now), None);
        let wait = unknown.wait(1, now);
        unknown.met("sms", wait, now);
        assert_eq!((wait.as_secs(), rests(now)), (20, Some(12)));
        for other in 2..12 {
            unknown.met("sms", unknown.wait(other, now), now);
        }
        let wait = unknown.wait(1, now);
        unknown.met("sms", wait, now);
        assert_eq!((wait.as_secs(), rests(now)), (40, Some(42)));
    }

    #[test]
    fn so_many_unknown_jobs_that_they_cannot_be_distinguished_wait_longest_until_some_are_gone() {
        let (unknown, now) = (UnknownKinds::default(), Instant::now());
        for job in 0..MAX_REMEMBERED_JOBS as i64 {
            unknown.wait(job, now);
        }

        let crowded = unknown.wait(-1, now);
        let later = unknown.wait(-1, now + FIRST_WAIT * GONE_AFTER);

        assert_eq!((crowded, later), (MAX_CLAIM_DELAY, FIRST_WAIT));
    }
}
