//! The frames that wait for a connection: those of control, and those of channels within bounds.

use std::collections::VecDeque;

/// The most frames of channels that wait.
pub const FRAMES_MAX: usize = 256;

/// The most bytes of frames of channels that wait.
pub const BYTES_MAX: usize = 256 * 1024;

/// The most frames of control that wait.
pub const CONTROL_MAX: usize = 16;

/// The capacity that an emptied queue keeps.
const KEPT_CAPACITY: usize = 4;

/// The frames that wait for one connection. Frames of control go first and are never dropped.
#[derive(Debug)]
pub struct Outbox<F> {
    control: VecDeque<F>,
    data: VecDeque<QueuedFrame<F>>,
    bytes: usize,
    /// The frames of channels that were taken and not counted yet.
    taken: u32,
}

#[derive(Debug)]
struct QueuedFrame<F> {
    frame: F,
    /// The number of its subscription within the connection.
    subscription: u32,
    /// True if newer frames of the subscription may take its place.
    may_drop: bool,
}

impl<F> Default for Outbox<F> {
    fn default() -> Self {
        Self {
            control: VecDeque::new(),
            data: VecDeque::new(),
            bytes: 0,
            taken: 0,
        }
    }
}

impl<F: AsRef<[u8]>> Outbox<F> {
    /// Adds a frame of control; returns false if too many wait.
    pub fn push_control(&mut self, frame: F) -> bool {
        let has_room = self.control.len() < CONTROL_MAX;
        if has_room {
            self.control.push_back(frame);
        }
        has_room
    }

    /// Adds a frame of a channel with offsets; returns false if there is no room. `subscription` is
    /// a number within the connection.
    pub fn push(&mut self, frame: F, subscription: u32) -> bool {
        self.add(frame, subscription, false)
    }

    /// Adds a frame of a channel without offsets, in place of older ones of that subscription if
    /// there is no room; returns the number of frames that were dropped, this one included.
    pub fn push_droppable(&mut self, frame: F, subscription: u32) -> u32 {
        let mut dropped = 0;
        while !self.fits(&frame) {
            let is_its = |one: &QueuedFrame<F>| one.may_drop && one.subscription == subscription;
            let oldest = self.data.iter().position(is_its);
            dropped += 1;
            match oldest.and_then(|place| self.data.remove(place)) {
                Some(one) => self.bytes -= one.frame.as_ref().len(),
                None => return dropped,
            }
        }
        self.add(frame, subscription, true);
        dropped
    }

    /// Removes the frames with offsets of a subscription; the others are those of its successor.
    pub fn forget(&mut self, subscription: u32, successor: u32) {
        self.data.retain_mut(|one| {
            let is_its = one.subscription == subscription;
            if is_its {
                one.subscription = successor;
            }
            one.may_drop || !is_its
        });
        self.count();
    }

    /// Removes all frames of a subscription, which has ended or whose channel is gone.
    pub fn end(&mut self, subscription: u32) {
        self.data.retain(|one| one.subscription != subscription);
        self.count();
    }

    /// Takes the next frame.
    pub fn pop(&mut self) -> Option<F> {
        if let Some(frame) = self.control.pop_front() {
            return Some(frame);
        }
        let taken = self.data.pop_front()?;
        self.taken = self.taken.saturating_add(1);
        self.bytes -= taken.frame.as_ref().len();
        if self.data.is_empty() && self.data.capacity() > KEPT_CAPACITY {
            self.data.shrink_to(KEPT_CAPACITY);
        }
        Some(taken.frame)
    }

    /// Returns the number of frames of channels that were taken since it was asked last.
    pub fn count_taken(&mut self) -> u64 {
        std::mem::take(&mut self.taken).into()
    }

    /// Returns true if no frame waits.
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// Returns true if no frame of a channel waits.
    pub fn has_no_data(&self) -> bool {
        self.data.is_empty()
    }

    fn count(&mut self) {
        self.bytes = self.data.iter().map(|one| one.frame.as_ref().len()).sum();
    }

    fn fits(&self, frame: &F) -> bool {
        self.data.len() < FRAMES_MAX && self.bytes + frame.as_ref().len() <= BYTES_MAX
    }

    fn add(&mut self, frame: F, subscription: u32, may_drop: bool) -> bool {
        let fits = self.fits(&frame);
        if fits {
            self.bytes += frame.as_ref().len();
            self.data.push_back(QueuedFrame {
                frame,
                subscription,
                may_drop,
            });
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn frames_of_control_pass_those_of_channels() {
        let mut outbox = Outbox::default();
        assert!(outbox.push("a", 1) && outbox.push("b", 1) && outbox.push_control("ping"));
        assert_eq!(
            std::iter::from_fn(|| outbox.pop()).collect::<Vec<_>>(),
            ["ping", "a", "b"]
        );
        assert_eq!((outbox.count_taken(), outbox.count_taken()), (2, 0));
        assert!(outbox.is_empty() && outbox.bytes == 0);
    }

    #[test]
    fn a_full_queue_drops_the_oldest_of_the_same_channel_only() {
        let mut outbox = Outbox::default();
        assert!(outbox.push("kept", 7));
        for _ in 1..FRAMES_MAX {
            assert_eq!(outbox.push_droppable("old", 7), 0);
        }
        assert!(!outbox.push("late", 7));
        assert_eq!(outbox.push_droppable("new", 7), 1);
        assert_eq!(outbox.push_droppable("of another", 8), 1);
        let frames: Vec<_> = std::iter::from_fn(|| outbox.pop()).collect();
        assert_eq!(
            (frames[0], frames[FRAMES_MAX - 1], frames.len()),
            ("kept", "new", FRAMES_MAX)
        );
    }

    #[test]
    fn what_waits_of_a_replaced_subscription_is_removed_unless_nothing_else_has_it() {
        let mut outbox = Outbox::default();
        assert!(outbox.push("replaced", 1) && outbox.push("other", 2));
        assert_eq!(outbox.push_droppable("without offsets", 1), 0);
        outbox.forget(1, 3);
        assert_eq!(
            std::iter::from_fn(|| outbox.pop()).collect::<Vec<_>>(),
            ["other", "without offsets"]
        );
        assert!(outbox.is_empty() && outbox.bytes == 0);
    }

    #[test]
    fn nothing_waits_of_an_ended_subscription_nor_of_those_that_it_replaced() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.push_droppable("of the replaced one", 1), 0);
        outbox.forget(1, 2);
        assert!(outbox.push("ended", 2) && outbox.push("other", 3));
        assert_eq!(outbox.push_droppable("without offsets", 2), 0);
        outbox.end(2);
        assert_eq!(
            std::iter::from_fn(|| outbox.pop()).collect::<Vec<_>>(),
            ["other"]
        );
        assert!(outbox.is_empty() && outbox.bytes == 0);
    }

    proptest! {
        #[test]
        fn an_outbox_is_bounded_whatever_comes(
            steps in proptest::collection::vec((0u8..6, 0usize..70_000), 0..600)
        ) {
            let mut outbox = Outbox::default();
            for (step, bytes) in steps {
                let frame = vec![0u8; bytes];
                match step {
                    0 => { outbox.push(frame, 1 + bytes as u32 % 2); }
                    1 => { outbox.push_droppable(frame, 1); }
                    2 => { outbox.push_control(frame); }
                    3 => { outbox.forget(1, 2); }
                    4 if bytes < 5_000 => { outbox.end(2); }
                    _ => { outbox.pop(); }
                }
                let bytes: usize = outbox.data.iter().map(|one| one.frame.len()).sum();
                prop_assert_eq!(bytes, outbox.bytes);
                prop_assert!(outbox.bytes <= BYTES_MAX && outbox.data.len() <= FRAMES_MAX);
                prop_assert!(outbox.control.len() <= CONTROL_MAX);
            }
        }
    }
}
