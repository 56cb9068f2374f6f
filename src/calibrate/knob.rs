//! The knob that a test owns: its rate carries the mark of [`calibration`] and a short lease, until
//! the test puts it back or another writer changes it.

use std::sync::Arc;
use std::time::Duration;

use super::outcome::CalibrationEnd;
use crate::governor::{Actuator, calibration};
use crate::throttle::{self, Change, Mode, Name, Status, Store};

/// Lifetime of a written rate that this process does not renew, in milliseconds.
const LEASE_MS: i64 = 15_000;
/// Attempts to put the knob back.
const RESTORE_TRIES: u32 = 8;
/// Interval between attempts to put the knob back.
const RESTORE_INTERVAL: Duration = Duration::from_secs(1);

/// A knob under a lease that this process renews.
pub(super) struct LeasedKnob {
    pub(super) store: Arc<dyn Store>,
    pub(super) name: Name,
    /// The signal under test, for the history of the knob.
    pub(super) signal: String,
    /// The lifetime of a governor's own rate, in seconds.
    pub(super) lease_s: f64,
    /// The text that the knob is expected to have.
    pub(super) text: String,
    /// The end of the lease, in unix milliseconds.
    pub(super) until_ms: i64,
}

impl LeasedKnob {
    /// Writes a rate with the mark and a fresh lease, unless another writer has changed the knob
    /// meanwhile.
    pub(super) async fn write(&mut self, status: &Status, rps: f64) -> Result<(), throttle::Error> {
        let text = Actuator::Rps.spell(rps.clamp(status.knobs.min, status.knobs.max));
        let until_ms = status.at_us / 1000 + LEASE_MS;
        let fields = [
            ("rps", Some(text.clone())),
            ("valid_until", Some(until_ms.to_string())),
        ];
        let why = format!("pulse test of {}; flyball calibrate", self.signal);
        self.set(&fields, &self.text, calibration::CALIBRATION_ACTOR, why)
            .await?;
        (self.text, self.until_ms) = (text, until_ms);
        Ok(())
    }

    async fn set(
        &self,
        fields: &[(&str, Option<String>)],
        if_rps: &str,
        by: &str,
        why: String,
    ) -> Result<(), throttle::Error> {
        let fields = fields
            .iter()
            .map(|(field, text)| ((*field).to_owned(), text.clone()))
            .collect();
        let change = Change {
            fields,
            if_rps: Some(if_rps.to_owned()),
            by: by.to_owned(),
            why,
            ..Change::default()
        };
        self.store.set(&self.name, &change).await.map(|_| ())
    }

    /// Puts the knob back as it was if the test still owns it, or at `low` after an overload;
    /// returns the outcome as a sentence.
    pub(super) async fn put_back(&self, first: &Status, low: f64, stop: &CalibrationEnd) -> String {
        let mut error_text = String::new();
        for _ in 0..RESTORE_TRIES {
            match self.try_put_back(first, low, stop).await {
                Ok(sentence) => return sentence,
                Err(error) => error_text = error.to_string(),
            }
            tokio::time::sleep(RESTORE_INTERVAL).await;
        }
        format!(
            "Restoring the knob failed ({error_text}); its lease expires within {} s, then safe_rps is \
             in force.",
            LEASE_MS / 1000
        )
    }

    async fn try_put_back(
        &self,
        first: &Status,
        low: f64,
        stop: &CalibrationEnd,
    ) -> Result<String, throttle::Error> {
        let Some(status) = self.store.status(&self.name).await? else {
            return Ok("The throttle was deleted.".to_owned());
        };
        let text = status.raw.get("rps").cloned().unwrap_or_default();
        let lease = |kept: bool| {
            let until_ms = status.at_us / 1000 + (self.lease_s * 1e3) as i64;
            ("valid_until", kept.then(|| until_ms.to_string()))
        };
        if text != self.text {
            let is_marked =
                status.raw.get("by").map(String::as_str) == Some(calibration::CALIBRATION_ACTOR);
            if is_marked {
                // The rate was written directly into the store: it stays, but without the test's
                // mark and lease.
                self.set(
                    &[lease(false)],
                    &text,
                    calibration::ENDED,
                    "the knob was changed".to_owned(),
                )
                .await?;
            }
            return Ok(format!(
                "The knob keeps the value that someone else has set: {text}."
            ));
        }
        let original = first.raw.get("rps").cloned().unwrap_or_default();
        let (back, why) = match stop {
            // The rate before the test is no longer known to be safe.
            CalibrationEnd::Overload(why) if low < first.effective_rps.number() => (
                Actuator::Rps.spell(low.max(status.knobs.min)),
                format!("ended early: {why}"),
            ),
            CalibrationEnd::Overload(why)
            | CalibrationEnd::Hindered(why)
            | CalibrationEnd::Lost(why) => (original, format!("ended early: {why}")),
            CalibrationEnd::Whole | CalibrationEnd::Interrupted => (
                original,
                "the rate from before the test is restored".to_owned(),
            ),
        };
        let had_lease = first.raw.contains_key("valid_until");
        self.set(
            &[("rps", Some(back.clone())), lease(had_lease)],
            &text,
            calibration::ENDED,
            why,
        )
        .await?;
        Ok(format!("The knob is back at {back}."))
    }

    /// Returns [`CalibrationEnd::Lost`] if another writer has changed the knob, its mode or its
    /// pause.
    pub(super) fn lost(&self, status: &Status) -> Option<CalibrationEnd> {
        let knobs = &status.knobs;
        let text = status
            .raw
            .get("rps")
            .map(String::as_str)
            .unwrap_or_default();
        let why = if text != self.text {
            format!(
                "the knob was set to {text} by {}",
                match knobs.by.as_str() {
                    "" | calibration::CALIBRATION_ACTOR => "somebody",
                    by => by,
                }
            )
        } else if knobs.mode != Mode::Auto {
            format!("the mode became {}", knobs.mode.as_str())
        } else if knobs.paused {
            "the throttle was paused".to_owned()
        } else {
            return None;
        };
        Some(CalibrationEnd::Lost(why))
    }
}
