//! The rules for recipients that hold now.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::rules::RecipientRules;

/// The rules that hold now. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub struct LiveRules(Arc<ArcSwap<RecipientRules>>);

impl LiveRules {
    /// Creates rules that hold until others are stored.
    pub fn new(rules: RecipientRules) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(rules)))
    }

    /// Returns the rules that hold now.
    pub fn load(&self) -> Arc<RecipientRules> {
        self.0.load_full()
    }

    /// Replaces the rules.
    pub fn store(&self, rules: RecipientRules) {
        self.0.store(Arc::new(rules));
    }
}
