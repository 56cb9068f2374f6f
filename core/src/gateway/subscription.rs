//! The place of a reader in a channel, and what the next message means for it.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use super::channel_name::ChannelName;

/// A subscription of one connection.
#[derive(Clone, Debug)]
pub struct Subscription {
    pub channel: ChannelName,
    /// Its number within the connection, above 0.
    pub number: u32,
    /// The epoch in which `place` counts.
    pub epoch: i64,
    pub place: ReadPlace,
    /// Messages without offsets that were dropped and not yet reported.
    pub missed: u32,
    /// True if the client was notified that it is behind.
    pub is_reported: bool,
    /// A message that was delivered and is not acknowledged yet, with the time.
    pub sampled: Option<(i64, Instant)>,
}

/// The place of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPlace {
    /// Its place is being looked up; `seen` is the highest offset of `epoch`, the highest one, that came
    /// meanwhile.
    Joining { epoch: i64, seen: i64 },
    /// It gets messages as they come; `next` is the offset that it has not got.
    Live { next: i64 },
    /// It reads the history from `next`; `seen` is the highest offset that came meanwhile.
    Behind { next: i64, seen: i64 },
    /// The channel has no history by the settings of this process: it gets every message, without
    /// the offset that it may have by those of another.
    Unnumbered,
}

/// The treatment of a message that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// The reader gets it.
    Deliver,
    /// The reader has it, or reads it from the history.
    Leave,
    /// The reader fell behind with this message and reads the history from now on.
    FellBehind,
}

impl Subscription {
    /// Creates a subscription whose place is not known yet.
    pub fn new(channel: ChannelName, number: u32) -> Self {
        Self {
            channel,
            number,
            epoch: 0,
            place: ReadPlace::Joining { epoch: 0, seen: 0 },
            missed: 0,
            is_reported: false,
            sampled: None,
        }
    }

    /// Notes a message with an offset, and decides what to do with it. After
    /// [`Arrived::Deliver`] a reader without room calls [`Self::fall_behind`].
    pub fn arrive(&mut self, epoch: i64, offset: i64) -> Arrived {
        match &mut self.place {
            ReadPlace::Joining { epoch: of, seen } => {
                (*of, *seen) = (*of, *seen).max((epoch, offset));
                Arrived::Leave
            }
            ReadPlace::Unnumbered => Arrived::Leave,
            place if epoch != self.epoch => {
                // The channel was forgotten and made again; its messages begin with 1.
                if epoch < self.epoch {
                    return Arrived::Leave;
                }
                self.epoch = epoch;
                if offset == 1 && matches!(place, ReadPlace::Live { .. }) {
                    *place = ReadPlace::Live { next: 2 };
                    return Arrived::Deliver;
                }
                *place = ReadPlace::Behind {
                    next: 1,
                    seen: offset,
                };
                Arrived::FellBehind
            }
            ReadPlace::Behind { seen, .. } => {
                *seen = (*seen).max(offset);
                Arrived::Leave
            }
            ReadPlace::Live { next } if offset < *next => Arrived::Leave,
            ReadPlace::Live { next } if offset == *next => {
                *next += 1;
                Arrived::Deliver
            }
            ReadPlace::Live { next } => {
                self.place = ReadPlace::Behind {
                    next: *next,
                    seen: offset,
                };
                Arrived::FellBehind
            }
        }
    }

    /// Takes back the delivery of `offset`, for which there was no room.
    pub fn fall_behind(&mut self, offset: i64) {
        self.place = ReadPlace::Behind {
            next: offset,
            seen: offset,
        };
    }

    /// Sets the place once it is known: the reader has everything before `next`, and `last` is the
    /// last message of the channel.
    pub fn join(&mut self, epoch: i64, next: i64, last: i64) {
        let (came_in, came) = match self.place {
            ReadPlace::Joining { epoch, seen } => (epoch, seen),
            _ => (0, 0),
        };
        // Messages of an earlier epoch are over; a later one began after the place was looked up.
        let (next, seen) = match came_in.cmp(&epoch) {
            Ordering::Less => (next, last),
            Ordering::Equal => (next, last.max(came)),
            Ordering::Greater => (1, came),
        };
        self.epoch = epoch.max(came_in);
        self.place = match next > seen {
            true => ReadPlace::Live { next },
            false => ReadPlace::Behind { next, seen },
        };
        // A client that resumes knows that messages are missing.
        self.is_reported = true;
        self.report_when_live();
    }

    /// Notes the delivery of a message, if none waits for its acknowledgement.
    pub fn sample(&mut self, offset: i64, now: Instant) {
        if self.sampled.is_none() {
            self.sampled = Some((offset, now));
        }
    }

    /// Takes an acknowledgement of everything up to an offset; returns the time since the delivery
    /// of the sampled message.
    pub fn acknowledge(&mut self, offset: i64, now: Instant) -> Option<Duration> {
        let (sampled, at) = self.sampled?;
        if offset < sampled {
            return None;
        }
        self.sampled = None;
        Some(now.saturating_duration_since(at))
    }

    fn report_when_live(&mut self) {
        if matches!(self.place, ReadPlace::Live { .. }) {
            self.is_reported = false;
        }
    }

    /// Notes that everything of an epoch before `next` was read from the history, and returns to
    /// live messages unless more has come. Of another epoch than the present one it means nothing.
    pub fn advance(&mut self, epoch: i64, next: i64) {
        if epoch != self.epoch {
            return;
        }
        if let ReadPlace::Behind { seen, .. } = self.place {
            self.place = match next > seen {
                true => ReadPlace::Live { next },
                false => ReadPlace::Behind { next, seen },
            };
        }
        self.report_when_live();
    }

    /// Lets a reader read the history from its place on, and not return to live messages: what it
    /// has may not be in the history any more.
    pub fn doubt(&mut self) {
        if let ReadPlace::Live { next } | ReadPlace::Behind { next, .. } = self.place {
            let seen = i64::MAX;
            self.place = ReadPlace::Behind { next, seen };
        }
    }

    /// Returns the offset from which the history must be read.
    pub fn behind(&self) -> Option<i64> {
        match self.place {
            ReadPlace::Behind { next, .. } => Some(next),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn live(epoch: i64, next: i64) -> Subscription {
        let mut sub = Subscription::new(ChannelName::stored("c"), 1);
        sub.join(epoch, next, next - 1);
        sub
    }

    #[test]
    fn messages_in_order_are_delivered_and_repeats_are_not() {
        let mut sub = live(3, 5);
        assert_eq!(sub.arrive(3, 4), Arrived::Leave);
        assert_eq!(sub.arrive(3, 5), Arrived::Deliver);
        assert_eq!(sub.arrive(3, 5), Arrived::Leave);
        assert_eq!(sub.arrive(3, 7), Arrived::FellBehind);
        assert_eq!(sub.behind(), Some(6));
    }

    #[test]
    fn a_message_that_came_while_joining_is_read_from_the_history() {
        let mut sub = Subscription::new(ChannelName::stored("c"), 1);
        assert_eq!(sub.arrive(3, 8), Arrived::Leave);
        sub.join(3, 8, 7);
        assert_eq!(sub.behind(), Some(8));
        sub.advance(3, 9);
        assert_eq!(sub.place, ReadPlace::Live { next: 9 });
    }

    #[test]
    fn what_came_of_another_epoch_while_a_reader_joined_is_not_missing() {
        let joined = |came: &[(i64, i64)]| {
            let mut sub = Subscription::new(ChannelName::stored("c"), 1);
            for (epoch, offset) in came {
                assert_eq!(sub.arrive(*epoch, *offset), Arrived::Leave);
            }
            sub.join(4, 3, 2);
            (sub.epoch, sub.place)
        };
        let live = (4, ReadPlace::Live { next: 3 });
        assert_eq!(joined(&[(3, 20)]), live);
        assert_eq!(joined(&[(4, 2), (3, 20)]), live);
        let behind = (4, ReadPlace::Behind { next: 3, seen: 5 });
        assert_eq!(joined(&[(3, 20), (4, 5)]), behind);
        // The channel was made again after the place was looked up.
        let anew = (5, ReadPlace::Behind { next: 1, seen: 1 });
        assert_eq!(joined(&[(4, 9), (5, 1)]), anew);
    }

    #[test]
    fn a_channel_that_is_made_anew_begins_with_its_first_message() {
        let mut sub = live(3, 5);
        assert_eq!(sub.arrive(4, 1), Arrived::Deliver);
        assert_eq!(sub.arrive(3, 5), Arrived::Leave);
        assert_eq!(sub.arrive(5, 2), Arrived::FellBehind);
        assert_eq!(sub.behind(), Some(1));
        // The messages read meanwhile are of the epoch before.
        sub.advance(4, 9);
        assert_eq!(sub.behind(), Some(1));
    }

    #[test]
    fn a_reader_in_doubt_reads_the_history_until_something_is_missing() {
        let mut sub = live(3, 5);
        sub.doubt();
        assert_eq!(sub.arrive(3, 5), Arrived::Leave);
        sub.advance(3, 6);
        assert_eq!(sub.behind(), Some(6));
        let mut joining = Subscription::new(ChannelName::stored("c"), 1);
        joining.doubt();
        assert_eq!(joining.behind(), None);
    }

    proptest! {
        /// Whatever is lost, repeated or refused for lack of room, a reader that follows the rules
        /// gets every offset once and in order.
        #[test]
        fn a_reader_gets_every_offset_once(
            steps in proptest::collection::vec((0u8..5, any::<bool>()), 1..200)
        ) {
            let (mut sub, mut last, mut got) = (live(1, 1), 0i64, Vec::new());
            let read = |sub: &mut Subscription, last: i64, got: &mut Vec<i64>| {
                if let Some(next) = sub.behind() {
                    got.extend(next..=last);
                    sub.advance(1, last + 1);
                }
            };
            for (step, has_room) in steps {
                match step {
                    0..=2 => {
                        last += 1;
                        // A third of the messages never arrive.
                        if step < 2 && sub.arrive(1, last) == Arrived::Deliver {
                            match has_room {
                                true => got.push(last),
                                false => sub.fall_behind(last),
                            }
                        }
                    }
                    3 => { if last > 0 && sub.arrive(1, last) == Arrived::Deliver { got.push(last) } }
                    _ => read(&mut sub, last, &mut got),
                }
            }
            last += 1;
            if sub.arrive(1, last) == Arrived::Deliver { got.push(last) }
            read(&mut sub, last, &mut got);
            prop_assert_eq!(got, (1..=last).collect::<Vec<_>>());
        }
    }
}
