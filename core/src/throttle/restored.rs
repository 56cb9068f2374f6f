//! The reason of knobs that were restored from their record, and the author whom it names.

use std::collections::BTreeMap;

/// Author of the throttles that Flyball makes, and of the knobs that it restores.
pub const AUTHOR: &str = "flyball";

/// Beginning of the reason for knobs that were restored.
const RESTORED: &str = "restored:";

/// The words between that reason and the author of the last recorded change.
const LAST_SET: &str = "; the last recorded author was ";

/// The words between that author and the reason.
const BECAUSE: &str = ": ";

/// The most of its reason that is repeated, in characters.
const REASON_CHARS: usize = 500;

/// Returns true if the knobs stand as they were restored.
pub fn is_restored(fields: &BTreeMap<String, String>) -> bool {
    fields
        .get("why")
        .is_some_and(|why| why.starts_with(RESTORED))
}

/// Returns the reason of a restored throttle: `what` happened, and the author and the reason of the
/// last recorded change, which tell an operator why it is stopped.
pub fn restored_because(what: &str, recorded: &BTreeMap<String, String>) -> String {
    let text = |field: &str| recorded.get(field).map_or("", String::as_str);
    let (by, why) = (text("by"), text("why"));
    let last = match last_set(by, why) {
        // The restoration before has no other author than that of the change before it.
        Some(last) => last.to_owned(),
        None if by.is_empty() || by == AUTHOR => String::new(),
        None if why.is_empty() => by.to_owned(),
        None => {
            let why: String = why.chars().take(REASON_CHARS).collect();
            format!("{by}{BECAUSE}{why}")
        }
    };
    let last_set = if last.is_empty() { "" } else { LAST_SET };
    format!("{RESTORED} {what}{last_set}{last}")
}

/// Returns the author of the knobs that `by` wrote because of `why`: of restored ones the author of
/// the last recorded change, because a loss of Redis makes nobody else responsible for them.
pub fn author<'a>(by: &'a str, why: &'a str) -> &'a str {
    match last_set(by, why) {
        None | Some("") => by,
        Some(last) => last.split_once(BECAUSE).map_or(last, |(author, _)| author),
    }
}

/// Returns the author and the reason that a restoration repeats, empty if it names none; `None` for
/// any other change.
fn last_set<'a>(by: &str, why: &'a str) -> Option<&'a str> {
    let told = why.strip_prefix(RESTORED).filter(|_| by == AUTHOR)?;
    Some(told.split_once(LAST_SET).map_or("", |(_, last)| last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(by: &str, why: &str) -> String {
        let fields = [("by", by), ("why", why)].map(|(f, t)| (f.to_owned(), t.to_owned()));
        restored_because("Redis was empty", &BTreeMap::from(fields))
    }

    #[test]
    fn a_restored_stop_keeps_its_author_and_its_reason_however_often_it_is_restored() {
        let once = told("ann", "the database is ill");
        assert_eq!(
            once,
            "restored: Redis was empty; the last recorded author was ann: the database is ill"
        );
        assert_eq!(told(AUTHOR, &once), once);
        assert_eq!(
            told("file", ""),
            "restored: Redis was empty; the last recorded author was file"
        );
        assert_eq!(
            told(AUTHOR, "made on first use, from gcal:*"),
            "restored: Redis was empty"
        );
        assert_eq!(told(AUTHOR, "restored: x"), "restored: Redis was empty");
        assert!(told("ann", &"x".repeat(5000)).len() < 600);
    }

    #[test]
    fn the_author_of_restored_knobs_is_that_of_the_last_recorded_change() {
        for (by, why) in [
            ("pool", "from the settings of the pool"),
            ("tenant:acme ada", "a loop"),
            ("file", ""),
        ] {
            let why = told(by, why);
            assert_eq!(author(AUTHOR, &why), by);
            assert_eq!(author(AUTHOR, &told(AUTHOR, &why)), by);
            assert_eq!(author("ann", &why), "ann", "a person may copy a reason");
        }
        for why in ["", "made on first use, from caller", "restored: x"] {
            assert_eq!(author(AUTHOR, why), AUTHOR);
        }
    }
}
