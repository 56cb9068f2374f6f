//! Dedup: the same message to the same recipient goes once within a window.
//!
//! A message claims its key before it is sent and marks it when a provider has accepted; the window
//! counts from the mark. A message that ends unsent gives its claim back.

use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::address::{KEY_BYTES, RecipientKey, hash_bytes};
use super::canonical::canonical;
use super::local_time::LocalTime;

/// The longest time for which an unmarked claim counts: longer than a message may wait.
const CLAIM_MAX: SignedDuration = SignedDuration::from_hours(31 * 24);

/// The key of a message's content for its recipient.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey([u8; KEY_BYTES]);

impl DedupKey {
    /// Returns the key of a template and its data, which are compared by value.
    pub fn of_content(recipient: &RecipientKey, template: &str, data: &Value) -> Self {
        let data = canonical(data);
        Self(hash_bytes(&[
            b"content",
            recipient.as_bytes(),
            template.as_bytes(),
            data.as_bytes(),
        ]))
    }

    /// Returns the key of this content for a time of the recipient's clock: what is to come at two
    /// times is no repetition.
    pub fn for_time(self, local_time: Option<LocalTime>) -> Self {
        let at = |time: LocalTime| hash_bytes(&[b"time", &self.0, time.to_string().as_bytes()]);
        local_time.map_or(self, |time| Self(at(time)))
    }

    /// Returns the key that the sender chose in place of the content.
    pub fn of_name(recipient: &RecipientKey, dedup_key: &str) -> Self {
        Self(hash_bytes(&[
            b"name",
            recipient.as_bytes(),
            dedup_key.as_bytes(),
        ]))
    }

    /// Returns the number of a claim on this content: three bytes of the recipient's key, so that
    /// all its claims lie together, and five of a hash of the content.
    ///
    /// The hash has a secret, because five bytes can be tried: nobody can make a message that
    /// claims the same as one of another tenant.
    pub fn claim(&self, recipient: &RecipientKey, secret: &[u8]) -> i64 {
        let content = hash_bytes(&[b"claim", secret, &self.0]);
        let mut bytes = [0; 8];
        bytes[..3].copy_from_slice(&recipient.as_bytes()[..3]);
        bytes[3..].copy_from_slice(&content[..5]);
        i64::from_be_bytes(bytes)
    }
}

impl fmt::Debug for DedupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedupKey").finish_non_exhaustive()
    }
}

/// The claim of a message on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupClaim {
    /// The job of the message.
    pub job: i64,
    /// The time of the claim, or of the mark.
    pub at: Timestamp,
    /// True once a provider has accepted the message.
    pub is_marked: bool,
}

impl DedupClaim {
    /// Returns true if the claim makes the message of another `job` a duplicate. Exactly a window
    /// after the mark it no longer does.
    pub fn blocks(&self, job: Option<i64>, now: Timestamp, window: SignedDuration) -> bool {
        let counts_for = if self.is_marked {
            window
        } else {
            window.max(CLAIM_MAX)
        };
        Some(self.job) != job && now.duration_since(self.at) < counts_for
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::providers::Channel;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn recipient(id: &str) -> RecipientKey {
        RecipientKey::of_subscriber("acme", Channel::Email, id)
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_key_is_of_the_recipient_the_template_and_the_value_of_the_data() {
        let key = |id, template, data: &Value| DedupKey::of_content(&recipient(id), template, data);
        let sample = key("ada", "receipt", &json!({"order": {"id": 1, "of": "a"}}));
        let reordered: Value =
            serde_json::from_str(r#"{"order": {"of": "a", "id": 1.0}}"#).unwrap();
        assert_eq!(key("ada", "receipt", &reordered), sample);
        for other in [
            key("ada", "receipt", &json!({"order": {"id": 2, "of": "a"}})),
            key("ada", "invoice", &json!({"order": {"id": 1, "of": "a"}})),
            key("bob", "receipt", &json!({"order": {"id": 1, "of": "a"}})),
            DedupKey::of_name(&recipient("ada"), "receipt"),
            sample.for_time(LocalTime::parse("09:00")),
            sample.for_time(LocalTime::parse("2026-12-01T09:00")),
        ] {
            assert_ne!(other, sample);
        }
        assert_eq!(sample.for_time(None), sample);
    }

    #[test]
    fn a_claim_begins_like_its_recipient_and_is_told_apart_by_content_and_secret() {
        let key = |first: [u8; 4]| {
            let mut bytes = [7; KEY_BYTES];
            bytes[..4].copy_from_slice(&first);
            RecipientKey::from_bytes(bytes)
        };
        let (low, high) = (key([0x12, 0x34, 0x56, 1]), key([0xff, 0, 1, 1]));
        let claim = |recipient: &RecipientKey, name: &str, secret: &[u8]| {
            DedupKey::of_name(recipient, name).claim(recipient, secret)
        };
        assert_eq!(claim(&low, "a", b"s") >> 40, 0x0012_3456);
        assert_eq!(claim(&high, "a", b"s") >> 40, 0x00ff_0001 - 0x0100_0000);
        let sample = claim(&low, "a", b"s");
        let neighbour = key([0x12, 0x34, 0x56, 2]);
        assert_eq!(claim(&neighbour, "a", b"s") >> 40, sample >> 40);
        for other in [
            claim(&neighbour, "a", b"s"),
            claim(&low, "b", b"s"),
            claim(&low, "a", b"t"),
        ] {
            assert_ne!(other, sample);
        }
    }

    #[test]
    fn the_window_ends_exactly_an_hour_after_the_provider_accepted() {
        let marked = DedupClaim {
            job: 7,
            at: at(1000),
            is_marked: true,
        };
        assert!(marked.blocks(None, at(1000 + 3599), HOUR));
        assert!(!marked.blocks(None, at(1000 + 3600), HOUR));
        assert!(
            !marked.blocks(Some(7), at(1001), HOUR),
            "a retry is no duplicate"
        );
        assert!(marked.blocks(Some(8), at(1001), HOUR));
    }

    #[test]
    fn a_message_that_is_still_held_makes_its_successor_a_duplicate() {
        let held = DedupClaim {
            job: 7,
            at: at(1000),
            is_marked: false,
        };
        assert!(held.blocks(None, at(1000 + 30 * 86_400), HOUR));
        assert!(
            !held.blocks(None, at(1000 + 31 * 86_400), HOUR),
            "nothing waits that long"
        );
    }
}
