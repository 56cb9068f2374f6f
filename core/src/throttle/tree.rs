//! The chain of throttles that draw from other throttles, and the errors in it.

use std::collections::BTreeMap;

use super::Name;

/// The number of levels at which one ask is charged, including the throttle of the ask.
pub const MAX_LEVELS: usize = 4;

/// Returns the chain of a throttle, root first, each with the text of `parent` in its hash (which
/// may not be a valid name).
///
/// The chain is cut at a circle of parents and after [`MAX_LEVELS`] levels.
pub fn chain(leaf: &Name, parent_of: impl Fn(&Name) -> String) -> Vec<(Name, String)> {
    let mut chain: Vec<(Name, String)> = Vec::new();
    let mut next = Some(leaf.clone());
    while let Some(name) = next {
        let parent = parent_of(&name);
        next = Name::new(parent.as_str()).ok();
        chain.push((name, parent));
        next = next.filter(|above| {
            chain.len() < MAX_LEVELS && chain.iter().all(|(name, _)| name != above)
        });
    }
    chain.reverse();
    chain
}

/// The beginning of the error message for a missing parent.
pub(super) const MISSING: &str = "there is no throttle ";

/// Returns the error in the parents of `leaf`, if any; `parents` holds the text of `parent` of
/// every level read, `None` for a throttle that does not exist.
pub fn wrong_parent(leaf: &Name, parents: &BTreeMap<Name, Option<String>>) -> Option<String> {
    let mut seen = vec![leaf];
    loop {
        let last = seen[seen.len() - 1];
        let above = Name::new(parents.get(last)?.as_deref()?).ok()?;
        if seen.contains(&&above) {
            return Some(format!(
                "{last} names {above} as its parent, which forms a cycle; the chain ends there"
            ));
        }
        if seen.len() == MAX_LEVELS {
            return Some(format!(
                "{above} is more than {MAX_LEVELS} levels up; it and its parents are ignored"
            ));
        }
        let (above, parent) = parents.get_key_value(&above)?;
        if parent.is_none() {
            return Some(format!(
                "{MISSING}{above}, which {last} names as its parent; nothing flows until it exists"
            ));
        }
        seen.push(above);
    }
}
