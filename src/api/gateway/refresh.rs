//! The frame with a newer credential.

use super::credential::{TokenFault, identity_of_token};
use super::identity::GatewayIdentity;
use super::opened;
use super::session::{Ended, Session};
use crate::gateway::channel_name::ChannelName;
use crate::gateway::close::CloseReason;
use crate::gateway::server_frame::{self, FrameError};

/// The tokens that are not valid after which a connection is closed.
const WRONG_TOKENS_MAX: u32 = 5;

impl Session {
    /// Returns the channels to which the connection subscribes.
    fn channels(&self) -> Vec<ChannelName> {
        let state = self.peer.state();
        let names = state.subscriptions.iter().map(|sub| sub.channel.clone());
        names.collect()
    }

    /// Takes a newer credential in place of the present one.
    pub(super) async fn refresh(
        &mut self,
        token: &str,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        let tenant = self.identity.tenant.clone();
        let newer = identity_of_token(&self.state, token, &tenant, self.address).await;
        if let Err(fault @ (TokenFault::Wrong | TokenFault::Denied)) = newer {
            self.wrong_tokens += 1;
            if fault == TokenFault::Denied || self.wrong_tokens >= WRONG_TOKENS_MAX {
                return Err(Ended::Close(CloseReason::Credential));
            }
        }
        if newer == Err(TokenFault::Unreadable) {
            let words = "the keys of the token's issuer cannot be read; send it again soon";
            return self.refuse(FrameError::Unavailable, words, reference).await;
        }
        let newer = newer.ok();
        let Some(newer) = newer.filter(|newer| self.identity.is_followed_by(newer)) else {
            let words = "the token is not accepted, or is of another tenant";
            return self
                .refuse(FrameError::Unauthorized, words, reference)
                .await;
        };
        // The rights are those of the newer token; the recipient is still the one of the ticket.
        let recipient = self.identity.recipient.clone();
        let newer = GatewayIdentity { recipient, ..newer };
        let lost = self.channels().into_iter().find(|name| !newer.keeps(name));
        if let Some(lost) = lost {
            let words = format!(
                "the token may not use {lost}, to which the connection subscribes; unsubscribe first"
            );
            return self
                .refuse(FrameError::Unauthorized, &words, reference)
                .await;
        }
        self.identity = newer;
        self.session_end = opened::session_end(&self.state, &self.identity);
        self.note_expiry();
        let answer = server_frame::refreshed(self.identity.expires_at, reference);
        self.send(answer).await
    }
}
