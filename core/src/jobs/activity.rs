//! The memory of a process of when something last happened in its queue. Pure; time is an argument.
//!
//! Loops that poll by themselves poll less often while the queue is quiet, and as often as ever as
//! soon as it is not.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time without an event after which a queue may be quiet.
const QUIET_AFTER: Duration = Duration::from_secs(3);

/// Time for which a poll that found nothing holds. Polls come once a second; without them nobody
/// knows that nothing happens.
const LOOK_HOLDS: Duration = Duration::from_secs(3);

/// The times of the last event and of the last poll that found nothing.
#[derive(Debug, Default)]
pub struct Activity(Mutex<ActivityTimes>);

#[derive(Debug, Default)]
struct ActivityTimes {
    event: Option<Instant>,
    found_nothing: Option<Instant>,
}

impl Activity {
    /// Records an event: a notification, the end of a job, work that a poll found.
    pub fn note(&self, now: Instant) {
        let mut times = self.0.lock();
        times.event = times.event.max(Some(now));
        times.found_nothing = None;
    }

    /// Records a poll, begun at `begun`, that found no work. An event after its begin counts more.
    pub fn found_nothing(&self, begun: Instant) {
        let mut times = self.0.lock();
        if times.event.is_none_or(|event| event < begun) {
            times.found_nothing = Some(begun);
        }
    }

    /// Returns true if there was no event for a while, so that a poll for work shows whether the
    /// queue is quiet.
    pub fn may_be_quiet(&self, now: Instant) -> bool {
        let event = self.0.lock().event;
        event.is_none_or(|event| now.saturating_duration_since(event) >= QUIET_AFTER)
    }

    /// Returns true if there was no event for a while and the last poll found no work. Without a
    /// process that looks, a queue is never quiet.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let found_nothing = self.0.lock().found_nothing;
        let holds = |look| now.saturating_duration_since(look) < LOOK_HOLDS;
        found_nothing.is_some_and(holds) && self.may_be_quiet(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_queue_is_quiet_while_looks_find_nothing_and_nothing_happens() {
        let (activity, start) = (Activity::default(), Instant::now());
        assert!(!activity.is_quiet(start), "nobody looked");

        activity.found_nothing(start);
        assert!(activity.is_quiet(start + SECOND));
        assert!(!activity.is_quiet(start + 3 * SECOND), "the looks ended");

        activity.note(start + 4 * SECOND);
        assert!(!activity.may_be_quiet(start + 5 * SECOND));
        activity.found_nothing(start + 6 * SECOND);
        assert!(!activity.is_quiet(start + 6 * SECOND), "it was just busy");
        assert!(activity.is_quiet(start + 7 * SECOND));
    }

    #[test]
    fn an_event_ends_the_quiet_at_once_also_while_a_look_is_under_way() {
        let (activity, start) = (Activity::default(), Instant::now());
        activity.found_nothing(start);
        assert!(activity.is_quiet(start + SECOND));

        activity.note(start + SECOND);
        assert!(!activity.is_quiet(start + SECOND));
        activity.found_nothing(start + SECOND / 2);
        assert!(!activity.is_quiet(start + 5 * SECOND / 2));
    }
}
