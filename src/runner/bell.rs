//! How the dispatcher is woken: by producers, by promotion and rescue, by jobs that come back to their lane.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

/// More lanes than this in one ring are not remembered one by one.
const MAX_LANES: usize = 20_000;

/// What was rung for since the dispatcher last looked.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Rung {
    /// Lanes that have work.
    pub(super) lanes: BTreeSet<i64>,
    /// There is work, but nobody said in which lane.
    pub(super) somewhere: bool,
    /// How often it was rung.
    pub(super) times: u32,
}

/// The bell.
#[derive(Default)]
pub(super) struct Bell {
    rung: Mutex<Rung>,
    notify: Notify,
}

impl Bell {
    /// Rings for lanes that have work, or, where none is named, for work somewhere.
    pub(super) fn ring(&self, lanes: &[i64]) {
        let mut rung = self.lock();
        rung.times += 1;
        let room = MAX_LANES.saturating_sub(rung.lanes.len());
        rung.somewhere |= lanes.is_empty() || lanes.len() > room;
        // Whoever names many names the most urgent first.
        rung.lanes.extend(lanes.iter().take(room));
        drop(rung);
        self.notify.notify_one();
    }

    /// What was rung for, which is forgotten by that.
    pub(super) fn take(&self) -> Rung {
        std::mem::take(&mut self.lock())
    }

    /// Waits until somebody rings.
    pub(super) async fn rung(&self) {
        self.notify.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Rung> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_add_up_until_they_are_heard() {
        let bell = Bell::default();
        bell.ring(&[1, 2]);
        bell.ring(&[2]);
        bell.ring(&[]);

        assert_eq!(bell.take(), Rung { lanes: [1, 2].into(), somewhere: true, times: 3 });
        assert_eq!(bell.take(), Rung::default());
    }
}
