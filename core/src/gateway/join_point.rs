//! The place at which a subscription begins.

use super::client_frame::Since;
use super::postgres::ChannelPosition;
use super::subscription::Subscription;

/// The place at which a subscription begins: after the message that the client has, if everything
/// since is kept; else now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinPoint {
    /// The place of the channel.
    pub position: ChannelPosition,
    /// The messages that follow from the history, if all are there that the client missed.
    pub recovered: Option<i64>,
}

impl JoinPoint {
    /// Finds the place of a client that has the message `since`, if it has any.
    pub fn find(position: ChannelPosition, since: Option<Since>) -> Self {
        let has_all = |since: &Since| position.has_all_after(since.epoch, since.offset);
        let recovered = since.filter(has_all);
        Self {
            position,
            recovered: recovered.map(|since| position.last_offset - since.offset),
        }
    }

    /// Returns the offset after which the messages follow.
    pub fn after(&self) -> i64 {
        self.position.last_offset - self.recovered.unwrap_or(0)
    }

    /// Lets a subscription begin here.
    pub fn join(&self, sub: &mut Subscription) {
        let ChannelPosition {
            epoch, last_offset, ..
        } = self.position;
        sub.join(epoch, self.after() + 1, last_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::channel_name::ChannelName;

    #[test]
    fn a_client_goes_on_where_it_stood_or_begins_now() {
        let position = ChannelPosition {
            epoch: 3,
            last_offset: 20,
            first_offset: 11,
        };
        for (epoch, offset, recovered, behind) in [
            (3, 15, Some(5), Some(16)),
            (3, 10, Some(10), Some(11)),
            (3, 20, Some(0), None),
            (3, 9, None, None),
            (3, 21, None, None),
            (2, 15, None, None),
            (3, i64::MAX, None, None),
        ] {
            let point = JoinPoint::find(position, Some(Since { epoch, offset }));
            let mut sub = Subscription::new(ChannelName::stored("c"), 1);
            point.join(&mut sub);
            assert_eq!(
                (point.recovered, sub.behind()),
                (recovered, behind),
                "{epoch} {offset}"
            );
        }
        assert_eq!(JoinPoint::find(position, None).recovered, None);
    }
}
