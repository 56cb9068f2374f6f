//! The limits of a throttle besides its rate, in words.

use crate::throttle::Knobs;
use crate::throttle::admission::units_of;
use crate::throttle::rolling_window::in_words;

/// Returns what a throttle grants by its windows; `None` if it has none.
pub(super) fn by_windows(name: &str, knobs: &Knobs) -> Option<String> {
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

/// Returns how many jobs or connections a throttle admits at the same time; `None` if any number.
pub(super) fn at_once(name: &str, knobs: &Knobs) -> Option<String> {
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
}
