//! A round of a collector: looks for publications, one after the other.

use std::time::{Duration, Instant};

use super::postgres::CollectOutcome;

/// The pause while another collector is at work.
const BUSY: Duration = Duration::from_millis(10);

/// The shortest pause while messages wait for limits.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The longest pause while messages wait for limits.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The longest round. A loop that goes on for long is broken off, and with it the transaction in
/// which messages are moved.
pub const ROUND_MAX: Duration = Duration::from_secs(10);

/// A round that goes on.
#[derive(Clone, Copy, Debug)]
pub struct CollectRound {
    began: Instant,
    /// True while every poll found another collector at work.
    is_held: bool,
}

/// The step after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoundStep {
    /// Another poll, at once.
    Look,
    /// Another poll after this time, or as soon as something is published.
    Wait(Duration),
    /// Nothing is left that may go.
    Done,
    /// The round lasted long enough; the next one begins at once. `is_held` is true if another
    /// collector was at work all the time.
    Anew { is_held: bool },
}

impl CollectRound {
    /// Begins a round.
    pub fn begin(now: Instant) -> Self {
        Self {
            began: now,
            is_held: true,
        }
    }

    /// Takes the outcome of a poll, and returns the next step.
    pub fn note(&mut self, outcome: &CollectOutcome, now: Instant) -> RoundStep {
        let step = match outcome {
            CollectOutcome::Busy => RoundStep::Wait(BUSY),
            CollectOutcome::Collected { moved, grants } => {
                self.is_held = false;
                let wait = grants.iter().filter_map(|grant| grant.wait).min();
                match (*moved, wait) {
                    (1.., _) => RoundStep::Look,
                    (0, Some(wait)) => RoundStep::Wait(wait.clamp(WAIT_MIN, WAIT_MAX)),
                    (0, None) => return RoundStep::Done,
                }
            }
        };
        match now.duration_since(self.began) > ROUND_MAX {
            true => RoundStep::Anew {
                is_held: self.is_held,
            },
            false => step,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::postgres::TenantGrant;

    fn collected(moved: u64, wait_ms: Option<u64>) -> CollectOutcome {
        let grant = TenantGrant {
            tenant: "acme".to_owned(),
            messages: moved as u32,
            wait: wait_ms.map(Duration::from_millis),
            reported: None,
        };
        CollectOutcome::Collected {
            moved,
            grants: vec![grant],
        }
    }

    #[test]
    fn a_round_looks_until_nothing_is_left_that_may_go() {
        let now = Instant::now();
        let mut round = CollectRound::begin(now);
        for (outcome, step) in [
            (CollectOutcome::Busy, RoundStep::Wait(BUSY)),
            (collected(3, None), RoundStep::Look),
            (collected(3, Some(70)), RoundStep::Look),
            (
                collected(0, Some(70)),
                RoundStep::Wait(Duration::from_millis(70)),
            ),
            (collected(0, Some(9000)), RoundStep::Wait(WAIT_MAX)),
            (collected(0, None), RoundStep::Done),
        ] {
            assert_eq!(round.note(&outcome, now), step);
        }
    }

    #[test]
    fn a_round_ends_in_time_although_messages_keep_coming() {
        let began = Instant::now();
        let mut round = CollectRound::begin(began);
        let later = began + ROUND_MAX * 2;
        let anew = RoundStep::Anew { is_held: false };
        assert_eq!(round.note(&collected(3, None), began), RoundStep::Look);
        for outcome in [
            collected(3, None),
            collected(0, Some(70)),
            CollectOutcome::Busy,
        ] {
            assert_eq!(round.note(&outcome, later), anew);
        }
        assert_eq!(round.note(&collected(0, None), later), RoundStep::Done);
    }

    #[test]
    fn a_lock_that_another_keeps_all_the_time_is_reported() {
        let began = Instant::now();
        let mut round = CollectRound::begin(began);
        let busy = CollectOutcome::Busy;
        assert_eq!(round.note(&busy, began), RoundStep::Wait(BUSY));
        let told = RoundStep::Anew { is_held: true };
        assert_eq!(round.note(&busy, began + ROUND_MAX * 2), told);
    }
}
