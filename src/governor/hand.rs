//! The last hand on the throttle: who turned its mode or its rate past the governor, when and why; and what comes after a
//! manual mode that has an end.
//!
//! A door of Flyball writes `by`, `at` and `why` beside a change. A person with `redis-cli` may write `by` and `why` too; where
//! they do not, nobody knows who it was, only when it was seen.

use super::actuator::Actuator;
use super::explain::number;
use crate::throttle::{Knobs, Mode};

/// Who writes the governor's own changes.
pub const GOVERNOR: &str = "governor";

/// What somebody did.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Hand {
    /// The fields and their new values, such as `mode manual, rps 30`.
    pub what: String,
    /// Who, as far as it was told.
    pub by: Option<String>,
    /// When, in unix seconds.
    pub at: f64,
    /// Why; empty where it was not told.
    pub why: String,
}

impl Hand {
    /// Who, for a sentence.
    pub fn who(&self) -> &str {
        self.by.as_deref().unwrap_or("somebody")
    }

    /// Who and why, for a sentence: `ann ("deploy")`.
    pub fn who_and_why(&self) -> String {
        if self.why.is_empty() { self.who().to_owned() } else { format!("{} (\"{}\")", self.who(), self.why) }
    }
}

/// The knobs as they were last seen, so that a hand on them is noticed.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Watch {
    seen: Option<Seen>,
    /// The mode before the manual one, to which the throttle goes back.
    before: Option<Mode>,
    /// The last hand, if any was seen.
    pub hand: Option<Hand>,
}

#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
struct Seen {
    mode: Mode,
    rps: Option<String>,
    seq: u64,
    by: String,
    why: String,
}

impl Watch {
    /// Looks at the knobs at `now` (unix seconds), where `rps` is the text of the knob that `actuator` names and `ours` says that the governor wrote it.
    /// True if somebody has turned the mode or the rate since the last look.
    pub fn see(&mut self, knobs: &Knobs, actuator: Actuator, rps: Option<&str>, ours: bool, now: f64) -> bool {
        let (by, why) = (knobs.by.clone(), knobs.why.clone());
        let sees = Seen { mode: knobs.mode, rps: rps.map(str::to_owned), seq: knobs.seq, by, why };
        let Some(saw) = self.seen.replace(sees.clone()) else { return false };
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
        let told = saw.seq != sees.seq || (&saw.by, &saw.why) != (&sees.by, &sees.why);
        let is_named = told && !sees.by.is_empty() && sees.by != GOVERNOR;
        let dated = saw.seq != sees.seq && is_named && knobs.at_ms > 0;
        self.hand = Some(Hand {
            what: what.join(", "),
            by: is_named.then_some(sees.by),
            // By the store's clock, and never after it.
            at: if dated { (knobs.at_ms as f64 / 1e3).min(now) } else { now },
            why: if is_named { sees.why } else { String::new() },
        });
        true
    }

    /// The mode to go back to, if a manual mode with an end is over at `now`, unix seconds.
    pub fn over(&self, knobs: &Knobs, now: f64) -> Option<Mode> {
        let until_ms = knobs.manual_until_ms.filter(|_| knobs.mode == Mode::Manual)?;
        (until_ms as f64 / 1e3 <= now).then(|| self.before.unwrap_or(Mode::Auto))
    }

    /// Notes that the governor itself goes back to `mode`, because of `why`.
    pub fn went_back(&mut self, mode: Mode, why: &str, now: f64) {
        if let Some(seen) = &mut self.seen {
            seen.mode = mode;
        }
        let what = format!("mode {}", mode.as_str());
        self.hand = Some(Hand { what, by: Some(GOVERNOR.to_owned()), at: now, why: why.to_owned() });
    }

    /// Moves every time by `by_s`, when the clock was set back.
    pub fn shift(&mut self, by_s: f64) {
        if let Some(hand) = &mut self.hand {
            hand.at += by_s;
        }
    }
}

/// A rate as somebody wrote it, short enough for a sentence.
fn rate(text: Option<&str>) -> String {
    match text.map(|text| (text, text.trim().parse::<f64>())) {
        None | Some(("", _)) => "taken away".to_owned(),
        Some((_, Ok(rps))) if rps >= 0.0 => number(rps),
        Some((text, Ok(_))) => text.trim().chars().take(32).collect(),
        Some((text, Err(_))) => format!("{:?}", text.chars().take(32).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knobs(mode: Mode, seq: u64, by: &str, why: &str) -> Knobs {
        Knobs { mode, seq, by: by.to_owned(), why: why.to_owned(), at_ms: 990_000, ..Knobs::default() }
    }

    #[test]
    fn a_hand_has_a_name_a_time_and_a_reason_where_they_were_told() {
        let mut watch = Watch::default();
        assert!(!watch.see(&knobs(Mode::Auto, 1, "governor", "load"), Actuator::Rps, Some("20"), true, 980.0));
        assert!(
            !watch.see(&knobs(Mode::Auto, 2, "governor", "load"), Actuator::Rps, Some("21"), true, 985.0),
            "its own writes are no hand"
        );
        assert_eq!(watch.hand, None);

        // By a door.
        assert!(watch.see(&knobs(Mode::Manual, 3, "ann", "deploy"), Actuator::Rps, Some("30"), false, 1000.0));
        let ann =
            Hand { what: "mode manual, rps 30".to_owned(), by: Some("ann".to_owned()), at: 990.0, why: "deploy".to_owned() };
        assert_eq!(watch.hand, Some(ann));
        assert!(!watch.see(&knobs(Mode::Manual, 3, "ann", "deploy"), Actuator::Rps, Some("30"), false, 1005.0));

        // With redis-cli: what stands beside it is about another change.
        assert!(watch.see(&knobs(Mode::Manual, 3, "ann", "deploy"), Actuator::Rps, Some("0"), false, 1010.0));
        let nobody = Hand { what: "rps 0".to_owned(), by: None, at: 1010.0, why: String::new() };
        assert_eq!(watch.hand, Some(nobody));

        // With redis-cli, and a name beside it.
        assert!(watch.see(&knobs(Mode::Off, 3, "bob", "test"), Actuator::Rps, Some("0"), false, 1020.0));
        assert_eq!(watch.hand.as_ref().unwrap().who_and_why(), "bob (\"test\")");
        assert_eq!(watch.hand.as_ref().unwrap().at, 1020.0);
    }

    #[test]
    fn a_manual_mode_with_an_end_goes_back_to_the_mode_before() {
        let until = |mode, ms| Knobs { mode, manual_until_ms: ms, ..Knobs::default() };
        for before in [Mode::Auto, Mode::Shadow, Mode::Off] {
            let mut watch = Watch::default();
            watch.see(&until(before, None), Actuator::Rps, Some("5"), true, 900.0);
            watch.see(&until(Mode::Manual, Some(1_000_000)), Actuator::Rps, Some("5"), true, 910.0);
            assert_eq!(watch.over(&until(Mode::Manual, Some(1_000_000)), 999.0), None);
            assert_eq!(watch.over(&until(Mode::Manual, Some(1_000_000)), 1000.0), Some(before));
            assert_eq!(watch.over(&until(Mode::Manual, None), 1e9), None, "without an end it stays");
            assert_eq!(watch.over(&until(before, Some(1_000_000)), 2000.0), None, "it counts in manual mode only");

            watch.went_back(before, "over", 1000.0);
            assert!(!watch.see(&until(before, None), Actuator::Rps, Some("5"), true, 1005.0), "no person did that");
            assert_eq!(watch.hand.as_ref().unwrap().by.as_deref(), Some("governor"));
        }
        assert_eq!(Watch::default().over(&until(Mode::Manual, Some(1)), 1000.0), Some(Mode::Auto), "where no other was seen");
    }
}
