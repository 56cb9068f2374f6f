//! Names of channels.
//!
//! A client names a channel without its tenant; the tenant is that of the connection. The name with
//! the own tenant in front of a colon is the same channel, and no other name has a colon, so a name
//! cannot reach into another tenant.

use std::fmt;
use std::sync::Arc;

use crate::input::patterns::is_channel_name;

/// The name by which a connection means the inbox of its own recipient.
pub const OWN_INBOX: &str = "$inbox";

/// The beginning of the channel of a recipient's inbox.
const INBOX: &str = "$inbox/";

/// The form of a name, for messages.
pub const CHANNEL_FORM: &str = "1 to 128 letters, digits or any of . _ / { } @ = + ~ -";

/// The name of a channel within its tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChannelName(Arc<str>);

/// The reason for which a name is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelNameError {
    /// The name has other characters, or too many.
    #[error("must be {CHANNEL_FORM}")]
    Form,
    /// The name is that of another tenant's channel, or of an inbox that is not the connection's.
    #[error("belongs to somebody else: name a channel without its tenant")]
    Foreign,
    /// The name is not among those of the ticket.
    #[error("is not one of the channels that the ticket names")]
    Unnamed,
    /// The name is that of the own inbox, and the ticket names no recipient.
    #[error("is the inbox of the recipient whom a ticket names; the credential names none")]
    NoRecipient,
    /// The name is that of an inbox, and the id of its recipient cannot be one.
    #[error("must be $inbox/ and the id of a recipient, which {0}")]
    Recipient(&'static str),
}

impl ChannelName {
    /// Parses the name that a connection of `tenant` sends.
    pub fn parse(text: &str, tenant: &str) -> Result<Self, ChannelNameError> {
        let own = text
            .strip_prefix(tenant)
            .filter(|_| !tenant.is_empty())
            .and_then(|rest| rest.strip_prefix(':'));
        let name = own.unwrap_or(text);
        if name.contains(':') || name.starts_with('$') {
            return Err(ChannelNameError::Foreign);
        }
        is_channel_name(name)
            .then(|| Self(name.into()))
            .ok_or(ChannelNameError::Form)
    }

    /// Returns the channel of a recipient's inbox.
    pub fn of_inbox(recipient: &str) -> Self {
        Self(format!("{INBOX}{recipient}").into())
    }

    /// Wraps a name that was stored.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the recipient whose inbox this channel tells of.
    pub fn recipient(&self) -> Option<&str> {
        self.0.strip_prefix(INBOX)
    }

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChannelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reaches_into_no_other_tenant() {
        let parse = |text: &str| ChannelName::parse(text, "acme").map(|name| name.to_string());
        assert_eq!(parse("orders").as_deref(), Ok("orders"));
        assert_eq!(parse("acme:orders").as_deref(), Ok("orders"));
        for foreign in [
            "zeta:orders",
            "acme:acme:orders",
            ":orders",
            "acme:zeta:x",
            "$inbox/u1",
        ] {
            assert_eq!(parse(foreign), Err(ChannelNameError::Foreign), "{foreign}");
        }
        for odd in ["", "acme:", "a b", "ä", "a\n", &"a".repeat(129)] {
            assert_eq!(parse(odd), Err(ChannelNameError::Form), "{odd}");
        }
        assert_eq!(parse(&"a".repeat(128)).map(|name| name.len()), Ok(128));
    }

    #[test]
    fn a_tenant_whose_name_has_a_colon_is_not_the_one_before_it() {
        let of = |text: &str, tenant: &str| ChannelName::parse(text, tenant);
        assert_eq!(of("a:b:c", "a:b").unwrap().as_str(), "c");
        assert_eq!(of("a:b:c", "a"), Err(ChannelNameError::Foreign));
        assert_eq!(of(":c", ""), Err(ChannelNameError::Foreign));
    }

    #[test]
    fn the_channel_of_an_inbox_tells_its_recipient() {
        let name = ChannelName::of_inbox("user:7");
        assert_eq!(
            (name.as_str(), name.recipient()),
            ("$inbox/user:7", Some("user:7"))
        );
        assert_eq!(ChannelName::stored("orders").recipient(), None);
    }
}
