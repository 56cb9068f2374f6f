//! Messages that sleep in quiet hours while the log is replayed, and wake as one digest or alone.

use std::sync::Arc;

use super::candidate::Origin;
use super::digest::{Arrival, COALESCED, OpenDigest};
use super::gate::UnsentReason;
use super::gates::MessagePlan;
use super::logged::{GateVerdict, LoggedMessage};
use super::quiet::COALESCED_MIN;
use super::replay_state::{DigestId, GateReplay, Sleeper, Sleepers};

impl GateReplay {
    /// Wakes a message that slept, and all that become one digest with it: three or more of its
    /// category.
    pub(super) fn wakes(&mut self, message: &Arc<LoggedMessage>) {
        let sleepers: Sleepers = (message.key, message.args.category.clone());
        let Some(asleep) = self.asleep.get_mut(&sleepers) else {
            return;
        };
        let Some(at) = asleep.iter().position(|(one, _)| one.job == message.job) else {
            return;
        };
        let is_together = self.rules.digest(COALESCED).is_some() && asleep.len() >= COALESCED_MIN;
        let mut woken = match is_together {
            true => std::mem::take(asleep),
            false => vec![asleep.remove(at)],
        };
        if asleep.is_empty() {
            self.asleep.remove(&sleepers);
        }
        if is_together {
            // Caps do not judge them, but their digest.
            let goes =
                |one: &Sleeper| self.planned_by(&one.0, one.1, false, &[]) == MessagePlan::Send;
            let (together, alone): (Vec<_>, Vec<_>) = woken.into_iter().partition(goes);
            woken = alone;
            match together.len() >= COALESCED_MIN {
                true => self.coalesces(together, sleepers.1),
                false => woken.extend(together),
            }
        }
        for (one, origin) in woken {
            self.replans(&one, origin);
        }
    }

    /// Puts messages that wake together into a digest, which closes at once.
    fn coalesces(&mut self, together: Vec<Sleeper>, category: String) {
        let rules = self.rules.clone();
        let (Some(kind), Some((first, _))) = (rules.digest(COALESCED), together.first()) else {
            return;
        };
        let id = DigestId {
            kind: COALESCED.into(),
            recipient: first.key,
            of: Some(category),
        };
        for (message, origin) in together {
            if origin == Origin::Sender {
                self.tally.recount(&message, GateVerdict::Collected);
                self.claim(&message, true);
            }
            let before = self.digests.get(&id).map(|state| state.open);
            let open = OpenDigest {
                opened_at: before.map_or(self.now, |open| open.opened_at),
                closes_at: self.now,
                items: before.map_or(0, |open| open.items) + 1,
            };
            self.opens(id.clone(), open, &message, Some(kind.min_items));
        }
    }

    /// Plans a message again that slept and wakes alone.
    fn replans(&mut self, message: &Arc<LoggedMessage>, origin: Origin) {
        let (plan, lists) = self.planned(message, origin, false);
        let verdict = match GateVerdict::of(&plan) {
            // It was accepted before.
            GateVerdict::Refused => GateVerdict::Ended(UnsentReason::Capped),
            verdict => verdict,
        };
        let is_of_sender = origin == Origin::Sender;
        match plan {
            MessagePlan::Send => {
                self.takes(&lists);
                if is_of_sender {
                    self.claim(message, true);
                }
            }
            MessagePlan::Held { .. } => self.holds(message, origin, &plan, &lists),
            MessagePlan::Collected { digest, arrival } => {
                if is_of_sender && matches!(arrival, Arrival::Joins(_)) {
                    self.tally.recount(message, verdict);
                }
                self.collects(message, &digest, arrival, &lists);
            }
            MessagePlan::Refused { .. } | MessagePlan::Ended { .. } => {
                if is_of_sender {
                    self.tally.recount(message, verdict);
                    self.give_claim_back(message);
                }
            }
        }
    }
}
