//! Admission to a test: the states of a throttle in which one may begin.

use crate::governor::calibration;
use crate::throttle::{Mode, Status};

/// Returns an error, with the reason, for a throttle in a state that does not allow a test.
pub(super) fn admit(status: &Status) -> Result<(), String> {
    let (name, knobs) = (&status.name, &status.knobs);
    if let Some(problem) = status.problems.first() {
        return Err(format!(
            "the knob {} of {name} {}; correct it first",
            problem.field, problem.message
        ));
    }
    let fixed = |who: &str| {
        Err(format!(
            "{who}; set it to auto first: flyball throttle set {name} mode=auto"
        ))
    };
    match knobs.mode {
        _ if knobs.paused => Err(format!(
            "{name} is paused; resume it first: flyball throttle resume {name}"
        )),
        Mode::Manual => fixed(&format!("a person controls {name} (mode manual)")),
        Mode::Shadow => fixed(&format!(
            "{name} is only observed (mode shadow), and a person controls it"
        )),
        Mode::Off => fixed(&format!("no governor controls {name} (mode off)")),
        Mode::Auto if knobs.by == calibration::CALIBRATION_ACTOR && !status.lease_expired => {
            Err(format!("another calibration of {name} is running"))
        }
        Mode::Auto if status.effective_rps.is_unlimited() => Err(format!(
            "{name} is unlimited (rps -1); give it a rate first"
        )),
        Mode::Auto if status.effective_rps.is_stopped() => {
            Err(format!("{name} is stopped; see flyball why {name}"))
        }
        Mode::Auto => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::throttle::Name;
    use crate::throttle::bucket::UsageCounters;

    fn judged(knobs: &[(&str, &str)]) -> String {
        let plain = [
            ("rps", "20"),
            ("mode", "auto"),
            ("min", "1"),
            ("max", "100"),
        ];
        let raw: BTreeMap<String, String> = plain
            .iter()
            .chain(knobs)
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect();
        admit(&Status::read(
            Name::new("reindex").unwrap(),
            raw,
            &UsageCounters::default(),
            5_000_000,
        ))
        .err()
        .unwrap_or_default()
    }

    #[test]
    fn a_throttle_that_somebody_holds_or_that_stands_is_refused() {
        assert_eq!(judged(&[]), "");
        let cases: [(&[(&str, &str)], &str); 9] = [
            (&[("paused", "1")], "reindex is paused; resume it first"),
            (
                &[("mode", "manual")],
                "a person controls reindex (mode manual); set it to auto first",
            ),
            (
                &[("mode", "shadow")],
                "reindex is only observed (mode shadow)",
            ),
            (
                &[("mode", "off")],
                "no governor controls reindex (mode off)",
            ),
            (&[("rps", "-1")], "reindex is unlimited"),
            (
                &[("rps", "0.000")],
                "reindex is stopped; see flyball why reindex",
            ),
            (
                &[("rps", "ten")],
                "the knob rps of reindex must be a number",
            ),
            (
                &[("min", "200")],
                "the knob min of reindex must be at most max 100, not 200",
            ),
            (
                &[
                    ("by", calibration::CALIBRATION_ACTOR),
                    ("valid_until", "9000"),
                ],
                "another calibration of reindex is running",
            ),
        ];
        for (knobs, expected) in cases {
            let verdict = judged(knobs);
            assert!(verdict.starts_with(expected), "{knobs:?} gave {verdict:?}");
        }
        assert_eq!(
            judged(&[
                ("by", calibration::CALIBRATION_ACTOR),
                ("valid_until", "4000")
            ]),
            "",
            "one that died"
        );
    }
}
