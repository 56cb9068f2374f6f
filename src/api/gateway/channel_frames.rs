//! The frames of a client about a channel: subscribe, unsubscribe, publish, acknowledge.

use super::session::{Ended, Session};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::gateway::channel_name::{ChannelName, ChannelNameError};
use crate::gateway::client_frame::Since;
use crate::gateway::limits::{MESSAGE_BYTES, SUBSCRIPTIONS_MAX};
use crate::gateway::postgres::{NewPublication, Published};
use crate::gateway::server_frame::{self, FrameError};

impl Session {
    /// Returns the channel of a name; refuses one that the connection may not use.
    pub(super) async fn named(
        &mut self,
        name: &str,
        reference: Option<&str>,
    ) -> Result<Option<ChannelName>, Ended> {
        match self.identity.channel(name) {
            Ok(channel) => Ok(Some(channel)),
            Err(error) => {
                let code = match error {
                    ChannelNameError::Form | ChannelNameError::Recipient(_) => {
                        FrameError::BadChannel
                    }
                    ChannelNameError::Foreign
                    | ChannelNameError::Unnamed
                    | ChannelNameError::NoRecipient => FrameError::ForbiddenChannel,
                };
                let words = format!("channel: {error}");
                self.refuse(code, &words, reference).await?;
                Ok(None)
            }
        }
    }

    pub(super) async fn subscribe(
        &mut self,
        channel: ChannelName,
        since: Option<Since>,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        let (is_new, count) = {
            let mut state = self.peer.state();
            let is_new = state.subscription(&channel).is_none();
            (is_new, state.subscriptions.len())
        };
        if is_new && count >= SUBSCRIPTIONS_MAX {
            let words = format!("a connection may subscribe to {SUBSCRIPTIONS_MAX} channels");
            return self
                .refuse(FrameError::TooManySubscriptions, &words, reference)
                .await;
        }
        let gateway = self.state.gateway.clone();
        // From here on messages are noted, so that none is missed between the place and the first.
        gateway.hub.subscribe(&self.peer, &channel);
        if is_new {
            gateway.metrics.subscribed(1);
        }
        let tenant = self.identity.tenant.clone();
        let point = gateway.join_point(&tenant, &channel, since);
        let Ok(point) = with_timeout(ROW_TIMEOUT, point).await else {
            gateway.hub.unsubscribe(&self.peer, &channel);
            gateway.metrics.subscribed(-1);
            let words = "Postgres does not answer; the channel is not subscribed, try again soon";
            return self.refuse(FrameError::Unavailable, words, reference).await;
        };
        // The answer comes before the messages.
        self.send(server_frame::subscribed(
            &channel,
            point.as_ref(),
            reference,
        ))
        .await?;
        self.peer.state().join(&channel, point.as_ref());
        Ok(())
    }

    pub(super) async fn unsubscribe(
        &mut self,
        channel: &ChannelName,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        if !self.state.gateway.hub.unsubscribe(&self.peer, channel) {
            return self.not_subscribed(reference).await;
        }
        self.state.gateway.metrics.subscribed(-1);
        self.send(server_frame::unsubscribed(channel, reference))
            .await
    }

    pub(super) async fn publish(
        &mut self,
        channel: &ChannelName,
        data: serde_json::Value,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        if !self.identity.can_publish || channel.recipient().is_some() {
            let words = "the credential may not publish to this channel";
            return self
                .refuse(FrameError::ScopeMissing, words, reference)
                .await;
        }
        let gateway = self.state.gateway.clone();
        let waiting_max = gateway.delay_line(&self.identity.tenant).await;
        let message = NewPublication {
            tenant: self.identity.tenant.to_string(),
            channel: channel.as_str().to_owned(),
            data,
            waiting_max,
        };
        match with_timeout(ROW_TIMEOUT, gateway.publish(message)).await {
            Ok(Published::Accepted { id, .. }) => {
                self.hold_at_limit();
                self.send(server_frame::published(id, reference)).await
            }
            Ok(Published::Full) => {
                self.hold_at_limit();
                let words = "too many messages of the tenant wait; this one was not published";
                self.refuse(FrameError::WsOverloaded, words, reference)
                    .await
            }
            Ok(Published::TooLarge { bytes }) => {
                let words = format!(
                    "data: has {bytes} bytes as Postgres writes it; at most {MESSAGE_BYTES} are allowed"
                );
                self.refuse(FrameError::TooLarge, &words, reference).await
            }
            Err(_) => {
                let words = "Postgres does not answer; the message may have been published";
                self.refuse(FrameError::Unavailable, words, reference).await
            }
        }
    }

    pub(super) async fn acknowledge(
        &mut self,
        channel: &ChannelName,
        offset: i64,
        reference: Option<&str>,
    ) -> Result<(), Ended> {
        let acknowledged = {
            let mut state = self.peer.state();
            state
                .subscription(channel)
                .map(|sub| sub.acknowledge(offset, std::time::Instant::now()))
        };
        let Some(delay) = acknowledged else {
            return self.not_subscribed(reference).await;
        };
        if let Some(delay) = delay {
            let metrics = &self.state.gateway.metrics;
            metrics.acknowledged(delay.as_secs_f64());
        }
        Ok(())
    }

    async fn not_subscribed(&mut self, reference: Option<&str>) -> Result<(), Ended> {
        let words = "the connection does not subscribe to this channel";
        self.refuse(FrameError::NotSubscribed, words, reference)
            .await
    }
}
