//! A sample of all throttles at one moment.

use std::collections::BTreeMap;
use std::iter::successors;

use jiff::Timestamp;

use crate::api::throttles::measured::Measured;
use crate::api::throttles::view;
use crate::throttle::OnStoreLoss;
use crate::throttle::api_limit::is_of_the_api;
use crate::throttle::tenant::tenant_of;
use crate::throttle::tree::MAX_LEVELS;

/// Returns the place of a throttle among those that are shown where there is no room for all; the
/// lowest is first. Tenants have throttles of their own, and the limits of the API have some for
/// each tenant: neither may hide those that operators made.
pub(super) fn rank(name: &str, is_governed: bool, is_busy: bool) -> (bool, bool, u8) {
    let origin = if is_of_the_api(name) {
        2
    } else {
        u8::from(tenant_of(name).is_some())
    };
    (!is_governed, !is_busy, origin)
}

/// The measurements of one second.
#[derive(Clone, Debug, Default)]
pub struct LiveSample {
    /// The time of the sample.
    pub at: Timestamp,
    /// The throttles by name: those that exist, and names that only jobs use.
    pub throttles: BTreeMap<String, Measured>,
    /// The time of the last count of jobs; `None` before the first count.
    pub counted_at: Option<Timestamp>,
    /// Jobs that hold a lease.
    pub running_total: i64,
    /// The number of live workers.
    pub workers: i64,
    /// The number of live processes with the role `runner`, which are among them.
    pub runners: i64,
    /// True while the throttle store does not answer.
    pub is_store_lost: bool,
    /// True while Postgres does not answer, or accepts no writes.
    pub is_queue_lost: bool,
    /// True while no job starts for want of an answer or of writes of Postgres.
    pub is_queue_unwritable: bool,
    /// True while everything is paused.
    pub is_paused: bool,
}

impl LiveSample {
    /// Sets the inherited state of each throttle below one that grants nothing.
    pub(super) fn look_above(&mut self) {
        let state_above = |measured: &Measured| {
            self.above(measured)
                .find_map(|above| view::state_below(above.status.as_ref()?))
        };
        let states: Vec<_> = self.throttles.values().map(state_above).collect();
        for (measured, state) in self.throttles.values_mut().zip(states) {
            measured.above = state;
        }
    }

    /// Marks the throttles whose jobs do not start because Postgres or Redis accepts no writes.
    pub fn mark_unwritable(&mut self) {
        let (no_queue, is_store_lost) = (self.is_queue_unwritable, self.is_store_lost);
        for (name, measured) in &mut self.throttles {
            // The limits of an API have no jobs, and grant without Postgres.
            let needs_queue = !is_of_the_api(name);
            // Without Redis the others grant by themselves.
            let status = measured.status.as_ref();
            let is_closed =
                status.is_some_and(|status| status.knobs.on_store_loss == OnStoreLoss::Closed);
            measured.is_unwritable = no_queue && needs_queue || is_store_lost && is_closed;
        }
    }

    /// Returns the highest share of the last seconds in which one of the throttles above held its
    /// callers back; `None` if there is none.
    pub fn limiting_share_above(&self, measured: &Measured) -> Option<f64> {
        self.above(measured)
            .filter_map(|above| Some(above.slope?.limiting_share))
            .reduce(f64::max)
    }

    /// Returns the throttles above one, the nearest first.
    fn above(&self, measured: &Measured) -> impl Iterator<Item = &Measured> {
        successors(self.parent(measured), move |below| self.parent(below)).take(MAX_LEVELS)
    }

    fn parent(&self, measured: &Measured) -> Option<&Measured> {
        let status = measured.status.as_ref()?;
        self.throttles.get(status.knobs.parent.as_ref()?.as_str())
    }

    /// Returns at most `max` throttles: governed ones first, then busy ones, then by name, and
    /// those of tenants and of the API's limits last.
    pub fn chosen(&self, max: usize) -> impl Iterator<Item = (&str, &Measured)> {
        let mut all: Vec<(&str, &Measured)> = self
            .throttles
            .iter()
            .map(|(name, measured)| (name.as_str(), measured))
            .collect();
        if all.len() > max {
            let is_busy = |measured: &Measured| measured.depth.ready + measured.depth.running > 0;
            all.sort_by_key(|(name, measured)| {
                rank(name, measured.governor.is_some(), is_busy(measured))
            });
            all.truncate(max);
        }
        all.into_iter()
    }
}
