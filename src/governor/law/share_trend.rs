//! The trend of a day's share of complaints, and what chance makes of it.

use super::part::all_finite;
use crate::control::ewma;

/// The time over which the trend is seen, and for which it is expected to go on, in seconds: a little
/// longer than most complaints take to come.
const TREND_S: f64 = 10_800.0;
/// The time of the chance that counts, in seconds.
const CHANCE_S: f64 = 7200.0;
/// The standard errors by which a share must be above the setpoint to brake.
const ERRORS: f64 = 3.0;
/// The time over which chance is learned, in seconds.
const LEARN_S: f64 = 86_400.0;

/// The newest share, its mean, and its walk by chance, in setpoints.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ShareTrend {
    newest: f64,
    mean: f64,
    /// The variance of its steps in a second.
    walk: f64,
}

impl ShareTrend {
    pub(super) fn new(share: f64) -> Self {
        Self {
            newest: share,
            mean: share,
            walk: 0.0,
        }
    }

    pub(super) fn learn(&mut self, share: f64, dt: f64) {
        let step = share - self.newest;
        self.walk = ewma::toward(self.walk, step * step / dt.max(1.0), dt, LEARN_S);
        self.mean = ewma::toward(self.mean, share, dt, TREND_S);
        self.newest = share;
    }

    /// Returns by how much the share will be above the setpoint if it goes on as before. One that
    /// falls is taken as it is.
    pub(super) fn over(&self) -> f64 {
        self.newest + (self.newest - self.mean).max(0.0) - 1.0
    }

    /// Returns by how much chance alone may move the share.
    pub(super) fn chance(&self) -> f64 {
        ERRORS * (self.walk * CHANCE_S).sqrt()
    }

    pub(super) fn rescale(&mut self, factor: f64) {
        self.newest *= factor;
        self.mean *= factor;
        self.walk *= factor * factor;
    }

    pub(super) fn is_sound(&self) -> bool {
        all_finite([self.newest, self.mean, self.walk]) && self.walk >= 0.0
    }
}
