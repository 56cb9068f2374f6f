//! The limits of the gateway: those of the settings, and those of the protocol.

use std::time::Duration;

use crate::input::patterns::fits;

/// The largest message of a client, in bytes, and the largest data of a publication as Postgres
/// writes it.
pub const MESSAGE_BYTES: usize = 65_536;

/// The largest data of a stored message that is delivered, in bytes: a message of an inbox may be
/// larger than a publication. Readers get a `gap` in place of a message that is larger still.
pub const STORED_BYTES: usize = 4 * MESSAGE_BYTES;

/// The most channels of one connection.
pub const SUBSCRIPTIONS_MAX: usize = 50;

/// The time between two pings to a connection.
pub const PING_EVERY: Duration = Duration::from_secs(25);

/// The time in which a ping must be answered.
pub const PONG_WITHIN: Duration = Duration::from_secs(8);

/// The time in which an opened connection must send its credential.
pub const CREDENTIAL_WITHIN: Duration = Duration::from_secs(10);

/// The time before the expiry of a credential at which the client is warned.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(60);

/// The time after the expiry of a credential in which it can still be renewed.
pub const EXPIRY_GRACE: Duration = Duration::from_secs(25);

/// The messages of a tenant that may wait, in seconds of its limit, before publications of clients
/// are refused.
pub const DELAY_LINE_S: f64 = 5.0;

/// The validity of a ticket.
pub const TICKET_TTL: Duration = Duration::from_secs(30);

/// The limits that the settings give.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayLimits {
    /// Messages of a tenant within any second; its throttle's knobs may differ.
    pub per_second: u32,
    /// Open connections of a tenant over all processes; its throttle's knobs may differ.
    pub connections: u32,
    /// Open connections of this process.
    pub node_connections: usize,
    /// Open streams of events of this process, which have places of the HTTP API as well.
    pub node_streams: usize,
    /// New connections of this process per second.
    pub handshakes_per_s: u32,
    /// The time over which a stopping process sends its connections away.
    pub drain: Duration,
    /// Origins of pages, besides our own, that may connect.
    pub origins: Vec<String>,
    /// The history of channels by pattern; the first that fits holds, which is the longest.
    pub histories: Vec<(String, ChannelHistory)>,
}

/// The messages of a channel that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelHistory {
    /// The time for which they are kept, in seconds.
    pub kept_s: i32,
    /// The number that is kept; 0 for a channel without history, whose messages have no offsets.
    pub kept_max: i32,
}

impl ChannelHistory {
    /// The history of a channel that no pattern names.
    pub const USUAL: Self = Self {
        kept_s: 300,
        kept_max: 1000,
    };

    /// The history of inboxes.
    pub const INBOX: Self = Self {
        kept_s: 7 * 86_400,
        kept_max: 1000,
    };
}

impl Default for GatewayLimits {
    fn default() -> Self {
        Self {
            per_second: 200,
            connections: 1000,
            node_connections: 20_000,
            node_streams: 1024,
            handshakes_per_s: 1000,
            drain: Duration::from_secs(10),
            origins: Vec::new(),
            histories: Vec::new(),
        }
    }
}

impl GatewayLimits {
    /// Returns the history of channels by pattern: the first that fits holds, and the last fits all.
    pub fn history_rules(&self) -> Vec<(&str, ChannelHistory)> {
        let set = self.histories.iter();
        let set = set.map(|(pattern, history)| (pattern.as_str(), *history));
        [("$*", ChannelHistory::INBOX)]
            .into_iter()
            .chain(set)
            .chain([("*", ChannelHistory::USUAL)])
            .collect()
    }

    /// Returns the history of a channel.
    pub fn history(&self, channel: &str) -> ChannelHistory {
        let rules = self.history_rules();
        let found = rules.iter().find(|(pattern, _)| fits(pattern, channel));
        found.map_or(ChannelHistory::USUAL, |(_, history)| *history)
    }
}

/// Returns the messages of a tenant that may wait before publications of clients are refused, by the
/// messages per second that its limit admits. One may always wait.
pub fn delay_line(per_second: f64) -> i64 {
    ((per_second * DELAY_LINE_S).ceil() as i64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_seconds_of_the_limit_may_wait_and_never_less_than_one_message() {
        for (per_second, line) in [(200.0, 1000), (5.0, 25), (0.5, 3), (0.0, 1)] {
            assert_eq!(delay_line(per_second), line, "{per_second}");
        }
    }
}
