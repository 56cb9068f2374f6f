//! The texts that a governor wrote into its knob: any other is a manual change.

/// The last texts, newest first; two are kept, because the writer may die in between.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WrittenTexts(Vec<String>);

impl WrittenTexts {
    /// Returns true if `text`, found in the knob beside the copy `governed` of the governor's last
    /// write, is no person's.
    ///
    /// If the copy is the newest text, that one has been written, and only a person can have put an
    /// older one back.
    pub fn explains(&self, text: &str, governed: Option<&str>) -> bool {
        let is_known = self.0.iter().any(|written| written == text);
        let newest = self.0.first().map(String::as_str);
        governed == Some(text) || (is_known && governed != newest)
    }

    /// Records that `text` is about to be written.
    pub fn record(&mut self, text: &str) {
        if self.0.first().is_none_or(|newest| newest != text) {
            self.0.insert(0, text.to_owned());
            self.0.truncate(2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(texts: &[&str]) -> WrittenTexts {
        let mut written = WrittenTexts::default();
        texts.iter().for_each(|text| written.record(text));
        written
    }

    #[test]
    fn an_older_text_is_a_persons_once_the_newest_has_been_written() {
        let slots = written(&["20", "21"]);
        assert!(slots.explains("21", Some("21")));
        assert!(slots.explains("20", Some("20")), "21 was never written");
        assert!(!slots.explains("20", Some("21")), "somebody put it back");
        assert!(!slots.explains("19", Some("21")));
    }

    #[test]
    fn a_text_that_was_taken_over_is_no_edit_until_another_has_been_written() {
        let mut rates = written(&["45", "33"]);
        assert!(rates.explains("33", Some("45")));
        rates.record("34");
        assert!(rates.explains("33", Some("45")), "34 was not written yet");
        assert!(!rates.explains("33", Some("34")));
    }

    #[test]
    fn without_a_copy_and_with_an_older_state_the_other_one_counts() {
        let rates = written(&["44", "45"]);
        assert!(rates.explains("44", None) && rates.explains("45", None));
        assert!(!rates.explains("30", None));
        assert!(
            rates.explains("50", Some("50")),
            "the state could not be saved since"
        );
    }
}
