//! Throttles that are made on first use: from a pattern, or from the knobs that a caller brings.
//!
//! A pattern is a throttle whose name ends in `*`, such as `gcal:*`. Nothing takes tokens from it;
//! its knobs are those of every throttle that is made from it. A made throttle records where its
//! knobs come from (`made_from`) and what they were (`made_of`), so that a later change of the
//! pattern, or of the caller's knobs, reaches the knobs that were not set since.

use std::collections::BTreeMap;

use super::admission::is_of_admission;
use super::api_limit::is_of_the_api;
use super::direct_change::is_changed_directly;
use super::knobs::truth;
use super::rules;
use super::{Change, Name, Status};

/// The source of a throttle that a caller's own knobs made.
pub const CALLER: &str = "caller";

/// The field of the hash with the source of a made throttle: a pattern, or [`CALLER`].
pub const MADE_FROM: &str = "made_from";

/// The field of the hash with the knobs from which a throttle was created.
pub const MADE_OF: &str = "made_of";

/// The number of made throttles beyond which none is made, unless the settings say otherwise.
pub const MADE_MAX: usize = 1000;

/// The time without use after which a made throttle is deleted, in microseconds. It is the time
/// after which a bucket is forgotten.
pub const UNUSED_US: i64 = 7 * 86_400 * 1_000_000;

/// The knobs that the store writes into each throttle, where they are missing, and their text.
const ADDED: [&str; 3] = ["rps", "burst", "window"];
const ADDED_TEXT: &str = "1";

/// Knobs as texts of the hash.
pub type KnobTexts = BTreeMap<String, String>;

/// Returns the pattern that fits `name` best, the longest of those that fit. None fits the limits of
/// APIs, which are made of the settings alone: one that was deleted limits nothing.
pub fn best_pattern<'a>(
    name: &Name,
    patterns: impl IntoIterator<Item = &'a Name>,
) -> Option<&'a Name> {
    patterns
        .into_iter()
        .filter(|pattern| pattern.fits(name) && !is_of_the_api(name.as_str()))
        .max_by_key(|pattern| pattern.as_str().len())
}

/// Returns the pattern from which the first request for its tokens would make a throttle that does not
/// exist; `None` if none fits, or `is_full` because as many exist as may. Those of the admission of
/// messages do not count.
pub(super) fn maker_of<'a>(
    name: &Name,
    patterns: &'a [Name],
    is_full: impl FnOnce() -> bool,
) -> Option<&'a Name> {
    let is_made = is_of_admission(name.as_str()) || !is_full();
    best_pattern(name, patterns).filter(|_| is_made)
}

/// Returns the knobs of a pattern that a throttle gets. A pattern may fit the parent that it names,
/// which has none then.
pub fn inherited_by(name: &Name, raw: &KnobTexts) -> KnobTexts {
    let mut knobs = inherited(raw);
    knobs.retain(|field, text| field != "parent" || text != name.as_str());
    knobs
}

/// Returns the knobs of a pattern that its throttles get: those that a person may set, without a
/// pause, which stops the throttles that exist one by one.
fn inherited(raw: &KnobTexts) -> KnobTexts {
    let is_inherited = |field: &str| {
        field != "paused" && rules::knob(field).is_some_and(|knob| knob.is_settable())
    };
    raw.iter()
        .filter(|(field, _)| is_inherited(field))
        .map(|(field, text)| (field.clone(), text.clone()))
        .collect()
}

/// Returns the text of [`MADE_OF`].
fn made_of(knobs: &KnobTexts) -> String {
    let pairs: Vec<String> = knobs
        .iter()
        .map(|(field, text)| format!("{field}={text}"))
        .collect();
    pairs.join(" ")
}

/// Reads the text of [`MADE_OF`].
fn parse_made_of(text: &str) -> KnobTexts {
    let mut knobs = KnobTexts::new();
    let mut last = None;
    for part in text.split(' ') {
        match (part.split_once('='), &last) {
            (Some((field, text)), _) => {
                knobs.insert(field.to_owned(), text.to_owned());
                last = Some(field);
            }
            // A knob with several windows has blanks between them.
            (None, Some(field)) => {
                if let Some(text) = knobs.get_mut(*field) {
                    text.push(' ');
                    text.push_str(part);
                }
            }
            (None, None) => {}
        }
    }
    knobs
}

/// Returns the change that makes a throttle of these knobs.
pub fn make(from: &str, knobs: &KnobTexts) -> Change {
    let mut fields: BTreeMap<String, Option<String>> = knobs
        .iter()
        .map(|(field, text)| (field.clone(), Some(text.clone())))
        .collect();
    fields.insert(MADE_FROM.to_owned(), Some(from.to_owned()));
    fields.insert(MADE_OF.to_owned(), Some(made_of(knobs)));
    Change {
        fields,
        by: "flyball".to_owned(),
        why: format!("made on first use, from {from}"),
        create: true,
        absent_only: true,
        ..Change::default()
    }
}

/// Returns the change that brings a made throttle to the present knobs of its source; `None` if
/// there is nothing to change. A knob that was set since it was made stays.
pub fn follow(raw: &KnobTexts, knobs: &KnobTexts) -> Option<Change> {
    let before = parse_made_of(raw.get(MADE_OF)?);
    if before == *knobs {
        return None;
    }
    let is_untouched = |field: &str| match (raw.get(field), before.get(field)) {
        (Some(text), None) => ADDED.contains(&field) && text == ADDED_TEXT,
        (now, made) => now == made,
    };
    let mut fields: BTreeMap<String, Option<String>> = BTreeMap::new();
    for field in before.keys().chain(knobs.keys()) {
        if is_untouched(field) && raw.get(field) != knobs.get(field) {
            fields.insert(field.clone(), knobs.get(field).cloned());
        }
    }
    // A throttle always has a rate.
    fields.retain(|field, text| field != "rps" || text.is_some());
    fields.insert(MADE_OF.to_owned(), Some(made_of(knobs)));
    Some(Change {
        fields,
        by: "flyball".to_owned(),
        why: format!("{} has changed", raw.get(MADE_FROM)?),
        if_seq: raw.get("seq").and_then(|seq| seq.parse().ok()),
        ..Change::default()
    })
}

/// Returns true for a throttle created on demand and neither used nor changed for [`UNUSED_US`].
/// One that a person has paused or set is never unused: made again, it would limit nothing of what
/// they wanted.
pub fn is_unused(status: &Status) -> bool {
    let changed_at_ms = status.knobs.at_ms;
    status.raw.contains_key(MADE_FROM)
        && !is_set(&status.raw)
        && !status.has_bucket
        && status.at_us - changed_at_ms.saturating_mul(1000) > UNUSED_US
}

/// Returns true if a made throttle is paused, or a knob of it was set since it was made. The rate of
/// a governed one is the governor's.
fn is_set(raw: &KnobTexts) -> bool {
    let is_paused = raw.get("paused").and_then(|text| truth(text)) == Some(true);
    if is_paused || is_changed_directly(raw) {
        return true;
    }
    let Some(made_of) = raw.get(MADE_OF) else {
        return false;
    };
    let (mut now, mut made) = (inherited(raw), parse_made_of(made_of));
    for field in ADDED {
        for texts in [&mut now, &mut made] {
            texts
                .entry(field.to_owned())
                .or_insert_with(|| ADDED_TEXT.to_owned());
        }
    }
    if raw.get("mode").is_some_and(|mode| mode == "auto") {
        now.remove("rps");
        made.remove("rps");
    }
    now != made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> KnobTexts {
        pairs
            .iter()
            .map(|(field, text)| ((*field).to_owned(), (*text).to_owned()))
            .collect()
    }

    /// The hash of a throttle after these changes.
    fn applied(raw: &mut KnobTexts, change: &Change) {
        for (field, text) in &change.fields {
            match text {
                Some(text) => raw.insert(field.clone(), text.clone()),
                None => raw.remove(field),
            };
        }
    }

    #[test]
    fn the_longest_pattern_that_fits_is_used() {
        let patterns =
            ["*", "gcal:*", "gcal:eu:*", "mail:*"].map(|text| Name::or_pattern(text).unwrap());
        let best = |name: &str| {
            best_pattern(&Name::new(name).unwrap(), &patterns).map(|pattern| pattern.to_string())
        };
        assert_eq!(best("gcal:42"), Some("gcal:*".into()));
        assert_eq!(best("gcal:eu:42"), Some("gcal:eu:*".into()));
        assert_eq!(best("hooks"), Some("*".into()));
        assert_eq!(best("api:read"), None);
        assert_eq!(best("limit:lead:customer"), None);
        let some = &patterns[1..];
        assert_eq!(best_pattern(&Name::new("hooks").unwrap(), some), None);
        // An empty rest after the prefix matches as well.
        assert_eq!(best("gcal:"), Some("gcal:*".into()));
    }

    #[test]
    fn a_made_throttle_follows_its_source_but_for_what_was_set_since() {
        let mut raw = KnobTexts::new();
        applied(
            &mut raw,
            &make(
                "gcal:*",
                &texts(&[("rps", "5"), ("burst", "2"), ("window", "3")]),
            ),
        );
        assert_eq!(
            (raw["rps"].as_str(), raw[MADE_FROM].as_str()),
            ("5", "gcal:*")
        );
        assert_eq!(
            follow(
                &raw,
                &texts(&[("rps", "5"), ("burst", "2"), ("window", "3")])
            ),
            None
        );

        // A person sets the rate; then the pattern changes all it has.
        raw.insert("rps".into(), "1".into());
        let change = follow(
            &raw,
            &texts(&[("rps", "7"), ("burst", "4"), ("key_rps", "9")]),
        )
        .unwrap();
        applied(&mut raw, &change);

        assert_eq!(raw["rps"], "1", "what a person set stays");
        assert_eq!((raw["burst"].as_str(), raw["key_rps"].as_str()), ("4", "9"));
        assert!(
            !raw.contains_key("window"),
            "a knob that the pattern gave up goes"
        );
        assert_eq!(
            follow(
                &raw,
                &texts(&[("rps", "7"), ("burst", "4"), ("key_rps", "9")])
            ),
            None
        );
    }

    #[test]
    fn knobs_that_the_store_has_added_follow_a_caller_that_brings_them_later() {
        let mut raw = KnobTexts::new();
        applied(&mut raw, &make(CALLER, &texts(&[("rps", "5")])));
        // A person has set the last of them.
        raw.extend(texts(&[("burst", "1"), ("window", "1"), ("key_rps", "1")]));
        let brought = [
            ("rps", "5"),
            ("burst", "3"),
            ("window", "60"),
            ("key_rps", "2"),
        ];

        let change = follow(&raw, &texts(&brought)).unwrap();
        applied(&mut raw, &change);

        assert_eq!((raw["burst"].as_str(), raw["window"].as_str()), ("3", "60"));
        assert_eq!(raw["key_rps"], "1");
    }

    #[test]
    fn what_flyball_writes_and_a_pause_are_not_inherited() {
        let raw = texts(&[
            ("rps", "5"),
            ("paused", "1"),
            ("seq", "4"),
            ("by", "ann"),
            ("key_rps", "2"),
        ]);
        assert_eq!(inherited(&raw), texts(&[("rps", "5"), ("key_rps", "2")]));
    }

    #[test]
    fn a_throttle_that_a_person_has_paused_or_set_is_never_unused() {
        let made = |more: &[(&str, &str)]| {
            let mut raw = texts(&[
                (MADE_FROM, "notify:*"),
                (MADE_OF, "rps=-1 windows=100/60"),
                ("rps", "-1"),
                ("windows", "100/60"),
            ]);
            raw.extend(texts(more));
            raw
        };
        for (more, is_kept) in [
            (&[][..], false),
            (&[("paused", "0")], false),
            (&[("paused", "1")], true),
            (&[("paused", "true")], true),
            // Somebody has changed them in Redis, and when is not known.
            (&[("written", "5 - - 0 ann")], true),
            (&[("written", "-1 - - 0 flyball")], false),
            (&[("windows", "500/60")], true),
            (&[("key_windows", "5/60")], true),
            (&[("rps", "3")], true),
            // A person handed it to the governor.
            (&[("rps", "3"), ("mode", "auto")], true),
        ] {
            assert_eq!(is_set(&made(more)), is_kept, "{more:?}");
        }
        for raw in [
            // The store has added what the caller left out.
            &[
                (MADE_OF, "rps=5"),
                ("rps", "5"),
                ("burst", "1"),
                ("window", "1"),
            ][..],
            &[
                (MADE_OF, "rps=-1 windows=10/1 1000/3600"),
                ("rps", "-1"),
                ("windows", "10/1 1000/3600"),
            ],
            &[("rps", "5")],
        ] {
            assert!(!is_set(&texts(raw)), "{raw:?}");
        }
        let governed = texts(&[
            (MADE_FROM, "a:*"),
            (MADE_OF, "mode=auto rps=5"),
            ("mode", "auto"),
            ("rps", "3"),
        ]);
        assert!(!is_set(&governed));
    }
}
