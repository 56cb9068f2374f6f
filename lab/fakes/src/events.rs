//! The fate of accepted messages: the plan of the events that a fake posts back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan::dice;

/// The fate of a message after it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlannedEvent {
    /// Delivered to the recipient.
    Delivered,
    /// Refused for good by the receiving side.
    Bounced,
    /// Not deliverable at the moment.
    Failed,
    /// Reported as spam by the recipient.
    Complained,
    /// An unsubscription by the recipient.
    Unsubscribed,
}

/// The plan of the events that are posted.
///
/// Shares are of accepted messages, from 0 to 1; messages beyond all shares get no event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// The URL to which events are posted.
    pub callback: String,
    /// The URLs of single accounts, which replace `callback`.
    pub callbacks: BTreeMap<String, String>,
    /// The signing secret, for providers that do not sign with the secret of the account's
    /// requests.
    ///
    /// It is Mailgun's signing key, and Twilio's token for accounts without a known secret.
    pub secret: String,
    /// The share of each fate.
    pub shares: Vec<(PlannedEvent, f64)>,
    /// The time from a message to its event.
    pub delay: Duration,
    /// The share of the events that are posted twice.
    pub duplicates: f64,
    /// The share of the events that come later than the others.
    pub late: f64,
    /// The additional delay of late events.
    pub late_by: Duration,
}

/// A scheduled event.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingEvent {
    /// The unique id of the event.
    pub event_id: String,
    /// The account that sent the message.
    pub account: String,
    /// The provider's id of the message.
    pub id: String,
    /// The recipient of the message.
    pub to: String,
    pub fate: PlannedEvent,
    /// The URL to which the event is posted.
    pub callback: String,
    /// The time of the event, in unix milliseconds.
    pub at_ms: u64,
}

impl Events {
    /// Returns the fate of message `number` and the delays of its events; `None` if it gets none.
    pub fn fate(&self, seed: u64, number: u64) -> Option<(PlannedEvent, Vec<Duration>)> {
        let mut rest = dice(seed, &(number, "fate"));
        let fate = self.shares.iter().find_map(|(fate, share)| {
            rest -= share;
            (rest < 0.0).then_some(*fate)
        })?;
        let is_late = dice(seed, &(number, "late")) < self.late;
        let first = self.delay
            + if is_late {
                self.late_by
            } else {
                Duration::ZERO
            };
        let is_twice = dice(seed, &(number, "twice")) < self.duplicates;
        let again = is_twice.then(|| first + self.delay.max(Duration::from_millis(200)));
        Some((fate, [Some(first), again].into_iter().flatten().collect()))
    }

    /// Returns the URL for the events of an account.
    pub fn callback(&self, account: &str) -> &str {
        self.callbacks.get(account).unwrap_or(&self.callback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_the_same_seed_gives_the_same() {
        let events = Events {
            shares: vec![(PlannedEvent::Delivered, 0.8), (PlannedEvent::Bounced, 0.1)],
            delay: Duration::from_secs(1),
            duplicates: 0.2,
            late: 0.1,
            late_by: Duration::from_secs(60),
            ..Events::default()
        };
        let all = |seed| {
            (0..10_000)
                .map(|number| events.fate(seed, number))
                .collect::<Vec<_>>()
        };
        assert_eq!(all(3), all(3));
        let answer: Vec<_> = all(3).into_iter().flatten().collect();
        let about = |found: usize, expected: usize| {
            assert!(
                found.abs_diff(expected) < 150,
                "{found}, not about {expected}"
            )
        };
        about(answer.len(), 9_000);
        about(
            answer
                .iter()
                .filter(|(fate, _)| *fate == PlannedEvent::Bounced)
                .count(),
            1_000,
        );
        about(
            answer.iter().filter(|(_, times)| times.len() == 2).count(),
            1_800,
        );
        about(
            answer
                .iter()
                .filter(|(_, times)| times[0] > Duration::from_secs(60))
                .count(),
            900,
        );
        assert!(
            answer
                .iter()
                .all(|(_, times)| times[0] >= Duration::from_secs(1))
        );
    }
}
