//! The texts that a governor wrote into its knob: any other is a manual change.

/// The last texts, newest first; two are kept, because the writer may die in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WrittenTexts(Vec<String>);

impl WrittenTexts {
    /// Returns true if the governor wrote `text`.
    pub fn contains(&self, text: &str) -> bool {
        self.0.iter().any(|written| written == text)
    }

    /// Records that `text` is about to be written.
    pub fn record(&mut self, text: &str) {
        if self.0.first().is_none_or(|newest| newest != text) {
            self.0.insert(0, text.to_owned());
            self.0.truncate(2);
        }
    }
}
