//! The end of the history as this process knows it.

use std::time::{Duration, Instant};

use super::postgres::{ReadMark, StoredMessage};

/// The time between two polls for the end.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// The least by which the epoch grows when all channels get a new one. It grows by one whenever
/// some are forgotten, which is no more often than once in two seconds.
const RENEWED_BY: i64 = 500;

/// The last message that was read, and the epoch that was seen last.
#[derive(Debug, Default)]
pub struct HistoryEnd {
    last: Option<ReadMark>,
    /// True while the history lacks that message and channels have no new epoch yet.
    is_missing: bool,
    epoch: Option<i64>,
    looked_at: Option<Instant>,
}

impl HistoryEnd {
    /// Begins with the last message that was there before any was read: the places of subscriptions
    /// count it.
    pub fn begin(&mut self, last: Option<ReadMark>) {
        self.last = self.last.take().or(last);
    }

    /// Notes messages that were read, in order.
    pub fn note(&mut self, messages: &[StoredMessage]) {
        if self.is_missing {
            return;
        }
        let last = messages.iter().rev().find(|message| message.offset > 0);
        self.last = last.map(ReadMark::of).or(self.last.take());
    }

    /// Returns the message to look for, if it is time to look.
    pub fn wanted(&mut self, now: Instant) -> Option<ReadMark> {
        let is_old = |at: Instant| at + CHECK_EVERY <= now;
        let is_due = self.is_missing || self.looked_at.is_none_or(is_old);
        if !is_due {
            return None;
        }
        let wanted = self.last.clone()?;
        self.looked_at = Some(now);
        Some(wanted)
    }

    /// Notes whether the history lacks the message that was looked for; then it is looked for until
    /// channels have a new epoch.
    pub fn note_missing(&mut self, is_missing: bool) {
        self.is_missing = is_missing;
    }

    /// Looks again at the next chance, because Postgres did not answer.
    pub fn note_failure(&mut self) {
        self.looked_at = None;
    }

    /// Takes the present epoch; returns true if all channels got a new one since the last poll.
    pub fn is_renewed(&mut self, epoch: i64) -> bool {
        let before = self.epoch.replace(epoch);
        before.is_some_and(|before| epoch - before >= RENEWED_BY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::channel_name::ChannelName;

    fn stored(seq: i64, offset: i64) -> StoredMessage {
        StoredMessage {
            seq,
            tenant: "acme".to_owned(),
            channel: ChannelName::stored("orders"),
            epoch: 1,
            offset,
            id: seq,
            data: "1".to_owned(),
        }
    }

    #[test]
    fn the_last_message_with_an_offset_is_looked_for_once_a_second() {
        let (mut end, now) = (HistoryEnd::default(), Instant::now());
        assert_eq!(end.wanted(now), None);
        end.note(&[stored(1, 7), stored(2, 8), stored(3, 0)]);
        end.note(&[]);
        end.note(&[stored(4, 0)]);
        assert_eq!(end.wanted(now), Some(ReadMark::of(&stored(2, 8))));
        assert_eq!(end.wanted(now + CHECK_EVERY / 2), None);
        assert!(end.wanted(now + CHECK_EVERY).is_some());
        end.note_failure();
        assert!(end.wanted(now + CHECK_EVERY).is_some());
    }

    #[test]
    fn the_last_message_of_before_is_looked_for_until_another_is_read() {
        let (mut end, now) = (HistoryEnd::default(), Instant::now());
        let (before, read) = (stored(5, 7), stored(6, 8));
        end.begin(Some(ReadMark::of(&before)));
        assert_eq!(end.wanted(now), Some(ReadMark::of(&before)));
        end.note(std::slice::from_ref(&read));
        end.begin(Some(ReadMark::of(&before)));
        assert_eq!(end.wanted(now + CHECK_EVERY), Some(ReadMark::of(&read)));
    }

    #[test]
    fn a_message_that_is_missing_is_looked_for_until_that_has_an_end() {
        let (mut end, now) = (HistoryEnd::default(), Instant::now());
        end.note(&[stored(2, 8)]);
        end.note_missing(true);
        end.note(&[stored(9, 9)]);
        for _ in 0..2 {
            assert_eq!(end.wanted(now), Some(ReadMark::of(&stored(2, 8))));
        }
        end.note_missing(false);
        end.note(&[stored(9, 9)]);
        let later = now + CHECK_EVERY;
        assert_eq!(end.wanted(later), Some(ReadMark::of(&stored(9, 9))));
    }

    #[test]
    fn channels_that_were_forgotten_are_not_all_channels() {
        let mut end = HistoryEnd::default();
        let renewed = [7, 8, 30, 1030, 1030].map(|epoch| end.is_renewed(epoch));
        assert_eq!(renewed, [false, false, false, true, false]);
    }
}
