//! Release without a storm: messages that become due at one instant go over a span.

use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

use super::address::{RecipientKey, hash_bytes};
use super::quiet::Quiet;

/// The length of the span of time whose held messages are counted together, in seconds.
pub const BUCKET_S: i64 = 900;

/// The settings of releases.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Release {
    /// The share of the pool's capacity that released messages may use; the rest is for fresh ones.
    pub share: f64,
    /// The longest span.
    pub spread_max: SignedDuration,
}

impl Default for Release {
    fn default() -> Self {
        Self {
            share: 0.5,
            spread_max: SignedDuration::from_mins(30),
        }
    }
}

impl Release {
    /// Returns the span over which messages go that become due in one quarter of an hour.
    ///
    /// `held` counts all messages that were ever held for this quarter and pool, also those that do
    /// not wait any more: as it only grows, the messages of one recipient stay in order.
    pub fn spread(&self, held: u64, capacity_per_s: f64) -> SignedDuration {
        if held == 0 {
            return SignedDuration::ZERO;
        }
        let seconds = held as f64 / (self.share * capacity_per_s);
        let most = self.spread_max.as_secs_f64();
        let seconds = if seconds.is_nan() { most } else { seconds };
        SignedDuration::from_secs_f64(seconds.clamp(0.0, most))
    }

    /// Returns the time at which a message of a recipient goes that is due at `at`: the same part
    /// of the span for all its messages of a day, and never in quiet hours that begin again.
    pub fn at(
        &self,
        at: Timestamp,
        spread: SignedDuration,
        recipient: &RecipientKey,
        quiet: &Quiet,
    ) -> Timestamp {
        let spread = quiet.allowed_for(at, spread);
        let later = spread.mul_f64(part(recipient, at));
        at.checked_add(later).unwrap_or(at)
    }
}

/// Returns the part of the span, from 0 and below 1, of a recipient on the day of `at`.
fn part(recipient: &RecipientKey, at: Timestamp) -> f64 {
    let date = Offset::UTC.to_datetime(at).date().to_string();
    let hash = hash_bytes(&[b"release", recipient.as_bytes(), date.as_bytes()]);
    let mut start = [0; 4];
    start.copy_from_slice(&hash[..4]);
    f64::from(u32::from_be_bytes(start)) / (f64::from(u32::MAX) + 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::civil::time;
    use jiff::tz::TimeZone;

    use super::*;
    use crate::providers::Channel;
    use crate::recipient::quiet::{QuietHours, QuietRule, Weekdays};

    fn recipient(n: u32) -> RecipientKey {
        RecipientKey::of_subscriber("acme", Channel::Push, &n.to_string())
    }

    fn minutes(minutes: i64) -> SignedDuration {
        SignedDuration::from_mins(minutes)
    }

    #[test]
    fn a_crowd_uses_half_of_the_pool_for_half_an_hour_at_most() {
        let release = Release::default();
        for (held, capacity, seconds) in [
            (0, 1000.0, 0),
            (500, 1000.0, 1),
            (300_000, 1000.0, 600),
            (1_000_000, 1000.0, 1800),
            (1, 0.0, 1800),
            (0, 0.0, 0),
        ] {
            assert_eq!(
                release.spread(held, capacity),
                SignedDuration::from_secs(seconds),
                "{held}"
            );
        }
    }

    /// Of a million for 08:00 at a pool of 1000 a second, a thirtieth goes in each minute: 556 a
    /// second.
    #[test]
    fn a_million_are_released_evenly() {
        let at: Timestamp = "2026-06-10T06:00:00Z".parse().unwrap();
        let release = Release::default();
        let mut per_minute = BTreeMap::new();
        for n in 0..30_000 {
            let goes = release.at(at, minutes(30), &recipient(n), &Quiet::default());
            *per_minute
                .entry(goes.duration_since(at).as_mins())
                .or_insert(0) += 1;
        }
        assert_eq!(per_minute.len(), 30);
        assert!(
            per_minute.values().all(|n| (850..1150).contains(n)),
            "{per_minute:?}"
        );
    }

    #[test]
    fn the_messages_of_one_recipient_stay_in_order() {
        let at: Timestamp = "2026-06-10T06:00:00Z".parse().unwrap();
        let release = Release::default();
        for n in 0..100 {
            let mut last = at;
            for held in [10, 5_000, 900_000, 900_001] {
                let spread = release.spread(held, 1000.0);
                let goes = release.at(at, spread, &recipient(n), &Quiet::default());
                assert!(goes >= last);
                last = goes;
            }
        }
    }

    #[test]
    fn nothing_is_released_into_quiet_hours_that_begin_again() {
        let zone = TimeZone::get("America/New_York").unwrap();
        // Allowed from 05:30Z, quiet again from 06:00Z to 06:30Z.
        let (start, end) = (time(22, 0, 0, 0), time(1, 30, 0, 0));
        let hours = QuietHours::daily(start, end, Weekdays::ALL, Default::default()).unwrap();
        let quiet = Quiet(vec![QuietRule::new(hours, zone)]);
        let at: Timestamp = "2026-11-01T05:50:00Z".parse().unwrap();
        for n in 0..1000 {
            let goes = Release::default().at(at, minutes(30), &recipient(n), &quiet);
            assert!(!quiet.is_quiet(goes) && goes.duration_since(at) < minutes(10));
        }
    }
}
