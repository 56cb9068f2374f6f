//! The rules in force, which change while everything runs.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::rules::RecipientRules;

/// The rules in force. Clones share them, so that a change reaches all.
#[derive(Clone, Debug)]
pub struct LiveRules(Arc<ArcSwap<RecipientRules>>);

impl LiveRules {
    /// Puts rules into force.
    pub fn new(rules: RecipientRules) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(rules)))
    }

    /// Returns the rules in force. A plan loads them once, so that it never mixes two sets.
    pub fn load(&self) -> Arc<RecipientRules> {
        self.0.load_full()
    }

    /// Puts other rules into force, for all clones.
    pub fn store(&self, rules: RecipientRules) {
        self.0.store(Arc::new(rules));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_reaches_all_clones_and_leaves_a_plan_under_way_its_own_rules() {
        let rules = |text: &str| RecipientRules::parse("recipients.toml", text).unwrap();
        let live = LiveRules::new(rules(""));
        let (clone, before) = (live.clone(), live.load());
        live.store(rules("release_share = 0.25"));
        assert_eq!(clone.load().release.share, 0.25);
        assert_eq!(before.release.share, 0.5);
    }
}
