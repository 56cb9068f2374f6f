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

impl MissedPage {
    /// Returns the messages from an offset on, up to the first that is missing: what follows that
    /// one would look like all that was missed.
    fn of(mut messages: Vec<StoredMessage>, next: i64) -> Self {
        let in_order = messages.iter().zip(next..);
        let whole = in_order.take_while(|(message, offset)| message.offset == *offset);
        let whole = whole.count();
        messages.truncate(whole);
        match whole {
            0 => Self::Lost,
            _ => Self::Messages(messages),
        }
    }
}

impl Gateway {
    /// Finds the place at which a subscription begins; `None` in a channel without history.
    pub async fn join_point(
        &self,
        tenant: &str,
        channel: &ChannelName,
        since: Option<Since>,
    ) -> Result<Option<JoinPoint>, Error> {
        self.begin_reading().await?;
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
            Ok(Ok(messages)) => MissedPage::of(messages, behind.next),
            Ok(Err(_)) => {
                tokio::time::sleep(AWAY).await;
                MissedPage::Away
            }
            Err(_) => MissedPage::Away,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_ends_before_the_first_message_that_is_missing() {
        let stored = |offset| StoredMessage {
            seq: offset,
            tenant: "acme".to_owned(),
            channel: ChannelName::stored("orders"),
            epoch: 1,
            offset,
            id: offset,
            data: "1".to_owned(),
        };
        let page = |offsets: &[i64], next| -> Vec<i64> {
            let messages = offsets.iter().map(|offset| stored(*offset)).collect();
            match MissedPage::of(messages, next) {
                MissedPage::Messages(messages) => messages.iter().map(|one| one.offset).collect(),
                _ => Vec::new(),
            }
        };
        assert_eq!(page(&[5, 6, 7], 5), [5, 6, 7]);
        // Messages that are kept for a shorter time than those before them go first.
        assert_eq!(page(&[5, 6, 11, 12], 5), [5, 6]);
        assert_eq!(page(&[11, 12], 7), [0_i64; 0]);
        assert_eq!(page(&[], 7), [0_i64; 0]);
    }
}
