//! The refusal of a whole throttle: its pause, and the probes that end it.

use super::learned::ProbeCredit;

/// A refusal that concerned a whole throttle.
#[derive(Clone, Debug, PartialEq)]
pub struct ThrottleRefusal {
    /// The end of the pause, unix microseconds.
    pub until: f64,
    /// The limit of jobs that may go at once after the pause.
    pub probe: ProbeCredit,
    /// The number of refusals in a row without a success in between.
    pub strikes: f64,
    /// The answer of the server, as text.
    pub why: String,
}

impl ThrottleRefusal {
    /// Returns the strikes before a refusal at `now`, as those of a key are counted.
    pub fn strikes_before(&self, now: f64) -> f64 {
        if self.until > now {
            (self.strikes - 1.0).max(0.0)
        } else {
            self.strikes
        }
    }

    /// Returns the state after a refusal at `now` that pauses until `until`, following `before`.
    pub fn again(before: Option<&Self>, now: f64, until: f64, why: &str) -> Self {
        let begun = |until: f64, strikes: f64| Self {
            until,
            probe: ProbeCredit::begin(until),
            strikes,
            why: why.to_owned(),
        };
        match before {
            // A job that was under way when the others were refused adds no information.
            Some(known) if known.until > now && known.until >= until => known.clone(),
            Some(known) if known.until > now => begun(until, known.strikes),
            Some(known) => begun(until, known.strikes + 1.0),
            None => begun(until, 1.0),
        }
    }

    /// Records answers at `now`; returns true once the refusal no longer limits anything.
    pub fn answered(&mut self, succeeded: f64, failed: f64, now: f64) -> bool {
        if now < self.until {
            return false;
        }
        if succeeded > 0.0 {
            self.strikes = 0.0;
        }
        self.probe.answered(succeeded, failed, true, now);
        self.probe.credit < 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: f64 = 1e6;

    #[test]
    fn a_throttles_refusal_ends_with_its_probes() {
        let mut refusal = ThrottleRefusal::again(None, 0.0, S, "busy");
        assert!(
            !refusal.answered(1.0, 0.0, 0.5 * S),
            "a straggler's success is no probe's"
        );
        assert_eq!(
            ThrottleRefusal::again(Some(&refusal), 0.5 * S, 0.7 * S, "again"),
            refusal
        );
        refusal.probe.take(1.0, S);
        assert!(!refusal.answered(1.0, 0.0, S));
        assert!(refusal.answered(8.0, 0.0, S));
    }
}
