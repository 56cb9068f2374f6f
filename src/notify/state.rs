//! How far a message has come.

/// The state of a message. It never goes back, however late and in whatever order its news arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// It waits, for its time, its throttle, an account or the next attempt.
    Queued,
    /// A provider has taken it.
    Sent,
    /// It reached its recipient.
    Delivered,
    /// It was not sent and will not be by itself, or its provider gave up.
    Failed,
    /// The recipient's side refused it for good.
    Bounced,
    /// It was not sent because nothing goes to its recipient any more.
    Suppressed,
}

impl DeliveryState {
    /// All of them, by their words.
    pub const WORDS: [(&str, Self); 6] = [
        ("queued", Self::Queued),
        ("sent", Self::Sent),
        ("delivered", Self::Delivered),
        ("failed", Self::Failed),
        ("bounced", Self::Bounced),
        ("suppressed", Self::Suppressed),
    ];

    /// The word in records, SQL and HTTP.
    pub fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, state)| *state == self).map_or("", |(word, _)| word)
    }

    /// The state of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, state)| *state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_word_that_leads_back_to_it() {
        for (word, state) in DeliveryState::WORDS {
            assert_eq!((state.word(), DeliveryState::of(word)), (word, Some(state)));
        }
        assert_eq!(DeliveryState::of("lost"), None);
    }
}
