//! The key of a recipient: what caps, dedup and held messages belong to.
//!
//! An address is parsed once, by [`Recipient::parse`], into the name, the address to send to and
//! its normal form; the key comes from the normal form.

use std::fmt;

use aws_lc_rs::digest::{Context, SHA256};

use crate::providers::{Channel, Recipient};

/// The length of a key, in bytes.
pub const KEY_BYTES: usize = 16;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// The key of a recipient on one channel: of an address, or of a person if the tenant names one.
///
/// Its debug text shows nothing, because an address can be found from a key by trying.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecipientKey([u8; KEY_BYTES]);

impl RecipientKey {
    /// Returns the key of an address of a tenant.
    pub fn of_address(tenant: &str, to: &Recipient) -> Self {
        let channel = to.channel().as_str();
        Self(hash(&["address", tenant, channel, to.identity()]))
    }

    /// Returns the key of a person on a channel, whatever the address.
    pub fn of_subscriber(tenant: &str, channel: Channel, subscriber_id: &str) -> Self {
        Self(hash(&[
            "subscriber",
            tenant,
            channel.as_str(),
            subscriber_id,
        ]))
    }

    /// Returns the key of a list of sends of this recipient, such as those of one category.
    pub fn list(&self, kind: &str, name: &str) -> Self {
        Self(hash_bytes(&[
            b"list",
            &self.0,
            kind.as_bytes(),
            name.as_bytes(),
        ]))
    }

    /// Returns the key that was stored.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the key as hexadecimal digits.
    pub fn to_hex(self) -> String {
        let digits = self.0.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits
            .map(|digit| char::from(HEX[usize::from(digit)]))
            .collect()
    }

    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for RecipientKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecipientKey").finish_non_exhaustive()
    }
}

/// Returns the digest by which suppressions are found, of a normalized recipient.
///
/// It has no key. Postgres keys it before it is stored or looked up (`flyball.keyed_digest`), so that
/// a leaked list of digests cannot be tried against all possible numbers. For the spellings that SQL
/// can read, `flyball.normal_recipient` gives the same normal form.
pub fn suppression_digest(channel: Channel, identity: &str) -> Vec<u8> {
    let text = format!("{}\u{1f}{identity}", channel.as_str());
    aws_lc_rs::digest::digest(&SHA256, text.as_bytes())
        .as_ref()
        .to_vec()
}

/// Returns the first bytes of the SHA-256 of texts.
fn hash(parts: &[&str]) -> [u8; KEY_BYTES] {
    let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes()).collect();
    hash_bytes(&parts)
}

/// Returns the first bytes of the SHA-256 of parts, each with its length before it, so that no two
/// lists of parts are equal when joined.
pub(super) fn hash_bytes(parts: &[&[u8]]) -> [u8; KEY_BYTES] {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part);
    }
    let mut key = [0; KEY_BYTES];
    key.copy_from_slice(&context.finish().as_ref()[..KEY_BYTES]);
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(tenant: &str, channel: Channel, text: &str) -> RecipientKey {
        RecipientKey::of_address(tenant, &Recipient::parse(channel, text).unwrap())
    }

    #[test]
    fn two_spellings_of_one_address_have_one_key() {
        let ada = key("acme", Channel::Email, "ada@example.com");
        assert_eq!(
            key("acme", Channel::Email, "\"Ada\" <ADA@example.com>"),
            ada
        );
        assert_eq!(
            key("acme", Channel::Sms, "+1 (555) 010-0000"),
            key("acme", Channel::Sms, "+15550100000")
        );
    }

    #[test]
    fn tenants_channels_persons_and_lists_have_keys_of_their_own() {
        let ada = key("acme", Channel::Push, "abc");
        let others = [
            key("acmf", Channel::Push, "abc"),
            key("acme", Channel::Chat, "abc"),
            key("acme", Channel::Push, "abd"),
            RecipientKey::of_subscriber("acme", Channel::Push, "abc"),
            ada.list("actor", "bob"),
            ada.list("actor", "eve"),
            ada.list("category", "bob"),
        ];
        for (n, one) in others.iter().enumerate() {
            assert!(*one != ada && !others[..n].contains(one), "{n}");
        }
        // The parts do not run into each other.
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
        assert!(!format!("{ada:?}").contains("abc"));
    }
}
