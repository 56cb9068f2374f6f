//! The knobs of a throttle in memory: their texts, and the knobs that these texts say.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use crate::throttle::Knobs;

/// The texts of the knobs by field. They are read once after each change, because a simulation asks
/// a throttle many times between two changes.
#[derive(Clone, Default)]
pub(super) struct KnobTexts {
    texts: BTreeMap<String, String>,
    read: OnceLock<Arc<Knobs>>,
}

impl KnobTexts {
    /// Returns the knobs that the texts say.
    pub(super) fn knobs(&self) -> Arc<Knobs> {
        let read = || Arc::new(Knobs::read(&self.texts).0);
        self.read.get_or_init(read).clone()
    }

    /// Returns a copy of the texts.
    pub(super) fn texts(&self) -> BTreeMap<String, String> {
        self.texts.clone()
    }
}

impl From<BTreeMap<String, String>> for KnobTexts {
    fn from(texts: BTreeMap<String, String>) -> Self {
        Self {
            texts,
            read: OnceLock::new(),
        }
    }
}

impl Deref for KnobTexts {
    type Target = BTreeMap<String, String>;

    fn deref(&self) -> &Self::Target {
        &self.texts
    }
}

impl DerefMut for KnobTexts {
    /// Forgets the knobs, because the texts are about to change.
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.read = OnceLock::new();
        &mut self.texts
    }
}
