//! What the work itself says: how much was done, how much was refused, how long it took.

use std::sync::Arc;

use futures_util::future::BoxFuture;

/// Counters of one throttle's work. They only grow, and may begin again at zero when a process restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Feedback {
    /// Units of work that succeeded.
    pub completed: f64,
    /// Units that were refused (429 and its kin).
    pub rejected: f64,
    /// Seconds spent on the units that succeeded.
    pub busy_s: f64,
}

impl Feedback {
    /// What happened between `earlier` and `self`; `None` if the counters began again in between.
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let step = Self {
            completed: self.completed - earlier.completed,
            rejected: self.rejected - earlier.rejected,
            busy_s: self.busy_s - earlier.busy_s,
        };
        let sound = [step.completed, step.rejected, step.busy_s].iter().all(|x| x.is_finite() && *x >= 0.0);
        sound.then_some(step)
    }

    /// Mean seconds per unit that succeeded; `None` if none did.
    pub fn mean_duration_s(&self) -> Option<f64> {
        (self.completed > 0.0).then(|| self.busy_s / self.completed)
    }
}

/// Answers the counters of the throttle of that name; `None` if they are not known.
pub type FeedbackSource = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Feedback>> + Send + Sync>;

/// A source that knows nothing.
pub fn no_feedback() -> FeedbackSource {
    Arc::new(|_| Box::pin(std::future::ready(None)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_begin_again_say_nothing_about_the_time_between() {
        let earlier = Feedback { completed: 10.0, rejected: 1.0, busy_s: 5.0 };
        let later = Feedback { completed: 30.0, rejected: 1.0, busy_s: 7.0 };
        assert_eq!(later.since(&earlier).unwrap().mean_duration_s(), Some(0.1));
        assert_eq!(earlier.since(&later), None);
        assert_eq!(later.since(&later).unwrap().mean_duration_s(), None);
    }
}
