//! Jobs whose kind this worker does not run, and how long each waits before somebody claims it again. Pure; time is an argument.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long such a job waits the first time; another worker may run its kind.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// It doubles each time up to this, so that a kind that nobody runs keeps nobody busy.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Most jobs that are remembered.
const MOST: usize = 50_000;

/// A job that has not come back after so many times its wait has found its worker, and is forgotten where room is needed.
const GONE_AFTER: u32 = 4;

struct Stranger {
    wait: Duration,
    sent_off: Instant,
}

/// The jobs that were sent off lately, by their ids.
#[derive(Default)]
pub(super) struct Strangers(Mutex<HashMap<i64, Stranger>>);

impl Strangers {
    /// How long the job waits now.
    pub(super) fn wait(&self, job_id: i64, now: Instant) -> Duration {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST && !known.contains_key(&job_id) {
            known.retain(|_, stranger| now.duration_since(stranger.sent_off) < stranger.wait * GONE_AFTER);
            if known.len() >= MOST {
                return LONGEST_WAIT;
            }
        }
        let wait = known.get(&job_id).map_or(FIRST_WAIT, |before| (before.wait * 2).min(LONGEST_WAIT));
        known.insert(job_id, Stranger { wait, sent_off: now });
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_comes_back_waits_twice_as_long_each_time_up_to_five_minutes() {
        let (strangers, now) = (Strangers::default(), Instant::now());

        let waits: Vec<u64> = (0..9).map(|_| strangers.wait(1, now).as_secs()).collect();

        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(strangers.wait(2, now), FIRST_WAIT, "another job has its own count");
    }

    #[test]
    fn so_many_strangers_that_they_cannot_be_told_apart_wait_longest_until_some_are_gone() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        for job in 0..MOST as i64 {
            strangers.wait(job, now);
        }

        let crowded = strangers.wait(-1, now);
        let later = strangers.wait(-1, now + FIRST_WAIT * GONE_AFTER);

        assert_eq!((crowded, later), (LONGEST_WAIT, FIRST_WAIT));
    }
}
