//! The types of digest that may collect a message.

use super::candidate::{Candidate, CapList, Origin};
use super::digest::{Collects, DigestType};
use super::rules::{OverCap, RecipientRules};
use crate::input::wording::unknown;

/// Returns the type of digest that collects a message; `None` if it goes alone, as an urgent one
/// does, and one that names a time.
pub fn digest_type<'a>(
    message: &Candidate<'_>,
    rules: &'a RecipientRules,
) -> Option<&'a DigestType> {
    let is_collected = message.origin == Origin::Sender && !message.goes_alone();
    let named = message.digest.and_then(|name| rules.digest(name));
    let listed = || rules.digest_of_template(message.template?);
    named
        .or_else(|| listed().filter(|kind| kind.collects == Collects::All))
        .filter(|_| is_collected)
}

/// Returns what is wrong with the type of digest that a message names; `None` if there is one of this
/// name.
pub fn digest_problem(name: &str, rules: &RecipientRules) -> Option<String> {
    if rules.digest(name).is_some() {
        return None;
    }
    let known: Vec<&str> = rules.digests().map(|kind| kind.name.as_str()).collect();
    Some(format!(
        "{name:?} {}",
        unknown(name, "type of digest", &known)
    ))
}

/// Returns all types of digest that may collect a message with these lists: at once, or when it is
/// over a cap.
pub fn collectors<'a>(
    message: &Candidate<'_>,
    lists: &[CapList],
    rules: &'a RecipientRules,
) -> Vec<&'a DigestType> {
    let listed = || rules.digest_of_template(message.template?);
    let over = lists.iter().filter_map(|list| match &list.over {
        OverCap::Digest(Some(name)) => rules.digest(name),
        OverCap::Digest(None) => listed(),
        _ => None,
    });
    let mut types: Vec<_> = digest_type(message, rules)
        .into_iter()
        .chain(over)
        .collect();
    types.sort_by_key(|kind| kind.name.as_str());
    types.dedup_by_key(|kind| kind.name.as_str());
    types
}
