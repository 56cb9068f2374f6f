//! The tenants that send more than their limit, with their messages that are not accepted yet.
//! Messages that come within one spacing are accepted in one transaction.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::postgres::{Acceptance, CountedPlace, ExcessMessage};
use super::usage::WaitingMessage;
use crate::jobs::Error;

/// The most messages of one transaction, which holds locks until its end.
const GROUP_MAX: usize = 64;

/// The longest time for which messages are taken to wait without asking: a limit that is raised
/// frees them within a second.
const KNOWN_MAX: Duration = Duration::from_secs(1);

/// The time for which places follow from a counted one, and the time more for each place before it:
/// messages that were cancelled meanwhile still count, and a count reads all of them.
const COUNTED_FOR: Duration = Duration::from_secs(1);
const COUNTED_FOR_PER_PLACE: Duration = Duration::from_millis(1);

/// The result of a message for which no slot was free.
#[derive(Debug)]
pub struct ExcessAnswer {
    /// The result of the request.
    pub acceptance: Acceptance,
    /// The wait of a message that was accepted; `None` if it does not wait any more.
    pub waiting: Option<WaitingMessage>,
}

/// A message that is not accepted yet.
pub(super) struct PendingMessage {
    pub(super) message: ExcessMessage,
    /// Takes the result to the sender.
    pub(super) answer: Box<dyn FnOnce(Result<ExcessAnswer, Error>) + Send>,
}

/// A tenant that sends more than its limit.
#[derive(Default)]
struct TenantExcess {
    pending: Vec<PendingMessage>,
    /// The modules of which messages wait for their admission, and until when that is sure.
    waiting: HashMap<String, Instant>,
    /// The last counted place of each module, and when it was counted.
    counted: HashMap<String, (CountedPlace, Instant)>,
}

/// The tenants that sent more than their limit within the last spacing.
#[derive(Default)]
pub(super) struct Excess {
    tenants: HashMap<String, TenantExcess>,
}

impl Excess {
    /// Returns true if a tenant sent more than its limit within the last spacing.
    pub(super) fn has(&self, tenant: &str) -> bool {
        self.tenants.contains_key(tenant)
    }

    /// Adds a message; returns true if nobody accepts those of this tenant yet.
    pub(super) fn push(&mut self, tenant: &str, pending: PendingMessage) -> bool {
        let is_first = !self.has(tenant);
        let excess = self.tenants.entry(tenant.to_owned()).or_default();
        excess.pending.push(pending);
        is_first
    }

    /// Takes out the messages to accept next; empty if there are none, and then the tenant is
    /// forgotten.
    pub(super) fn take(&mut self, tenant: &str) -> Vec<PendingMessage> {
        let Some(excess) = self.tenants.get_mut(tenant) else {
            return Vec::new();
        };
        let many = excess.pending.len().min(GROUP_MAX);
        if many == 0 {
            self.forget(tenant);
            return Vec::new();
        }
        excess.pending.drain(..many).collect()
    }

    /// Forgets a tenant with the messages that are not accepted.
    pub(super) fn forget(&mut self, tenant: &str) {
        self.tenants.remove(tenant);
    }

    /// Notes at `now` that messages of a module wait at least this long.
    pub(super) fn note_waiting(
        &mut self,
        tenant: &str,
        module: &str,
        least: Duration,
        now: Instant,
    ) {
        if let Some(excess) = self.tenants.get_mut(tenant) {
            // A tenant that is over its limit for days may have had any number of modules.
            excess.waiting.retain(|_, until| now < *until);
            let until = now + least.min(KNOWN_MAX);
            excess.waiting.insert(module.to_owned(), until);
        }
    }

    /// Notes a place of a module that was counted at `now`.
    pub(super) fn note_counted(
        &mut self,
        tenant: &str,
        module: &str,
        counted: CountedPlace,
        now: Instant,
    ) {
        if let Some(excess) = self.tenants.get_mut(tenant) {
            let counts = &mut excess.counted;
            counts.retain(|_, (counted, at)| is_good(counted, now.duration_since(*at)));
            counts.insert(module.to_owned(), (counted, now));
        }
    }

    /// Returns the last counted place of a module, if it is not too old at `now`.
    pub(super) fn counted(&self, tenant: &str, module: &str, now: Instant) -> Option<CountedPlace> {
        let (counted, at) = self.tenants.get(tenant)?.counted.get(module)?;
        is_good(counted, now.duration_since(*at)).then(|| counted.clone())
    }

    /// Returns true if messages of a module are known to wait at `now`.
    pub(super) fn is_waiting(&self, tenant: &str, module: &str, now: Instant) -> bool {
        let of = self.tenants.get(tenant);
        let until = of.and_then(|of| of.waiting.get(module));
        until.is_some_and(|until| now < *until)
    }
}

/// Returns true if places still follow from one that was counted this long ago.
fn is_good(counted: &CountedPlace, age: Duration) -> bool {
    let before = u32::try_from(counted.place.place).unwrap_or(u32::MAX);
    age < COUNTED_FOR + COUNTED_FOR_PER_PLACE * before
}

#[cfg(test)]
mod tests {
    use super::super::postgres::{Digests, Place};
    use super::*;
    use crate::jobs::NewJob;

    fn pending(module: &str) -> PendingMessage {
        let digests = Digests {
            request: None,
            body: Vec::new(),
            has_key: false,
        };
        let message = ExcessMessage {
            module: module.to_owned(),
            digests,
            job: NewJob::new("notification", serde_json::json!({})),
        };
        PendingMessage {
            message,
            answer: Box::new(|_| {}),
        }
    }

    #[test]
    fn the_first_message_of_a_tenant_begins_and_the_last_ends() {
        let mut excess = Excess::default();
        assert!(excess.push("acme", pending("web")));
        assert!(!excess.push("acme", pending("shop")));
        assert!(
            excess.push("other", pending("web")),
            "each tenant by itself"
        );

        assert_eq!(excess.take("acme").len(), 2);
        assert!(excess.has("acme"), "until nothing came within a spacing");
        assert!(!excess.push("acme", pending("web")));
        assert_eq!(excess.take("acme").len(), 1);
        assert_eq!(excess.take("acme").len(), 0);
        assert!(!excess.has("acme"));
        assert!(excess.push("acme", pending("web")));
    }

    #[test]
    fn a_group_has_a_most_and_the_rest_stays_in_order() {
        let mut excess = Excess::default();
        for n in 0..GROUP_MAX + 3 {
            excess.push("acme", pending(&n.to_string()));
        }
        assert_eq!(excess.take("acme").len(), GROUP_MAX);
        let rest = excess.take("acme");
        let modules: Vec<&str> = rest.iter().map(|of| of.message.module.as_str()).collect();
        assert_eq!(modules, ["64", "65", "66"]);
    }

    #[test]
    fn messages_are_known_to_wait_for_a_second_at_most() {
        let (mut excess, now) = (Excess::default(), Instant::now());
        excess.push("acme", pending("web"));
        let after = |ms: u64| now + Duration::from_millis(ms);
        excess.note_waiting("acme", "web", Duration::from_secs(18), now);
        excess.note_waiting("acme", "shop", Duration::ZERO, now);
        excess.note_waiting("other", "web", Duration::from_secs(18), now);

        assert!(excess.is_waiting("acme", "web", after(999)));
        assert!(!excess.is_waiting("acme", "web", after(1000)));
        assert!(!excess.is_waiting("acme", "shop", now));
        assert!(!excess.is_waiting("other", "web", now), "not in excess");

        excess.note_waiting("acme", "blog", Duration::from_secs(18), after(1000));
        assert_eq!(
            excess.tenants["acme"].waiting.len(),
            1,
            "only what is known"
        );
    }

    #[test]
    fn a_counted_place_is_good_for_a_second_and_longer_the_more_are_before_it() {
        let (mut excess, now) = (Excess::default(), Instant::now());
        let place = Place {
            place: 500,
            tenant_place: 500,
            tenant: "acme".to_owned(),
            module: "web".to_owned(),
            priority: 2,
            lane: 7,
            front: Some(1),
            beside: Vec::new(),
        };
        let counted = CountedPlace {
            job_id: 5,
            front: 1,
            place,
        };
        excess.note_counted("acme", "web", counted.clone(), now);
        assert_eq!(excess.counted("acme", "web", now), None, "not in excess");

        excess.push("acme", pending("web"));
        excess.note_counted("acme", "web", counted.clone(), now);
        let after = |ms: u64| now + Duration::from_millis(ms);
        assert_eq!(excess.counted("acme", "shop", now), None);
        assert_eq!(
            excess.counted("acme", "web", after(1499)),
            Some(counted.clone())
        );
        assert_eq!(excess.counted("acme", "web", after(1500)), None);

        excess.note_counted("acme", "shop", counted, after(1500));
        assert_eq!(
            excess.tenants["acme"].counted.len(),
            1,
            "only what is of use"
        );
    }
}
