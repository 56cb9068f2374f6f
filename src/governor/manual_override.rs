//! The last manual change: the author, time and reason of a change of mode or rate that was not the
//! governor's, and the mode after a manual mode with an end.
//!
//! Flyball's own interfaces write `by`, `at` and `why` beside a change. A person with `redis-cli`
//! may write `by` and `why` too; otherwise the author is unknown and the time is that of detection.

use super::actuator::Actuator;
use super::explain::format::number;
use super::law::part::{StatePart, all_finite};
use crate::throttle::{Knobs, Mode};

/// The author of the governor's own changes.
pub const GOVERNOR: &str = "governor";

/// A manual change of the mode or the rate.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct ManualOverride {
    /// The fields and their new values, such as `mode manual, rps 30`.
    pub what: String,
    /// The author, if recorded.
    pub by: Option<String>,
    /// The time in unix seconds.
    pub at: f64,
    /// The reason; empty if not recorded.
    pub why: String,
}

impl ManualOverride {
    /// Returns the author, for a sentence.
    pub fn who(&self) -> &str {
        self.by.as_deref().unwrap_or("somebody")
    }

    /// Returns the author and the reason, for a sentence: `ann ("deploy")`.
    pub fn who_and_why(&self) -> String {
        if self.why.is_empty() {
            self.who().to_owned()
        } else {
            format!("{} (\"{}\")", self.who(), self.why)
        }
    }
}

/// The knobs as last seen, to detect manual changes.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct OverrideWatch {
    seen: Option<KnobSnapshot>,
    /// The mode before the manual one, to which the throttle goes back.
    before: Option<Mode>,
    /// The last manual change, if any was seen.
    pub last: Option<ManualOverride>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct KnobSnapshot {
    mode: Mode,
    rps: Option<String>,
    seq: u64,
    by: String,
    why: String,
    /// The time of the last recorded change, in unix milliseconds.
    #[serde(default)]
    at_ms: i64,
}

impl OverrideWatch {
    /// Returns true if `knobs` are an older copy of those last seen, as a store has after a failover
    /// to a replica that is behind.
    pub fn is_ahead_of(&self, knobs: &Knobs) -> bool {
        let is_ahead = |seen: &KnobSnapshot| knobs.seq < seen.seq && knobs.at_ms <= seen.at_ms;
        self.seen.as_ref().is_some_and(is_ahead)
    }

    /// Returns the text of the knob at the last check, if there was one.
    pub fn text(&self) -> Option<&str> {
        self.seen.as_ref()?.rps.as_deref()
    }

    /// Compares the knobs at `now` (unix seconds) with the last check; returns true if a person has
    /// changed the mode or the rate since.
    ///
    /// `rps` is the text of the knob that `actuator` names; `ours` is true if the governor wrote
    /// it.
    pub fn see(
        &mut self,
        knobs: &Knobs,
        actuator: Actuator,
        rps: Option<&str>,
        ours: bool,
        now: f64,
    ) -> bool {
        let (by, why) = (knobs.by.clone(), knobs.why.clone());
        let last_ms = self.seen.as_ref().map_or(0, |seen| seen.at_ms);
        let sees = KnobSnapshot {
            mode: knobs.mode,
            rps: rps.map(str::to_owned),
            seq: knobs.seq,
            by,
            why,
            // A change in Redis directly has no time.
            at_ms: if knobs.at_ms > 0 {
                knobs.at_ms
            } else {
                last_ms
            },
        };
        let Some(saw) = self.seen.replace(sees.clone()) else {
            return false;
        };
        let mut what = Vec::new();
        if saw.mode != sees.mode {
            what.push(format!("mode {}", sees.mode.as_str()));
            if sees.mode == Mode::Manual {
                self.before = Some(saw.mode);
            }
        }
        if saw.rps != sees.rps && !ours {
            what.push(format!("{} {}", actuator.field(), rate(rps)));
        }
        if what.is_empty() {
            return false;
        }
        let is_recorded = saw.seq != sees.seq || (&saw.by, &saw.why) != (&sees.by, &sees.why);
        let is_named = is_recorded && !sees.by.is_empty() && sees.by != GOVERNOR;
        let dated = saw.seq != sees.seq && is_named && knobs.at_ms > 0;
        self.last = Some(ManualOverride {
            what: what.join(", "),
            by: is_named.then_some(sees.by),
            // The store's clock, limited to the time of this check.
            at: if dated {
                (knobs.at_ms as f64 / 1e3).min(now)
            } else {
                now
            },
            why: if is_named { sees.why } else { String::new() },
        });
        true
    }

    /// Returns the mode to return to if a manual mode with an end is over at `now`, unix seconds.
    pub fn over(&self, knobs: &Knobs, now: f64) -> Option<Mode> {
        let until_ms = knobs
            .manual_until_ms
            .filter(|_| knobs.mode == Mode::Manual)?;
        (until_ms as f64 / 1e3 <= now).then(|| self.before.unwrap_or(Mode::Auto))
    }

    /// Records that the governor itself returns to `mode` because of `why`.
    pub fn went_back(&mut self, mode: Mode, why: &str, now: f64) {
        if let Some(seen) = &mut self.seen {
            seen.mode = mode;
        }
        let what = format!("mode {}", mode.as_str());
        self.last = Some(ManualOverride {
            what,
            by: Some(GOVERNOR.to_owned()),
            at: now,
            why: why.to_owned(),
        });
    }
}

impl StatePart for OverrideWatch {
    fn shift(&mut self, by_s: f64) {
        if let Some(last) = &mut self.last {
            last.at += by_s;
        }
    }

    fn is_sound(&self) -> bool {
        all_finite(self.last.iter().map(|last| last.at))
    }
}

/// Formats a manual rate, short enough for a sentence.
fn rate(text: Option<&str>) -> String {
    match text.map(|text| (text, text.trim().parse::<f64>())) {
        None | Some(("", _)) => "removed".to_owned(),
        Some((_, Ok(rps))) if rps >= 0.0 => number(rps),
        Some((text, Ok(_))) => text.trim().chars().take(32).collect(),
        Some((text, Err(_))) => format!("{:?}", text.chars().take(32).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knobs(mode: Mode, seq: u64, by: &str, why: &str) -> Knobs {
        Knobs {
            mode,
            seq,
            by: by.to_owned(),
            why: why.to_owned(),
            at_ms: 990_000,
            ..Knobs::default()
        }
    }

    #[test]
    fn an_override_has_an_author_a_time_and_a_reason_where_they_are_recorded() {
        let mut watch = OverrideWatch::default();
        assert!(!watch.see(
            &knobs(Mode::Auto, 1, "governor", "load"),
            Actuator::Rps,
            Some("20"),
            true,
            980.0
        ));
        assert!(
            !watch.see(
                &knobs(Mode::Auto, 2, "governor", "load"),
                Actuator::Rps,
                Some("21"),
                true,
                985.0
            ),
            "its own writes are not an override"
        );
        assert_eq!(watch.last, None);

        // Through one of Flyball's interfaces.
        assert!(watch.see(
            &knobs(Mode::Manual, 3, "ann", "deploy"),
            Actuator::Rps,
            Some("30"),
            false,
            1000.0
        ));
        let ann = ManualOverride {
            what: "mode manual, rps 30".to_owned(),
            by: Some("ann".to_owned()),
            at: 990.0,
            why: "deploy".to_owned(),
        };
        assert_eq!(watch.last, Some(ann));
        assert!(!watch.see(
            &knobs(Mode::Manual, 3, "ann", "deploy"),
            Actuator::Rps,
            Some("30"),
            false,
            1005.0
        ));

        // With redis-cli: the recorded author belongs to another change.
        assert!(watch.see(
            &knobs(Mode::Manual, 3, "ann", "deploy"),
            Actuator::Rps,
            Some("0"),
            false,
            1010.0
        ));
        let nobody = ManualOverride {
            what: "rps 0".to_owned(),
            by: None,
            at: 1010.0,
            why: String::new(),
        };
        assert_eq!(watch.last, Some(nobody));

        // With redis-cli, and with a recorded author.
        assert!(watch.see(
            &knobs(Mode::Off, 3, "bob", "test"),
            Actuator::Rps,
            Some("0"),
            false,
            1020.0
        ));
        assert_eq!(watch.last.as_ref().unwrap().who_and_why(), "bob (\"test\")");
        assert_eq!(watch.last.as_ref().unwrap().at, 1020.0);
    }

    #[test]
    fn an_older_copy_of_the_knobs_is_not_taken_for_an_edit() {
        let at = |seq, at_ms| Knobs {
            at_ms,
            ..knobs(Mode::Auto, seq, "ann", "")
        };
        let mut watch = OverrideWatch::default();
        assert!(!watch.is_ahead_of(&at(0, 0)), "nothing was seen");
        watch.see(&at(50, 9_000), Actuator::Rps, Some("0"), false, 9.0);
        watch.see(&at(50, 0), Actuator::Rps, Some("5"), false, 10.0);
        assert!(watch.is_ahead_of(&at(49, 8_000)) && watch.is_ahead_of(&at(20, 9_000)));
        assert!(!watch.is_ahead_of(&at(50, 9_000)) && !watch.is_ahead_of(&at(51, 9_500)));
        assert!(!watch.is_ahead_of(&at(1, 9_500)), "made anew");
    }

    #[test]
    fn a_manual_mode_with_an_end_goes_back_to_the_mode_before() {
        let until = |mode, ms| Knobs {
            mode,
            manual_until_ms: ms,
            ..Knobs::default()
        };
        for before in [Mode::Auto, Mode::Shadow, Mode::Off] {
            let mut watch = OverrideWatch::default();
            watch.see(&until(before, None), Actuator::Rps, Some("5"), true, 900.0);
            watch.see(
                &until(Mode::Manual, Some(1_000_000)),
                Actuator::Rps,
                Some("5"),
                true,
                910.0,
            );
            assert_eq!(
                watch.over(&until(Mode::Manual, Some(1_000_000)), 999.0),
                None
            );
            assert_eq!(
                watch.over(&until(Mode::Manual, Some(1_000_000)), 1000.0),
                Some(before)
            );
            assert_eq!(
                watch.over(&until(Mode::Manual, None), 1e9),
                None,
                "without an end it stays"
            );
            assert_eq!(
                watch.over(&until(before, Some(1_000_000)), 2000.0),
                None,
                "it counts in manual mode only"
            );

            watch.went_back(before, "over", 1000.0);
            assert!(
                !watch.see(&until(before, None), Actuator::Rps, Some("5"), true, 1005.0),
                "no person did that"
            );
            assert_eq!(watch.last.as_ref().unwrap().by.as_deref(), Some("governor"));
        }
        assert_eq!(
            OverrideWatch::default().over(&until(Mode::Manual, Some(1)), 1000.0),
            Some(Mode::Auto),
            "where no other was seen"
        );
    }
}
