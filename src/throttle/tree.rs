//! Throttles that draw from other throttles: the chain of one, and what can be wrong with it.

use std::collections::BTreeMap;

use super::Name;

/// Most levels that one ask is charged at, the asked throttle included.
pub const MAX_LEVELS: usize = 4;

/// The chain of a throttle, root first, each with the parent that its hash names (which may be no name at all).
///
/// A circle of parents, and what is more than [`MAX_LEVELS`] above, is cut off.
pub fn chain(leaf: &Name, parent_of: impl Fn(&Name) -> String) -> Vec<(Name, String)> {
    let mut chain: Vec<(Name, String)> = Vec::new();
    let mut next = Some(leaf.clone());
    while let Some(name) = next {
        let parent = parent_of(&name);
        next = Name::new(parent.as_str()).ok();
        chain.push((name, parent));
        next = next.filter(|above| chain.len() < MAX_LEVELS && chain.iter().all(|(name, _)| name != above));
    }
    chain.reverse();
    chain
}

/// How the message begins when a parent is missing.
pub(super) const MISSING: &str = "there is no throttle ";

/// What is wrong with the parents of `leaf`, where `parents` holds the text of `parent` of every level that was read, `None`
/// for a throttle that does not exist.
pub fn wrong_parent(leaf: &Name, parents: &BTreeMap<Name, Option<String>>) -> Option<String> {
    let mut seen = vec![leaf];
    loop {
        let last = seen[seen.len() - 1];
        let above = Name::new(parents.get(last)?.as_deref()?).ok()?;
        if seen.contains(&&above) {
            return Some(format!("{last} names {above} as its parent, which closes a circle; it is cut there"));
        }
        if seen.len() == MAX_LEVELS {
            return Some(format!("{above} is more than {MAX_LEVELS} levels up; it and what is above it is not asked"));
        }
        let (above, parent) = parents.get_key_value(&above)?;
        if parent.is_none() {
            return Some(format!("{MISSING}{above}, which {last} names as its parent; nothing flows until there is one"));
        }
        seen.push(above);
    }
}
