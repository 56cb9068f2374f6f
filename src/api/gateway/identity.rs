//! The rights of a connection, from its token or its ticket.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::http::caller::Caller;
use crate::api::http::token_scope::TokenScope;
use crate::gateway::channel_name::{ChannelName, ChannelNameError, OWN_INBOX};
use crate::input::patterns::allows;
use crate::recipient::new_recipient::check_id;

/// The rights of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayIdentity {
    /// The tenant; empty for operators.
    pub tenant: Arc<str>,
    /// True if it may publish.
    pub can_publish: bool,
    /// The channels that it may use, by name or pattern; all of the tenant if `None`.
    pub channels: Option<Arc<[String]>>,
    /// The recipient that it is, if its ticket names one.
    pub recipient: Option<Arc<str>>,
    /// True if it may read the inbox of every recipient.
    pub reads_inboxes: bool,
    /// The time at which the credential expires, in unix seconds.
    pub expires_at: Option<i64>,
    /// The digest of the browser's session with which the credential ends.
    pub session: Option<Arc<str>>,
}

impl GatewayIdentity {
    /// Returns the rights of a token within a tenant.
    pub fn of_caller(caller: &Caller, tenant: &str) -> Self {
        Self {
            tenant: tenant.into(),
            can_publish: caller.leave.has(TokenScope::ChannelsPublish),
            channels: None,
            recipient: None,
            reads_inboxes: caller.leave.has(TokenScope::NotifyRead),
            expires_at: caller.expires_at,
            session: caller.session.clone(),
        }
    }

    /// Returns the rights of a ticket.
    pub fn of_grant(grant: &Value) -> Option<Self> {
        let text = |name: &str| grant.get(name).and_then(Value::as_str);
        let channels = grant.get("channels").and_then(Value::as_array)?;
        let channels: Vec<String> = channels
            .iter()
            .filter_map(|channel| channel.as_str().map(str::to_owned))
            .collect();
        Some(Self {
            tenant: text("tenant")?.into(),
            can_publish: grant.get("publish") == Some(&Value::Bool(true)),
            channels: Some(channels.into()),
            recipient: text("recipient").map(Into::into),
            reads_inboxes: false,
            expires_at: grant.get("expires_at").and_then(Value::as_i64),
            session: text("session").map(Into::into),
        })
    }

    /// Returns the grant of a ticket with these rights.
    pub fn grant(&self) -> Value {
        json!({
            "tenant": &*self.tenant,
            "publish": self.can_publish,
            "channels": self.channels.as_deref().unwrap_or_default(),
            "recipient": self.recipient.as_deref(),
            "expires_at": self.expires_at,
            "session": self.session.as_deref(),
        })
    }

    /// Returns the time for which the credential is still valid; `None` if it does not expire.
    pub fn left(&self, now: Timestamp) -> Option<Duration> {
        let left_s = self.expires_at?.saturating_sub(now.as_second()).max(0);
        Some(Duration::from_secs(left_s.unsigned_abs()))
    }

    /// Returns the channel that the connection means by a name, if it may use it.
    pub fn channel(&self, name: &str) -> Result<ChannelName, ChannelNameError> {
        if name == OWN_INBOX {
            let own = self.recipient.as_deref().map(ChannelName::of_inbox);
            return own.ok_or(ChannelNameError::NoRecipient);
        }
        let stored = ChannelName::stored(name);
        if let Some(recipient) = stored.recipient() {
            if self.recipient.as_deref() != Some(recipient) {
                if !self.reads_inboxes {
                    return Err(ChannelNameError::Foreign);
                }
                check_id(recipient).map_err(ChannelNameError::Recipient)?;
            }
            return Ok(stored);
        }
        let channel = ChannelName::parse(name, &self.tenant)?;
        let is_named = |patterns: &Arc<[String]>| allows(patterns, channel.as_str());
        match self.channels.as_ref().is_none_or(is_named) {
            true => Ok(channel),
            false => Err(ChannelNameError::Unnamed),
        }
    }

    /// Returns true if it may still use a channel that it subscribed to with an earlier credential.
    pub fn keeps(&self, channel: &ChannelName) -> bool {
        self.channel(channel.as_str()).is_ok()
    }

    /// Returns true if a newer credential may take the place of this one: it is of the same tenant.
    pub fn is_followed_by(&self, newer: &Self) -> bool {
        self.tenant == newer.tenant
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket() -> GatewayIdentity {
        GatewayIdentity {
            tenant: "acme".into(),
            can_publish: false,
            channels: Some(["orders".to_owned(), "room.*".to_owned()].into()),
            recipient: Some("u1".into()),
            reads_inboxes: false,
            expires_at: Some(1_800_000_000),
            session: Some("5e55".into()),
        }
    }

    #[test]
    fn a_ticket_says_again_what_it_was_given() {
        assert_eq!(GatewayIdentity::of_grant(&ticket().grant()), Some(ticket()));
        assert_eq!(GatewayIdentity::of_grant(&json!({"tenant": "acme"})), None);
    }

    #[test]
    fn a_ticket_opens_its_channels_and_its_own_inbox() {
        let name = |name: &str| ticket().channel(name).map(|name| name.to_string());
        assert_eq!(name("orders").as_deref(), Ok("orders"));
        assert_eq!(name("acme:room.7").as_deref(), Ok("room.7"));
        assert_eq!(name("$inbox").as_deref(), Ok("$inbox/u1"));
        assert_eq!(name("$inbox/u1").as_deref(), Ok("$inbox/u1"));
        for foreign in ["$inbox/u2", "zeta:orders", "$admin"] {
            assert_eq!(name(foreign), Err(ChannelNameError::Foreign), "{foreign}");
        }
        assert_eq!(name("other"), Err(ChannelNameError::Unnamed));
        let nobody = GatewayIdentity {
            recipient: None,
            ..ticket()
        };
        assert_eq!(nobody.channel("$inbox"), Err(ChannelNameError::NoRecipient));
    }

    #[test]
    fn an_inbox_is_that_of_a_recipient_who_can_exist() {
        let reader = GatewayIdentity {
            recipient: None,
            channels: None,
            reads_inboxes: true,
            ..ticket()
        };
        assert!(reader.channel("$inbox/u2").is_ok());
        let longest = format!("$inbox/{}", "u".repeat(128));
        assert!(reader.channel(&longest).is_ok());
        for name in [
            "$inbox/",
            "$inbox/\0",
            "$inbox/a\nb",
            &format!("{longest}u"),
        ] {
            let refused = reader.channel(name);
            assert!(
                matches!(refused, Err(ChannelNameError::Recipient(_))),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_newer_credential_keeps_the_channels_that_it_may_use() {
        let keeps = |identity: &GatewayIdentity| {
            ["orders", "$inbox/u1", "$inbox/u2"]
                .map(|name| identity.keeps(&ChannelName::stored(name)))
        };
        assert_eq!(keeps(&ticket()), [true, true, false]);
        let token = GatewayIdentity {
            channels: None,
            recipient: None,
            reads_inboxes: true,
            ..ticket()
        };
        assert_eq!(keeps(&token), [true, true, true]);
        let narrower = GatewayIdentity {
            reads_inboxes: false,
            ..token
        };
        assert_eq!(keeps(&narrower), [true, false, false]);
    }

    #[test]
    fn a_credential_is_valid_until_its_expiry() {
        let left = |now_s| ticket().left(Timestamp::from_second(now_s).unwrap());
        assert_eq!(left(1_799_999_990), Some(Duration::from_secs(10)));
        assert_eq!(left(1_800_000_001), Some(Duration::ZERO));
        let endless = GatewayIdentity {
            expires_at: None,
            ..ticket()
        };
        assert_eq!(endless.left(Timestamp::UNIX_EPOCH), None);
    }
}
