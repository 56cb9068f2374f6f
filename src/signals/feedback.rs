//! What the work itself says: how much was done, how much was refused or failed, how long it took.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::control::durations::Durations;

/// Counters whose worker has been silent for longer say nothing about now, in seconds.
const FRESH_S: f64 = 5.0;

/// Looks are kept for this long, in seconds: the longest time that a signal may average over.
const KEPT_S: f64 = 1800.0;

/// Of three looks that are kept the first and the last are at least this far apart, in seconds.
const APART_S: f64 = 0.5;

/// Counters that began this long before the last look may still have been missed by it, in seconds: what it saw was a little old.
const MISSED_S: f64 = 1.0;

/// A look that is this much too young for the beginning of a span still is that, in seconds.
const NEARLY_S: f64 = 0.05;

/// Counters of work. They only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Feedback {
    /// Units of work that succeeded.
    pub completed: f64,
    /// Units that were refused (429 and its kin).
    pub refused: f64,
    /// Units that failed otherwise.
    pub failed: f64,
    /// Seconds spent on the units that succeeded, but for those that are `untimed`.
    pub busy_s: f64,
    /// Units that succeeded and whose duration says nothing.
    pub untimed: f64,
}

impl Feedback {
    /// What happened between `earlier` and `self`; `None` if the counters began again in between.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let step = Self {
            completed: self.completed - earlier.completed,
            refused: self.refused - earlier.refused,
            failed: self.failed - earlier.failed,
            busy_s: self.busy_s - earlier.busy_s,
            untimed: self.untimed - earlier.untimed,
        };
        let sound =
            [step.completed, step.refused, step.failed, step.busy_s, step.untimed].iter().all(|x| x.is_finite() && *x >= 0.0);
        sound.then_some(step)
    }

    /// Units that ended in any of these ways.
    pub fn ended(&self) -> f64 {
        self.completed + self.refused + self.failed
    }

    /// Mean seconds per unit that succeeded and was timed; `None` if none was.
    pub fn mean_duration_s(&self) -> Option<f64> {
        let timed = self.completed - self.untimed;
        (timed > 0.0).then(|| self.busy_s / timed)
    }

    /// The share of what ended that was refused; `None` if nothing did.
    pub fn refused_share(&self) -> Option<f64> {
        (self.ended() > 0.0).then(|| self.refused / self.ended())
    }

    /// The share of what ended that failed; `None` if nothing did.
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

/// What one worker has counted of one throttle.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// Which worker; one that starts anew is another.
    pub worker: i64,
    /// Its counters.
    pub counted: Feedback,
    /// How long the units took that succeeded and were timed; nothing where nobody asks for it.
    pub durations: Durations,
    /// Units that it is at now.
    pub running: f64,
    /// How long ago that was so, in seconds.
    pub age_s: f64,
    /// How long ago its counters began at 0, in seconds.
    pub born_s: f64,
}

/// Answers what the living workers have counted of the throttle of that name; `None` if that is not known.
pub type FeedbackSource = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Vec<Told>>> + Send + Sync>;

/// A source that knows nothing.
pub fn no_feedback() -> FeedbackSource {
    Arc::new(|_| Box::pin(std::future::ready(None)))
}

/// What happened in a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// The work.
    pub work: Feedback,
    /// The span's end, in unix seconds.
    pub at: f64,
}

/// Adds up what workers count, whoever of them comes and goes: each one's steps are summed, and no step is negative.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    workers: BTreeMap<i64, (Feedback, Durations)>,
    total: Feedback,
    took: Durations,
    running: f64,
    /// When it was last asked, by the caller's clock.
    asked_at: Option<f64>,
    /// Sums as of their own times, oldest first.
    looks: VecDeque<Look>,
}

/// What had been counted at a time, in unix seconds.
#[derive(Clone, Debug)]
struct Look {
    at: f64,
    total: Feedback,
    took: Durations,
}

impl Meter {
    /// Takes in what the living workers have told, as of `now` in unix seconds.
    pub fn take_in(&mut self, told: &[Told], now: f64) {
        // Whoever asked earlier and comes later knows less. A clock that was set back is another matter.
        if self.asked_at.is_some_and(|asked_at| now < asked_at && now > asked_at - KEPT_S) {
            return;
        }
        let is_fresh = |one: &&Told| one.age_s <= FRESH_S;
        let oldest_s = told
            .iter()
            .filter(is_fresh)
            .map(|one| one.age_s.max(0.0))
            .fold(None, |most: Option<f64>, age_s| Some(most.map_or(age_s, |most| most.max(age_s))));
        // Where nobody lives nothing happens; where nobody has been heard of lately, nobody knows.
        let Some(oldest_s) = oldest_s.or(told.is_empty().then_some(0.0)) else { return };
        for one in told.iter().filter(is_fresh) {
            let step = match (self.workers.insert(one.worker, (one.counted, one.durations.clone())), self.asked_at) {
                (Some((counted, took)), _) => one.counted.since(&counted).zip(one.durations.since(&took)),
                // All that a worker counted since this was last asked is news; of older counters only what comes next is.
                (None, Some(asked_at)) if now - one.born_s >= asked_at - MISSED_S => Some((one.counted, one.durations.clone())),
                (None, _) => None,
            };
            if let Some((counted, took)) = step {
                self.total.add(&counted);
                self.took.add(&took);
            }
        }
        self.workers.retain(|worker, _| told.iter().any(|one| one.worker == *worker));
        self.running = told.iter().map(|one| one.running).sum();
        self.asked_at = Some(now);
        self.note(now - oldest_s);
    }

    /// The last `span_s` seconds, or as much of them as is known; `None` while nothing is.
    pub fn over(&self, span_s: f64) -> Option<Span> {
        let (first, last) = self.looks_over(span_s)?;
        Some(Span { work: last.total.since(&first.total)?, at: last.at })
    }

    /// How long the units took that succeeded in the last `span_s` seconds; as [`Self::over`].
    pub fn durations_over(&self, span_s: f64) -> Option<Durations> {
        let (first, last) = self.looks_over(span_s)?;
        last.took.since(&first.took)
    }

    /// The first and the last look of the last `span_s` seconds, or of as many of them as are known.
    fn looks_over(&self, span_s: f64) -> Option<(&Look, &Look)> {
        let last = self.looks.back()?;
        let begins = |look: &&Look| look.at <= last.at - span_s + NEARLY_S;
        let first = self.looks.iter().rev().find(begins).or(self.looks.front())?;
        (first.at < last.at).then_some((first, last))
    }

    /// The time of the newest look, in unix seconds.
    pub fn at(&self) -> Option<f64> {
        self.looks.back().map(|look| look.at)
    }

    /// Units that were at work when it was last looked at; `None` before the first look.
    pub fn running(&self) -> Option<f64> {
        self.asked_at.map(|_| self.running)
    }

    /// Nothing was at work when it was last looked at, and nothing ended in the last `span_s` seconds: there is nothing to be said,
    /// which is not the same as silence.
    pub fn is_idle(&self, span_s: f64) -> bool {
        self.running <= 0.0 && self.over(span_s).is_some_and(|span| span.work.ended() <= 0.0)
    }

    fn note(&mut self, at: f64) {
        if self.looks.back().is_some_and(|last| at < last.at - KEPT_S) {
            // The clock was set back.
            self.looks.clear();
        }
        let newest = self.looks.len();
        let look = |at| Look { at, total: self.total, took: self.took.clone() };
        if let Some(last) = self.looks.back().map(|last| last.at)
            && (at <= last || newest >= 2 && at - self.looks[newest - 2].at < APART_S)
        {
            self.looks[newest - 1] = look(at.max(last));
            return;
        }
        self.looks.push_back(look(at));
        while self.looks.front().is_some_and(|oldest| oldest.at < at - KEPT_S - 2.0 * APART_S) {
            self.looks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(completed: f64, refused: f64, failed: f64) -> Feedback {
        Feedback { completed, refused, failed, busy_s: completed * 0.1, untimed: 0.0 }
    }

    fn told(worker: i64, counted: Feedback) -> Told {
        Told { worker, counted, durations: Durations::default(), running: 0.0, age_s: 0.5, born_s: 1e6 }
    }

    #[test]
    fn counters_that_begin_again_say_nothing_about_the_time_between() {
        let (earlier, later) = (counted(10.0, 1.0, 0.0), counted(30.0, 1.0, 2.0));
        let step = later.since(&earlier).unwrap();
        assert!((step.mean_duration_s().unwrap() - 0.1).abs() < 1e-12);
        assert_eq!((step.failed_share(), step.refused_share()), (Some(2.0 / 22.0), Some(0.0)));
        assert_eq!(earlier.since(&later), None);
        assert_eq!(later.since(&later).unwrap().mean_duration_s(), None);
        assert_eq!(later.since(&later).unwrap().failed_share(), None);
    }

    #[test]
    fn the_steps_of_all_workers_are_summed_and_none_is_negative() {
        let mut meter = Meter::default();
        meter.take_in(&[told(1, counted(1000.0, 0.0, 0.0)), told(2, counted(500.0, 50.0, 0.0))], 100.0);
        assert_eq!(meter.over(5.0), None, "what was before the first look is not news");

        meter.take_in(&[told(1, counted(1010.0, 0.0, 1.0)), told(2, counted(520.0, 53.0, 0.0))], 105.0);
        let span = meter.over(5.0).unwrap();
        assert_eq!((span.work.completed, span.work.refused, span.work.failed, span.at), (30.0, 3.0, 1.0, 104.5));

        // The first has begun again, the second is gone, a third has been there since long before and a fourth was just born.
        let young = Told { born_s: 2.0, ..told(4, counted(7.0, 0.0, 0.0)) };
        meter.take_in(&[told(1, counted(4.0, 0.0, 0.0)), told(3, counted(900.0, 9.0, 9.0)), young], 110.0);
        assert_eq!(meter.over(5.0).unwrap().work.completed, 7.0);
        assert_eq!(meter.over(10.0).unwrap().work.completed, 37.0);
        meter.take_in(&[told(1, counted(6.0, 0.0, 0.0)), told(3, counted(901.0, 9.0, 9.0))], 115.0);
        assert_eq!(meter.over(5.0).unwrap().work.completed, 3.0);
    }

    #[test]
    fn a_worker_that_is_silent_is_left_out_until_it_is_heard_again() {
        let mut meter = Meter::default();
        meter.take_in(&[told(1, counted(0.0, 0.0, 0.0)), told(2, counted(0.0, 0.0, 0.0))], 100.0);
        let hung = Told { age_s: 6.0, ..told(2, counted(0.0, 0.0, 0.0)) };
        meter.take_in(&[told(1, counted(5.0, 0.0, 0.0)), hung.clone()], 105.0);
        assert_eq!(meter.over(5.0).unwrap(), Span { work: counted(5.0, 0.0, 0.0), at: 104.5 });

        meter.take_in(&[Told { age_s: 9.0, ..told(1, counted(6.0, 0.0, 0.0)) }, Told { age_s: 11.0, ..hung }], 110.0);
        assert_eq!(meter.at(), Some(104.5), "nobody was heard of: the time stands");
        assert!(meter.over(5.0).unwrap().work.completed == 5.0);

        meter.take_in(&[told(1, counted(7.0, 0.0, 0.0)), told(2, counted(3.0, 0.0, 0.0))], 115.0);
        assert_eq!(meter.over(5.0).unwrap().work.completed, 5.0, "late is not lost");
    }

    #[test]
    fn nothing_at_work_is_idle_and_work_that_does_not_end_is_not() {
        let mut meter = Meter::default();
        meter.take_in(&[], 100.0);
        meter.take_in(&[], 105.0);
        assert!(meter.is_idle(5.0));
        meter.take_in(&[Told { running: 1.0, born_s: 1.0, ..told(1, counted(0.0, 0.0, 0.0)) }], 110.0);
        assert!(!meter.is_idle(5.0));
        meter.take_in(&[Told { born_s: 6.0, ..told(1, counted(1.0, 0.0, 0.0)) }], 115.0);
        assert!(!meter.is_idle(5.0), "something has ended");
        meter.take_in(&[Told { born_s: 11.0, ..told(1, counted(1.0, 0.0, 0.0)) }], 120.0);
        assert!(meter.is_idle(5.0));
    }

    #[test]
    fn durations_are_summed_as_counters_are_and_those_that_say_nothing_are_left_out_of_the_mean() {
        let took = |ms: &[u64]| {
            let mut durations = Durations::default();
            ms.iter().for_each(|ms| durations.note(std::time::Duration::from_millis(*ms)));
            durations
        };
        let of = |worker, completed, ms: &[u64]| Told { durations: took(ms), ..told(worker, counted(completed, 0.0, 0.0)) };
        let mut meter = Meter::default();
        meter.take_in(&[of(1, 2.0, &[5, 5]), of(2, 1.0, &[900])], 100.0);
        assert_eq!(meter.durations_over(5.0), None);

        meter.take_in(&[of(1, 3.0, &[5, 5, 70]), of(2, 2.0, &[900, 900])], 105.0);
        assert_eq!(meter.durations_over(5.0).unwrap(), took(&[70, 900]));
        // The first has begun again.
        meter.take_in(&[of(1, 1.0, &[5]), of(2, 3.0, &[900, 900, 10])], 110.0);
        assert_eq!(meter.durations_over(5.0).unwrap().count(), 1);
        assert_eq!(meter.durations_over(10.0).unwrap().count(), 3);

        let half = Feedback { completed: 4.0, busy_s: 1.0, untimed: 2.0, ..Feedback::default() };
        assert_eq!(half.mean_duration_s(), Some(0.5));
        assert_eq!(Feedback { untimed: 4.0, ..half }.mean_duration_s(), None);
    }

    #[test]
    fn many_looks_are_thinned_and_old_ones_dropped() {
        let mut meter = Meter::default();
        for tenth in 0..40_000 {
            let now = f64::from(tenth) / 10.0;
            meter.take_in(&[told(1, counted(f64::from(tenth), 0.0, 0.0))], now);
        }
        assert!(meter.looks.len() as f64 <= 2.0 * KEPT_S / APART_S, "{}", meter.looks.len());
        let minute = meter.over(60.0).unwrap().work.completed;
        assert!((minute - 600.0).abs() < 6.0, "{minute}");
        let all = meter.over(1800.0).unwrap().work.completed;
        assert!((all - 18_000.0).abs() < 10.0, "{all}");
    }
}
