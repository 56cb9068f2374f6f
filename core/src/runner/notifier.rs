//! The notifier that wakes the dispatcher, used by producers, by promotion and rescue, and by jobs
//! that return to their lane.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::jobs::activity::Activity;

/// Most lanes remembered one by one between two polls; further ones count as work somewhere.
const MAX_LANES: usize = 20_000;

/// The notifications since the dispatcher last read them.
#[derive(Debug, Default, PartialEq)]
pub(super) struct PendingWakeups {
    /// Lanes that have work.
    pub(super) lanes: BTreeSet<i64>,
    /// True if there is work in a lane that was not named.
    pub(super) somewhere: bool,
    /// True if a poll found work that no notification named.
    pub(super) unheard: bool,
    /// The number of notifications.
    pub(super) times: u32,
}

#[derive(Default)]
pub(super) struct Notifier {
    woken: Mutex<PendingWakeups>,
    notify: Notify,
    activity: Arc<Activity>,
}

impl Notifier {
    /// Creates a notifier whose notifications are events in `activity`.
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        Self {
            activity,
            ..Self::default()
        }
    }

    /// Notifies of lanes that have work or, if none is named, of work somewhere.
    pub(super) fn notify(&self, lanes: &[i64]) {
        let mut woken = self.lock();
        woken.times += 1;
        let room = MAX_LANES.saturating_sub(woken.lanes.len());
        woken.somewhere |= lanes.is_empty() || lanes.len() > room;
        // A caller that names many lanes names the most urgent first.
        woken.lanes.extend(lanes.iter().take(room));
        drop(woken);
        self.activity.note(Instant::now());
        self.notify.notify_one();
    }

    /// Notifies of work that a poll found and no notification named, so that the dispatcher looks in
    /// every way that it has.
    pub(super) fn notify_unheard(&self) {
        self.lock().unheard = true;
        self.notify(&[]);
    }

    /// Returns the notifications since the last call, and forgets them.
    pub(super) fn take(&self) -> PendingWakeups {
        std::mem::take(&mut self.lock())
    }

    /// Waits for the next notification.
    pub(super) async fn notified(&self) {
        self.notify.notified().await;
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, PendingWakeups> {
        self.woken.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notifications_add_up_until_they_are_read() {
        let notifier = Notifier::default();
        notifier.notify(&[1, 2]);
        notifier.notify(&[2]);
        notifier.notify(&[]);

        assert_eq!(
            notifier.take(),
            PendingWakeups {
                lanes: [1, 2].into(),
                somewhere: true,
                unheard: false,
                times: 3
            }
        );
        assert_eq!(notifier.take(), PendingWakeups::default());
    }
}
