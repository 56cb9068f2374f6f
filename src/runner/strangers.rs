//! Jobs that this worker does not run, how long each waits before somebody claims it again, and throttles of which it has met nothing
//! else: it leaves those to others for a while. Pure; time is an argument.

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

/// So many jobs of a throttle in a row that this worker does not run let the throttle rest here,
const ROW: u32 = 8;

/// this long at first, and twice as long each time that the next job is none for it either.
const FIRST_REST: Duration = Duration::from_secs(1);

/// Longest rest: another worker may have gone, and these jobs' settings come here, only with a start of this process.
const LONGEST_REST: Duration = Duration::from_secs(30);

/// A throttle of which only strangers came lately.
struct Row {
    jobs: u32,
    rest: Duration,
    until: Instant,
}

/// The jobs that were sent off lately, by their ids, and the throttles of which nothing else came.
#[derive(Default)]
pub(super) struct Strangers {
    jobs: Mutex<HashMap<i64, Stranger>>,
    rows: Mutex<HashMap<String, Row>>,
}

impl Strangers {
    /// How long the job waits now.
    pub(super) fn wait(&self, job_id: i64, now: Instant) -> Duration {
        let mut known = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Takes note of a job of the throttle that this worker does not run.
    pub(super) fn met(&self, throttle: &str, now: Instant) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let row = rows.entry(throttle.to_owned()).or_insert(Row { jobs: 0, rest: FIRST_REST / 2, until: now });
        row.jobs += 1;
        if row.jobs >= ROW && row.until <= now {
            row.rest = (row.rest * 2).min(LONGEST_REST);
            row.until = now + row.rest;
        }
    }

    /// Takes note of a job of the throttle that this worker runs.
    pub(super) fn served(&self, throttle: &str) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        if !rows.is_empty() {
            rows.remove(throttle);
        }
    }

    /// The throttles that rest here, and until when.
    pub(super) fn resting(&self, now: Instant) -> Vec<(String, Instant)> {
        let rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.iter().filter(|(_, row)| row.until > now).map(|(throttle, row)| (throttle.clone(), row.until)).collect()
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
    fn a_throttle_of_which_only_strangers_come_rests_ever_longer_until_one_comes_that_is_served() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        let rests = |now| strangers.resting(now).first().map(|(_, until)| until.duration_since(now).as_secs());
        for _ in 0..7 {
            strangers.met("sms", now);
        }
        assert_eq!(rests(now), None);

        for _ in 0..50 {
            strangers.met("sms", now);
        }
        assert_eq!(rests(now), Some(1), "those that were claimed together count once");
        let mut later = now;
        let mut seen = Vec::new();
        for _ in 0..6 {
            later += LONGEST_REST;
            strangers.met("sms", later);
            seen.extend(rests(later));
        }
        assert_eq!(seen, [2, 4, 8, 16, 30, 30]);

        strangers.served("sms");
        strangers.met("sms", later);
        assert_eq!(rests(later), None);
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
