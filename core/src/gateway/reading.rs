//! Reads channels for a connection: where a subscription begins, and what a reader has missed.

use std::time::Duration;

use super::channel_name::ChannelName;
use super::client_frame::Since;
use super::hub::BehindReader;
use super::join_point::JoinPoint;
use super::postgres::{HistoryPage, StoredMessage};
use super::service::Gateway;
use crate::jobs::Error;

/// The pause of a reader that is behind while Postgres is away.
const AWAY: Duration = Duration::from_millis(500);

/// The longest wait for a page of the history; the connection is not served meanwhile.
const PAGE_WITHIN: Duration = Duration::from_secs(4);

/// The messages that a reader has missed.
#[derive(Clone, Debug, PartialEq)]
pub enum MissedPage {
    /// Postgres does not answer.
    Away,
    /// A part of them is no longer kept.
    Lost,
    /// The next of them, in order.
    Messages(Vec<StoredMessage>),
}

impl Gateway {
    /// Finds the place at which a subscription begins; `None` in a channel without history.
    pub async fn join_point(
        &self,
        tenant: &str,
        channel: &ChannelName,
        since: Option<Since>,
    ) -> Result<Option<JoinPoint>, Error> {
        if self.limits.history(channel.as_str()).kept_max == 0 {
            return Ok(None);
        }
        let position = self.position(tenant, channel.as_str()).await?;
        Ok(Some(JoinPoint::find(position, since)))
    }

    /// Reads a page of what a reader has missed.
    pub async fn missed(&self, tenant: &str, behind: &BehindReader) -> MissedPage {
        let page = HistoryPage {
            tenant: tenant.to_owned(),
            channel: behind.channel.as_str().to_owned(),
            epoch: behind.epoch,
            next: behind.next,
        };
        match tokio::time::timeout(PAGE_WITHIN, self.page(page)).await {
            Ok(Ok(messages)) => match messages.first() {
                Some(first) if first.offset == behind.next => MissedPage::Messages(messages),
                // A part of what was missed would look like all of it.
                _ => MissedPage::Lost,
            },
            Ok(Err(_)) => {
                tokio::time::sleep(AWAY).await;
                MissedPage::Away
            }
            Err(_) => MissedPage::Away,
        }
    }
}
