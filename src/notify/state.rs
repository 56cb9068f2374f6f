//! States of a message's delivery.

/// The state of a message. Late or reordered events never move it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum DeliveryState {
    /// Waiting for its time, its throttle, an account or the next attempt.
    Queued,
    /// Accepted by a provider.
    Sent,
    /// Delivered to its recipient.
    Delivered,
    /// Not sent and not retried automatically, or given up by its provider.
    Failed,
    /// Refused for good by the recipient's side.
    Bounced,
    /// Not sent, because its recipient is suppressed.
    Suppressed,
}

impl DeliveryState {
    /// All states with their names.
    pub const WORDS: [(&str, Self); 6] = [
        ("queued", Self::Queued),
        ("sent", Self::Sent),
        ("delivered", Self::Delivered),
        ("failed", Self::Failed),
        ("bounced", Self::Bounced),
        ("suppressed", Self::Suppressed),
    ];

    /// Returns its name in records, SQL and HTTP.
    pub fn as_str(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, state)| *state == self)
            .map_or("", |(word, _)| word)
    }

    /// Returns the state of that name.
    pub fn of(word: &str) -> Option<Self> {
        Self::WORDS
            .iter()
            .find(|(known, _)| *known == word)
            .map(|(_, state)| *state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_has_a_word_that_leads_back_to_it() {
        for (word, state) in DeliveryState::WORDS {
            assert_eq!(
                (state.as_str(), DeliveryState::of(word)),
                (word, Some(state))
            );
        }
        assert_eq!(DeliveryState::of("lost"), None);
    }
}
