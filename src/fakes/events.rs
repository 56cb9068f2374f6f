//! What becomes of accepted messages, and when it is told: the plan of the events that a fake posts back.

use std::collections::BTreeMap;
use std::time::Duration;

use super::plan::dice;

/// What becomes of a message after it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// It reaches the recipient.
    Delivered,
    /// It is refused for good.
    Bounced,
    /// It cannot be delivered now.
    Failed,
    /// The recipient calls it spam.
    Complained,
    /// The recipient wants no more.
    Unsubscribed,
}

/// Which events are posted, where and when. Shares are of accepted messages, from 0 to 1; what is left over is never told of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Events {
    /// Where they go.
    pub callback: String,
    /// Where the events of single accounts go instead.
    pub callbacks: BTreeMap<String, String>,
    /// What is signed with, where the provider signs with a secret of the account that is not the one of its requests: Mailgun's
    /// signing key; and Twilio's token for accounts without a known secret.
    pub secret: String,
    /// Share of each fate.
    pub shares: Vec<(Fate, f64)>,
    /// How long after the message.
    pub delay: Duration,
    /// Share of the events that are posted twice.
    pub duplicates: f64,
    /// Share of the events that come later than the others.
    pub late: f64,
    /// By how much.
    pub late_by: Duration,
}

/// An event that is to be posted.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Unique for the event.
    pub event_id: String,
    /// Whose message it was.
    pub account: String,
    /// The id that the message was given.
    pub id: String,
    /// Whom it was for.
    pub to: String,
    /// What became of it.
    pub fate: Fate,
    /// Where it is posted.
    pub callback: String,
    /// When it happened, unix milliseconds.
    pub at_ms: u64,
}

impl Events {
    /// What becomes of the message of this number, and after which times it is told.
    pub fn fate(&self, seed: u64, number: u64) -> Option<(Fate, Vec<Duration>)> {
        let mut rest = dice(seed, &(number, "fate"));
        let fate = self.shares.iter().find_map(|(fate, share)| {
            rest -= share;
            (rest < 0.0).then_some(*fate)
        })?;
        let is_late = dice(seed, &(number, "late")) < self.late;
        let first = self.delay + if is_late { self.late_by } else { Duration::ZERO };
        let is_twice = dice(seed, &(number, "twice")) < self.duplicates;
        let again = is_twice.then(|| first + self.delay.max(Duration::from_millis(200)));
        Some((fate, [Some(first), again].into_iter().flatten().collect()))
    }

    /// Where the events of an account go.
    pub fn callback(&self, account: &str) -> &str {
        self.callbacks.get(account).unwrap_or(&self.callback)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_kept_and_the_same_seed_tells_the_same() {
        let events = Events {
            shares: vec![(Fate::Delivered, 0.8), (Fate::Bounced, 0.1)],
            delay: Duration::from_secs(1),
            duplicates: 0.2,
            late: 0.1,
            late_by: Duration::from_secs(60),
            ..Events::default()
        };
        let all = |seed| (0..10_000).map(|number| events.fate(seed, number)).collect::<Vec<_>>();
        assert_eq!(all(3), all(3));
        let told: Vec<_> = all(3).into_iter().flatten().collect();
        let about = |found: usize, expected: usize| assert!(found.abs_diff(expected) < 150, "{found}, not about {expected}");
        about(told.len(), 9_000);
        about(told.iter().filter(|(fate, _)| *fate == Fate::Bounced).count(), 1_000);
        about(told.iter().filter(|(_, times)| times.len() == 2).count(), 1_800);
        about(told.iter().filter(|(_, times)| times[0] > Duration::from_secs(60)).count(), 900);
        assert!(told.iter().all(|(_, times)| times[0] >= Duration::from_secs(1)));
    }
}
