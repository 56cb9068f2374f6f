//! Reports on the running jobs of each throttle.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::ring::Ring;
use super::{HOLD_REPORT_INTERVAL, HoldReport, LaneScheduler};
use crate::runner::lane::LaneStatus;
use crate::throttle::Name;

/// Interval of reports on a throttle whose running jobs are not counted, because a person may begin
/// to count at any time.
pub(super) const UNCOUNTED_REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// Pause before a failed report is sent again.
pub(super) const REPORT_RETRY_DELAY: Duration = Duration::from_millis(250);

impl LaneScheduler {
    /// Counts a job that another process had counted until now.
    pub fn take_over(&mut self, id: i64, throttle: Name, key: String) {
        self.lane_of(id, throttle, key, 1.0);
        self.hold(id, 1);
    }

    pub(super) fn hold(&mut self, id: i64, jobs: i64) {
        if jobs == 0 {
            return;
        }
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let ring = &mut self.rings[lane.ring];
        let held_before = lane.held > 0;
        lane.held = (i64::from(lane.held) + jobs).max(0) as u32;
        ring.held = (i64::from(ring.held) + jobs).max(0) as u32;
        match (held_before, lane.held > 0) {
            (false, true) => _ = ring.holding.insert(id),
            (true, false) => _ = ring.holding.remove(&id),
            _ => {}
        }
        // A granted job that was not found is a release as well, because the ask reported it as
        // running.
        if jobs < 0 && ring.counts {
            ring.released.insert(id);
        }
        if !ring.is_reporting {
            ring.is_reporting = true;
            self.reporting.push(lane.ring);
        }
        // The next ask reports the slot as free.
        if jobs < 0 && lane.wants_slot && matches!(lane.status, LaneStatus::Waiting(_)) {
            self.stand(id, LaneStatus::Due);
        }
    }

    /// Returns true while some throttle whose running jobs are counted holds jobs.
    pub fn counts(&self) -> bool {
        let mut reporting = self.reporting.iter().map(|place| &self.rings[*place]);
        reporting.any(|ring| ring.counts && ring.held > 0)
    }

    /// Returns the time of the next report.
    pub(super) fn next_reports(&self, now: Instant) -> Option<Instant> {
        let reporting = self.reporting.iter().map(|place| &self.rings[*place]);
        let words = reporting
            .clone()
            .filter(|ring| ring.counts && ring.held > 0)
            .map(|ring| ring.reported_at.map_or(now, |at| at + HOLD_REPORT_INTERVAL));
        let releases = reporting
            .filter(|ring| !ring.released.is_empty())
            .map(|ring| ring.unheard_until.unwrap_or(now));
        words.chain(releases).min()
    }

    /// Returns the reports on running jobs that are due, mostly of throttles whose running jobs are
    /// counted.
    pub fn due_reports(&mut self, now: Instant) -> Vec<HoldReport> {
        let (mut all, mut freed) = (Vec::new(), Vec::new());
        let (lanes, rings) = (&self.lanes, &mut self.rings);
        self.reporting.retain(|&place| {
            let ring = &mut rings[place];
            ring.is_reporting = ring.held > 0 || !ring.released.is_empty();
            if !ring.is_reporting {
                return false;
            }
            let every = if ring.counts {
                HOLD_REPORT_INTERVAL
            } else {
                UNCOUNTED_REPORT_INTERVAL
            };
            if ring.held > 0 && ring.reported_at.is_none() && !ring.counts {
                ring.reported_at = Some(now);
            }
            let is_due = ring.held > 0
                && ring
                    .reported_at
                    .is_none_or(|reported_at| now.duration_since(reported_at) >= every);
            if (!is_due && ring.released.is_empty())
                || ring.unheard_until.is_some_and(|at| now < at)
            {
                return true;
            }
            let mut ids = std::mem::take(&mut ring.released);
            if is_due {
                ids.extend(&ring.holding);
            }
            ring.reported_at = Some(now);
            ring.unheard_until = None;
            if ring.counts {
                // A slot freed here may be the one for which this throttle waits.
                freed.push(place);
            }
            all.push(ring.hold_report(place, ring.held, ids, |id| {
                lanes.get(&id).map(|lane| (&*lane.key, lane.held))
            }));
            true
        });
        for place in freed {
            self.block(place, None);
        }
        all
    }

    /// Records that a report failed. It is repeated soon, because keys that are not named keep
    /// their count.
    pub fn retry_report(&mut self, word: &HoldReport, now: Instant) {
        if !self.is_ring(word.ring, &word.throttle) {
            return;
        }
        let ring = &mut self.rings[word.ring];
        ring.released.extend(&word.ids);
        ring.unheard_until = Some(now + REPORT_RETRY_DELAY);
        if !ring.is_reporting {
            ring.is_reporting = true;
            self.reporting.push(word.ring);
        }
    }

    /// Returns the last reports of a worker that stops, by which it no longer runs jobs.
    pub fn final_reports(&mut self) -> Vec<HoldReport> {
        let mut all = Vec::new();
        for (place, ring) in self
            .rings
            .iter_mut()
            .enumerate()
            .filter(|(_, ring)| ring.counts || ring.held > 0)
        {
            let mut ids = std::mem::take(&mut ring.released);
            ids.extend(&ring.holding);
            all.push(ring.hold_report(place, 0, ids, |id| {
                self.lanes.get(&id).map(|lane| (&*lane.key, 0))
            }));
        }
        all
    }
}

impl Ring {
    /// Returns a report on those lanes of this throttle that are still known.
    fn hold_report<'a>(
        &self,
        place: usize,
        held: u32,
        ids: BTreeSet<i64>,
        lane: impl Fn(i64) -> Option<(&'a str, u32)>,
    ) -> HoldReport {
        let lanes = ids
            .iter()
            .filter_map(|id| lane(*id))
            .map(|(key, held)| (key.to_owned(), held));
        HoldReport {
            throttle: self.name.clone(),
            held,
            lanes: lanes.collect(),
            ids: ids.iter().copied().collect(),
            ring: place,
        }
    }
}
