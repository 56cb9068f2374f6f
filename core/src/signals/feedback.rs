//! Feedback of the work itself: counts of completed, refused and failed units, and their durations.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::control::durations::Durations;

/// Age above which a worker's counters say nothing about the present, in seconds.
const FRESH_S: f64 = 5.0;

/// Retention of snapshots, in seconds: the longest time over which a signal may average.
const KEPT_S: f64 = 1800.0;

/// Least distance of the first and the last of three successive snapshots, in seconds.
const APART_S: f64 = 0.5;

/// Tolerance for new counters, in seconds.
///
/// Counters that began this long before the last snapshot may be missing from it, because its data
/// were slightly old.
const MISSED_S: f64 = 1.0;

/// Age of an update, compared with the last one, from which the clock was set back, in seconds.
///
/// Callers that wait for other sources first bring an update that is some seconds late at most.
const SET_BACK_S: f64 = 10.0;

/// Tolerance for the start of a span, in seconds, by which a snapshot may be too young.
const NEARLY_S: f64 = 0.05;

/// Counters of work, which only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Feedback {
    /// Units of work that succeeded.
    pub completed: f64,
    /// Units that were refused (429 and the like).
    pub refused: f64,
    /// Units that failed otherwise.
    pub failed: f64,
    /// Seconds spent on the units that succeeded, except those that are `untimed`.
    pub busy_s: f64,
    /// Units that succeeded and whose duration is meaningless.
    pub untimed: f64,
}

impl Feedback {
    /// Returns the work done between `earlier` and `self`; `None` if the counters were reset in
    /// between.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let step = Self {
            completed: self.completed - earlier.completed,
            refused: self.refused - earlier.refused,
            failed: self.failed - earlier.failed,
            busy_s: self.busy_s - earlier.busy_s,
            untimed: self.untimed - earlier.untimed,
        };
        let sound = [
            step.completed,
            step.refused,
            step.failed,
            step.busy_s,
            step.untimed,
        ]
        .iter()
        .all(|x| x.is_finite() && *x >= 0.0);
        sound.then_some(step)
    }

    /// Returns the number of units that ended in any of these ways.
    pub fn ended(&self) -> f64 {
        self.completed + self.refused + self.failed
    }

    /// Returns the mean seconds per timed unit that succeeded; `None` if there was none.
    pub fn mean_duration_s(&self) -> Option<f64> {
        let timed = self.completed - self.untimed;
        (timed > 0.0).then(|| self.busy_s / timed)
    }

    /// Returns the share of ended units that were refused; `None` if none ended.
    pub fn refused_share(&self) -> Option<f64> {
        (self.ended() > 0.0).then(|| self.refused / self.ended())
    }

    /// Returns the share of ended units that failed; `None` if none ended.
    pub fn failed_share(&self) -> Option<f64> {
        (self.ended() > 0.0).then(|| self.failed / self.ended())
    }

    fn add(&mut self, step: &Self) {
        self.completed += step.completed;
        self.refused += step.refused;
        self.failed += step.failed;
        self.busy_s += step.busy_s;
        self.untimed += step.untimed;
    }
}

/// The counters of one worker for one throttle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerFeedback {
    /// The worker's id, which is new after each start.
    pub worker: i64,
    pub counted: Feedback,
    /// Durations of the timed units that succeeded; empty if no policy needs them.
    pub durations: Durations,
    /// Units in progress.
    pub running: f64,
    /// The age of this report, in seconds.
    pub age_s: f64,
    /// The age of its counters since they began at 0, in seconds.
    pub born_s: f64,
}

/// Returns the counters of the living workers for the throttle of that name; `None` if they are not
/// known.
pub type FeedbackSource =
    Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Vec<WorkerFeedback>>> + Send + Sync>;

/// Returns a source without reports.
pub fn no_feedback() -> FeedbackSource {
    Arc::new(|_| Box::pin(std::future::ready(None)))
}

/// The work of a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The work of the span.
    pub work: Feedback,
    /// The span's end, in unix seconds.
    pub at: f64,
}

/// Sums the counters of workers that start and stop: it adds each worker's increments, none of
/// which is negative.
#[derive(Clone, Debug, Default)]
pub struct FeedbackMeter {
    workers: BTreeMap<i64, (Feedback, Durations)>,
    total: Feedback,
    took: Durations,
    running: f64,
    /// The time of the last update, by the caller's clock.
    asked_at: Option<f64>,
    /// Snapshots of the sums, oldest first.
    looks: VecDeque<FeedbackSnapshot>,
}

/// The sums at a time, in unix seconds.
#[derive(Clone, Debug)]
struct FeedbackSnapshot {
    at: f64,
    total: Feedback,
    took: Durations,
}

impl FeedbackMeter {
    /// Adds the reports of the living workers, as of `now` in unix seconds.
    pub fn take_in(&mut self, reported: &[WorkerFeedback], now: f64) {
        // An update that is older than the last one knows less, unless the clock was set back.
        match self.asked_at {
            Some(asked_at) if now <= asked_at - SET_BACK_S => self.shift(now - asked_at),
            Some(asked_at) if now < asked_at => return,
            _ => {}
        }
        let is_fresh = |one: &&WorkerFeedback| one.age_s <= FRESH_S;
        let oldest_s = reported
            .iter()
            .filter(is_fresh)
            .map(|one| one.age_s.max(0.0))
            .fold(None, |most: Option<f64>, age_s| {
                Some(most.map_or(age_s, |most| most.max(age_s)))
            });
        // Without workers nothing happens; with only silent workers nothing is known.
        let Some(oldest_s) = oldest_s.or(reported.is_empty().then_some(0.0)) else {
            return;
        };
        for one in reported.iter().filter(is_fresh) {
            let step = match (
                self.workers
                    .insert(one.worker, (one.counted, one.durations.clone())),
                self.asked_at,
            ) {
                (Some((counted, took)), _) => {
                    one.counted.since(&counted).zip(one.durations.since(&took))
                }
                // All counts since the last update are new; of older counters only the next
                // increments count.
                (None, Some(asked_at)) if now - one.born_s >= asked_at - MISSED_S => {
                    Some((one.counted, one.durations.clone()))
                }
                (None, _) => None,
            };
            if let Some((counted, took)) = step {
                self.total.add(&counted);
                self.took.add(&took);
            }
        }
        self.workers
            .retain(|worker, _| reported.iter().any(|one| one.worker == *worker));
        self.running = reported.iter().map(|one| one.running).sum();
        self.asked_at = Some(now);
        self.note(now - oldest_s);
    }

    /// Returns the last `span_s` seconds, or as much of them as is known; `None` while nothing is.
    pub fn over(&self, span_s: f64) -> Option<Span> {
        let (first, last) = self.looks_over(span_s)?;
        Some(Span {
            work: last.total.since(&first.total)?,
            at: last.at,
        })
    }

    /// Returns the durations of units that succeeded in the last `span_s` seconds, as
    /// [`Self::over`] does.
    pub fn durations_over(&self, span_s: f64) -> Option<Durations> {
        let (first, last) = self.looks_over(span_s)?;
        last.took.since(&first.took)
    }

    /// Returns the first and the last snapshot of the last `span_s` seconds, or of as many of them
    /// as are known.
    fn looks_over(&self, span_s: f64) -> Option<(&FeedbackSnapshot, &FeedbackSnapshot)> {
        let last = self.looks.back()?;
        let begins = |look: &&FeedbackSnapshot| look.at <= last.at - span_s + NEARLY_S;
        let first = self
            .looks
            .iter()
            .rev()
            .find(begins)
            .or(self.looks.front())?;
        (first.at < last.at).then_some((first, last))
    }

    /// Returns the time of the newest snapshot, in unix seconds.
    pub fn at(&self) -> Option<f64> {
        self.looks.back().map(|look| look.at)
    }

    /// Returns the units in progress at the last update; `None` before the first.
    pub fn running(&self) -> Option<f64> {
        self.asked_at.map(|_| self.running)
    }

    /// Returns true if nothing was in progress at the last update and nothing ended in the last
    /// `span_s` seconds.
    ///
    /// Then there is nothing to report, which is not the same as silence.
    pub fn is_idle(&self, span_s: f64) -> bool {
        self.running <= 0.0
            && self
                .over(span_s)
                .is_some_and(|span| span.work.ended() <= 0.0)
    }

    /// Shifts every time by `by_s` after the clock was set back.
    fn shift(&mut self, by_s: f64) {
        self.asked_at = self.asked_at.map(|at| at + by_s);
        for look in &mut self.looks {
            look.at += by_s;
        }
    }

    fn note(&mut self, at: f64) {
        let newest = self.looks.len();
        let look = |at| FeedbackSnapshot {
            at,
            total: self.total,
            took: self.took.clone(),
        };
        if let Some(last) = self.looks.back().map(|last| last.at)
            && (at <= last || newest >= 2 && at - self.looks[newest - 2].at < APART_S)
        {
            self.looks[newest - 1] = look(at.max(last));
            return;
        }
        self.looks.push_back(look(at));
        while self
            .looks
            .front()
            .is_some_and(|oldest| oldest.at < at - KEPT_S - 2.0 * APART_S)
        {
            self.looks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(completed: f64, refused: f64, failed: f64) -> Feedback {
        Feedback {
            completed,
            refused,
            failed,
            busy_s: completed * 0.1,
            untimed: 0.0,
        }
    }

    fn worker_feedback(worker: i64, counted: Feedback) -> WorkerFeedback {
        WorkerFeedback {
            worker,
            counted,
            durations: Durations::default(),
            running: 0.0,
            age_s: 0.5,
            born_s: 1e6,
        }
    }

    #[test]
    fn counters_that_begin_again_say_nothing_about_the_time_between() {
        let (earlier, later) = (counted(10.0, 1.0, 0.0), counted(30.0, 1.0, 2.0));
        let step = later.since(&earlier).unwrap();
        assert!((step.mean_duration_s().unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(
            (step.failed_share(), step.refused_share()),
            (Some(2.0 / 22.0), Some(0.0))
        );
        assert_eq!(earlier.since(&later), None);
        assert_eq!(later.since(&later).unwrap().mean_duration_s(), None);
        assert_eq!(later.since(&later).unwrap().failed_share(), None);
    }

    #[test]
    fn the_steps_of_all_workers_are_summed_and_none_is_negative() {
        let mut meter = FeedbackMeter::default();
        meter.take_in(
            &[
                worker_feedback(1, counted(1000.0, 0.0, 0.0)),
                worker_feedback(2, counted(500.0, 50.0, 0.0)),
            ],
            100.0,
        );
        assert_eq!(
            meter.over(5.0),
            None,
            "what was before the first look is not news"
        );

        meter.take_in(
            &[
                worker_feedback(1, counted(1010.0, 0.0, 1.0)),
                worker_feedback(2, counted(520.0, 53.0, 0.0)),
            ],
            105.0,
        );
        let span = meter.over(5.0).unwrap();
        assert_eq!(
            (
                span.work.completed,
                span.work.refused,
                span.work.failed,
                span.at
            ),
            (30.0, 3.0, 1.0, 104.5)
        );

        // The first was reset, the second is gone, a third has existed since long before and a
        // fourth has just begun.
        let young = WorkerFeedback {
            born_s: 2.0,
            ..worker_feedback(4, counted(7.0, 0.0, 0.0))
        };
        meter.take_in(
            &[
                worker_feedback(1, counted(4.0, 0.0, 0.0)),
                worker_feedback(3, counted(900.0, 9.0, 9.0)),
                young,
            ],
            110.0,
        );
        assert_eq!(meter.over(5.0).unwrap().work.completed, 7.0);
        assert_eq!(meter.over(10.0).unwrap().work.completed, 37.0);
        meter.take_in(
            &[
                worker_feedback(1, counted(6.0, 0.0, 0.0)),
                worker_feedback(3, counted(901.0, 9.0, 9.0)),
            ],
            115.0,
        );
        assert_eq!(meter.over(5.0).unwrap().work.completed, 3.0);
    }

    #[test]
    fn a_worker_that_is_silent_is_left_out_until_it_is_heard_again() {
        let mut meter = FeedbackMeter::default();
        meter.take_in(
            &[
                worker_feedback(1, counted(0.0, 0.0, 0.0)),
                worker_feedback(2, counted(0.0, 0.0, 0.0)),
            ],
            100.0,
        );
        let hung = WorkerFeedback {
            age_s: 6.0,
            ..worker_feedback(2, counted(0.0, 0.0, 0.0))
        };
        meter.take_in(
            &[worker_feedback(1, counted(5.0, 0.0, 0.0)), hung.clone()],
            105.0,
        );
        assert_eq!(
            meter.over(5.0).unwrap(),
            Span {
                work: counted(5.0, 0.0, 0.0),
                at: 104.5
            }
        );

        meter.take_in(
            &[
                WorkerFeedback {
                    age_s: 9.0,
                    ..worker_feedback(1, counted(6.0, 0.0, 0.0))
                },
                WorkerFeedback {
                    age_s: 11.0,
                    ..hung
                },
            ],
            110.0,
        );
        assert_eq!(
            meter.at(),
            Some(104.5),
            "no worker reported: the time is unchanged"
        );
        assert!(meter.over(5.0).unwrap().work.completed == 5.0);

        meter.take_in(
            &[
                worker_feedback(1, counted(7.0, 0.0, 0.0)),
                worker_feedback(2, counted(3.0, 0.0, 0.0)),
            ],
            115.0,
        );
        assert_eq!(
            meter.over(5.0).unwrap().work.completed,
            5.0,
            "late is not lost"
        );
    }

    #[test]
    fn after_the_clock_was_set_back_the_feedback_goes_on_at_once() {
        let mut meter = FeedbackMeter::default();
        let mut take_in = |completed, now| {
            meter.take_in(&[worker_feedback(1, counted(completed, 0.0, 0.0))], now);
            meter.over(5.0)
        };
        take_in(0.0, 1000.0);
        take_in(5.0, 1005.0);
        assert_eq!(
            take_in(9.0, 1003.0).unwrap().work.completed,
            5.0,
            "one that is late knows less"
        );

        take_in(10.0, 405.0);
        take_in(20.0, 410.0);
        let span = take_in(27.0, 415.0).unwrap();
        assert_eq!((span.work.completed, span.at), (7.0, 414.5));
    }

    #[test]
    fn nothing_at_work_is_idle_and_work_that_does_not_end_is_not() {
        let mut meter = FeedbackMeter::default();
        meter.take_in(&[], 100.0);
        meter.take_in(&[], 105.0);
        assert!(meter.is_idle(5.0));
        meter.take_in(
            &[WorkerFeedback {
                running: 1.0,
                born_s: 1.0,
                ..worker_feedback(1, counted(0.0, 0.0, 0.0))
            }],
            110.0,
        );
        assert!(!meter.is_idle(5.0));
        meter.take_in(
            &[WorkerFeedback {
                born_s: 6.0,
                ..worker_feedback(1, counted(1.0, 0.0, 0.0))
            }],
            115.0,
        );
        assert!(!meter.is_idle(5.0), "something has ended");
        meter.take_in(
            &[WorkerFeedback {
                born_s: 11.0,
                ..worker_feedback(1, counted(1.0, 0.0, 0.0))
            }],
            120.0,
        );
        assert!(meter.is_idle(5.0));
    }

    #[test]
    fn durations_are_summed_as_counters_are_and_those_that_say_nothing_are_left_out_of_the_mean() {
        let took = |ms: &[u64]| {
            let mut durations = Durations::default();
            ms.iter()
                .for_each(|ms| durations.note(std::time::Duration::from_millis(*ms)));
            durations
        };
        let of = |worker, completed, ms: &[u64]| WorkerFeedback {
            durations: took(ms),
            ..worker_feedback(worker, counted(completed, 0.0, 0.0))
        };
        let mut meter = FeedbackMeter::default();
        meter.take_in(&[of(1, 2.0, &[5, 5]), of(2, 1.0, &[900])], 100.0);
        assert_eq!(meter.durations_over(5.0), None);

        meter.take_in(&[of(1, 3.0, &[5, 5, 70]), of(2, 2.0, &[900, 900])], 105.0);
        assert_eq!(meter.durations_over(5.0).unwrap(), took(&[70, 900]));
        // The first was reset.
        meter.take_in(&[of(1, 1.0, &[5]), of(2, 3.0, &[900, 900, 10])], 110.0);
        assert_eq!(meter.durations_over(5.0).unwrap().count(), 1);
        assert_eq!(meter.durations_over(10.0).unwrap().count(), 3);

        let half = Feedback {
            completed: 4.0,
            busy_s: 1.0,
            untimed: 2.0,
            ..Feedback::default()
        };
        assert_eq!(half.mean_duration_s(), Some(0.5));
        assert_eq!(
            Feedback {
                untimed: 4.0,
                ..half
            }
            .mean_duration_s(),
            None
        );
    }

    #[test]
    fn many_looks_are_thinned_and_old_ones_dropped() {
        let mut meter = FeedbackMeter::default();
        for tenth in 0..40_000 {
            let now = f64::from(tenth) / 10.0;
            meter.take_in(
                &[worker_feedback(1, counted(f64::from(tenth), 0.0, 0.0))],
                now,
            );
        }
        assert!(
            meter.looks.len() as f64 <= 2.0 * KEPT_S / APART_S,
            "{}",
            meter.looks.len()
        );
        let minute = meter.over(60.0).unwrap().work.completed;
        assert!((minute - 600.0).abs() < 6.0, "{minute}");
        let all = meter.over(1800.0).unwrap().work.completed;
        assert!((all - 18_000.0).abs() < 10.0, "{all}");
    }
}
