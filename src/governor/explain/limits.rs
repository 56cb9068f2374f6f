//! The limits of a throttle besides its rate, in words.

use super::format::number;
use crate::throttle::Knobs;
use crate::throttle::admission::units_of;
use crate::throttle::rolling_window::in_words;

/// Returns what a throttle grants by its windows; `None` if it has none.
pub fn by_windows(name: &str, knobs: &Knobs) -> Option<String> {
    let (unit, key) = units_of(name);
    let of_all = in_words(&knobs.windows, unit);
    let of_keys = in_words(&knobs.key_windows, unit);
    match (knobs.windows.is_empty(), knobs.key_windows.is_empty()) {
        (true, true) => None,
        (false, true) => Some(format!("at most {of_all}")),
        (true, false) => Some(format!("at most {of_keys} for each {key}")),
        (false, false) => Some(format!("at most {of_all}, and for each {key} {of_keys}")),
    }
}

/// Returns the limits of a throttle without a rate and windows; `None` if it has none.
pub fn besides_rate(name: &str, knobs: &Knobs) -> Option<String> {
    let of_keys = of_each_key(name, knobs).filter(|_| knobs.concurrency != Some(0));
    let limits = [of_keys, at_once(name, knobs)];
    let told: Vec<String> = limits.into_iter().flatten().collect();
    (!told.is_empty()).then(|| told.join(" and "))
}

/// Returns the rate that a throttle grants each key; `None` if it is not limited, or 0.
fn of_each_key(name: &str, knobs: &Knobs) -> Option<String> {
    let rps = number(knobs.key_rate().rps.rate()?);
    let (unit, key) = units_of(name);
    let unit = match rps.as_str() {
        "1" => unit.trim_end_matches('s'),
        _ => unit,
    };
    Some(format!("at most {rps} {unit} a second for each {key}"))
}

/// Returns how many jobs or connections a throttle admits at the same time; `None` if any number.
fn at_once(name: &str, knobs: &Knobs) -> Option<String> {
    let (unit, key) = match units_of(name) {
        ("tokens", key) => ("jobs", key),
        units => units,
    };
    let most = |number: u32| match number {
        1 => format!("at most 1 {} at once", unit.trim_end_matches('s')),
        number => format!("at most {number} {unit} at once"),
    };
    match (knobs.concurrency, knobs.key_concurrency) {
        (None, None) => None,
        (Some(0), _) => Some("stopped".to_owned()),
        (Some(of_all), None) => Some(most(of_all)),
        (None, Some(of_each)) => Some(format!("{} for each {key}", most(of_each))),
        (Some(of_all), Some(of_each)) => {
            Some(format!("{}, and for each {key} {of_each}", most(of_all)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::RateLimit;

    #[test]
    fn slots_are_told_in_the_unit_of_their_throttle() {
        let told = |name: &str, concurrency, key_concurrency| {
            let knobs = Knobs {
                concurrency,
                key_concurrency,
                ..Knobs::default()
            };
            at_once(name, &knobs)
        };
        for (name, concurrency, key_concurrency, words) in [
            ("reindex", Some(0), None, "stopped"),
            ("reindex", Some(1), None, "at most 1 job at once"),
            (
                "reindex",
                None,
                Some(2),
                "at most 2 jobs at once for each key",
            ),
            (
                "reindex",
                Some(20),
                Some(2),
                "at most 20 jobs at once, and for each key 2",
            ),
            (
                "ws-connections:acme",
                Some(1000),
                None,
                "at most 1000 connections at once",
            ),
        ] {
            let found = told(name, concurrency, key_concurrency);
            assert_eq!(found.as_deref(), Some(words));
        }
        assert_eq!(told("reindex", None, None), None);
    }

    #[test]
    fn a_rate_of_each_key_is_a_limit() {
        let told = |key_rps, key_concurrency| {
            let knobs = Knobs {
                key_rps,
                key_concurrency,
                ..Knobs::default()
            };
            besides_rate("hooks", &knobs)
        };
        let limit = RateLimit::PerSecond;
        assert_eq!(
            told(limit(8.0), None).as_deref(),
            Some("at most 8 tokens a second for each key")
        );
        assert_eq!(
            told(limit(1.0), Some(2)).as_deref(),
            Some("at most 1 token a second for each key and at most 2 jobs at once for each key")
        );
        assert_eq!(told(RateLimit::Unlimited, None), None);
        assert_eq!(told(RateLimit::Stopped, None), None);
    }
}
