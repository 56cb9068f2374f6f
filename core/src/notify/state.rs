//! States of a message's delivery.

use crate::recipient::gate::UnsentReason;

/// The state of a message. Late or reordered events never move it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
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
    /// Not sent by itself: an item of a digest.
    Collected,
    /// Not sent, because its recipient does not want such messages.
    OptedOut,
    /// Not sent, because the same message went to its recipient.
    Duplicate,
    /// Not sent, because of a cap.
    Capped,
    /// Not sent, because its recipient had quiet hours.
    Quiet,
    /// Not sent, because its recipient has no address on the channel.
    Unreachable,
}

impl DeliveryState {
    /// All states with their names.
    pub const WORDS: [(&str, Self); 12] = [
        ("queued", Self::Queued),
        ("sent", Self::Sent),
        ("delivered", Self::Delivered),
        ("failed", Self::Failed),
        ("bounced", Self::Bounced),
        ("suppressed", Self::Suppressed),
        ("collected", Self::Collected),
        ("opted_out", Self::OptedOut),
        ("duplicate", Self::Duplicate),
        ("capped", Self::Capped),
        ("quiet", Self::Quiet),
        ("unreachable", Self::Unreachable),
    ];

    /// Returns its name in records, SQL and HTTP.
    pub fn as_str(self) -> &'static str {
        Self::WORDS
            .iter()
            .find(|(_, state)| *state == self)
            .map_or("", |(word, _)| word)
    }

    /// Returns the state of a message that the gates ended.
    pub fn of_unsent(reason: UnsentReason) -> Self {
        match reason {
            UnsentReason::Cancelled | UnsentReason::Expired => Self::Failed,
            UnsentReason::Unreachable => Self::Unreachable,
            UnsentReason::Suppressed => Self::Suppressed,
            UnsentReason::OptedOut => Self::OptedOut,
            UnsentReason::Duplicate => Self::Duplicate,
            UnsentReason::Quiet => Self::Quiet,
            UnsentReason::Capped => Self::Capped,
        }
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
