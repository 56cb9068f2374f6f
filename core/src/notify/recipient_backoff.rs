//! Rests of recipients that could not take a message: longer with each failure in a row.
//!
//! ```text
//!   webhook            5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h, 24 h   (Standard Webhooks)
//!   email              5 min, 30 min, 30 min, 1 h, 2 h, then 3 h
//!                      (RFC 5321, 4.5.4.1; greylists take the second try)
//!   sms, push, chat    5 s, doubling up to an hour
//!   set by an answer   as long as it asks for, and no less than 1 s, doubling up to half an hour
//! ```
//!
//! The rest belongs to the recipient and not to the message: every message for it waits as long,
//! and then one message goes first.

use std::time::Duration;

use crate::control::backoff;
use crate::providers::Channel;

/// The longest rest of any recipient: a day.
pub const MAX_REST: Duration = Duration::from_secs(24 * 3600);

/// Rests of endpoints, in seconds; the last one repeats.
const WEBHOOK_S: [u64; 9] = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400];

/// Rests of mailboxes, in seconds; the last one repeats.
const EMAIL_S: [u64; 6] = [300, 1_800, 1_800, 3_600, 7_200, 10_800];

/// First and longest rest of the other channels, which doubles with each failure.
const OTHERS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3_600));

/// First and last lower bound on a rest that an answer asks for.
///
/// The bound doubles with each failure, so that a recipient that keeps refusing is tried less often
/// in spite of the short delay it asks for.
const REPEATED_REFUSAL_REST: (Duration, Duration) =
    (Duration::from_secs(1), Duration::from_secs(1_800));

/// Returns the rest after `failures` failures in a row, the last one included; `requested` is the
/// delay that an answer asked for.
///
/// ```
/// # use flyball_core as flyball;
/// use std::time::Duration;
/// use flyball::notify::recipient_backoff::rest;
/// use flyball::providers::Channel;
///
/// assert_eq!(rest(Channel::Webhook, 2, None), Duration::from_secs(300));
/// assert_eq!(rest(Channel::Webhook, 1, Some(Duration::from_secs(40))), Duration::from_secs(40));
/// ```
pub fn rest(channel: Channel, failures: u32, requested: Option<Duration>) -> Duration {
    let nth = failures.max(1) - 1;
    let of = |table: &[u64]| Duration::from_secs(table[(nth as usize).min(table.len() - 1)]);
    let rest = match (requested, channel) {
        (Some(requested), _) => requested.max(backoff::bound(
            nth,
            REPEATED_REFUSAL_REST.0,
            REPEATED_REFUSAL_REST.1,
        )),
        (None, Channel::Webhook) => of(&WEBHOOK_S),
        (None, Channel::Email) => of(&EMAIL_S),
        (None, Channel::Sms | Channel::Push | Channel::Chat | Channel::InApp) => {
            backoff::bound(nth, OTHERS.0, OTHERS.1)
        }
    };
    rest.min(MAX_REST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(channel: Channel, requested: Option<u64>) -> Vec<u64> {
        (1..=7)
            .map(|nth| rest(channel, nth, requested.map(Duration::from_secs)).as_secs())
            .collect()
    }

    #[test]
    fn tries_at_one_recipient_back_off() {
        assert_eq!(
            seconds(Channel::Webhook, None),
            [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400]
        );
        assert_eq!(
            seconds(Channel::Email, None),
            [300, 1_800, 1_800, 3_600, 7_200, 10_800, 10_800]
        );
        assert_eq!(seconds(Channel::Chat, None), [5, 10, 20, 40, 80, 160, 320]);
        assert_eq!(seconds(Channel::Chat, Some(1)), [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(
            seconds(Channel::Webhook, Some(40)),
            [40, 40, 40, 40, 40, 40, 64]
        );
    }

    proptest! {
        #[test]
        fn a_rest_is_as_requested_or_longer_and_never_over_a_day(failures in any::<u32>(), requested in prop::option::of(0_u64..200_000)) {
            for (_, channel) in Channel::WORDS {
                let rested = rest(channel, failures, requested.map(Duration::from_secs));
                prop_assert!(rested >= requested.map(Duration::from_secs).unwrap_or_default().min(MAX_REST) && rested <= MAX_REST);
                prop_assert!(rest(channel, failures.saturating_add(1), requested.map(Duration::from_secs)) >= rested);
            }
        }
    }
}
