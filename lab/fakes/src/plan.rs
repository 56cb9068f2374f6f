//! The faults of a fake: rules under a seed, so that the same plan fails in the same way each time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// The party that a throttle of the plan concerns.
///
/// A provider without a form for it answers in the form for its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThrottleScope {
    Account,
    Connection,
    /// The sender, by its number or address.
    Sender,
    /// The recipient: a chat, a channel, a device, a mailbox.
    Recipient,
}

/// A fault of one request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The provider's own "slow down".
    Throttle {
        /// The party that it concerns.
        whom: ThrottleScope,
        /// The delay that it announces, in the provider's own place; `None` for no delay.
        delay: Option<Duration>,
    },
    /// The provider's own form of an error with this status; for SMTP, the reply's code.
    Status(u16),
    /// The provider's own form of a 503, with `Retry-After`; for SMTP a 450 with the delay in its
    /// text.
    Unavailable(Duration),
    /// The provider's own form of an error, with this status and this code of the provider.
    Code(u16, String),
    /// No answer to a request that was read.
    Hang,
    /// No answer to a request that was read and counts as accepted: the connection is closed, or
    /// the stream reset.
    ResetAfterWrite,
    /// A connection that is closed without an answer; the request does not count as accepted.
    CloseBeforeRead,
    /// A correct answer after this time.
    Slow(Duration),
    /// A page of HTML with status 502, as from a broken proxy.
    Garbage,
    /// Status 200 and a body that is no valid answer.
    Nonsense,
    /// The answer for a suspended account.
    Suspend,
    /// The answer to invalid credentials.
    BadCredentials,
    /// The answer for a recipient that is gone or accepts no messages.
    PermanentRecipient,
}

/// The requests of an account that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RuleMatch {
    /// All requests of the account.
    Always,
    /// The requests from one number to another, both included; an account's first request is number
    /// 1.
    Nth(u64, u64),
    /// This share of the requests, from 0 to 1, chosen by the seed.
    Share(f64),
}

/// A rule of a plan; the first one that fits a request decides.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// The account that it is for; `None` for all.
    pub account: Option<String>,
    /// The requests of the account that it is for.
    pub when: RuleMatch,
    /// The fault of these requests.
    pub fault: Fault,
}

/// All rules of a fake, with their seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The seed of all random choices.
    pub seed: u64,
    /// The rules in the order of their evaluation.
    pub rules: Vec<Rule>,
}

impl Plan {
    /// Returns the fault of request `nth` of an account; `None` if no rule fits.
    pub fn fault(&self, account: &str, nth: u64) -> Option<&Fault> {
        let fits = |(index, rule): &(usize, &Rule)| {
            rule.account.as_ref().is_none_or(|named| named == account)
                && match rule.when {
                    RuleMatch::Always => true,
                    RuleMatch::Nth(from, until) => (from..=until).contains(&nth),
                    RuleMatch::Share(share) => dice(self.seed, &(account, nth, index)) < share,
                }
        };
        self.rules
            .iter()
            .enumerate()
            .find(fits)
            .map(|(_, rule)| &rule.fault)
    }
}

/// Returns a number from 0 up to, but not including, 1: the same for the same seed and thing.
pub(super) fn dice(seed: u64, thing: &impl Hash) -> f64 {
    let mut hasher = DefaultHasher::new();
    (seed, thing).hash(&mut hasher);
    (scrambled(hasher.finish()) >> 11) as f64 / (1u64 << 53) as f64
}

/// Applies the step of splitmix64, which gives unrelated results for neighbouring numbers.
pub(super) fn scrambled(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(account: Option<&str>, when: RuleMatch, fault: Fault) -> Rule {
        Rule {
            account: account.map(str::to_owned),
            when,
            fault,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rules = vec![
            rule(Some("a"), RuleMatch::Nth(2, 3), Fault::Hang),
            rule(None, RuleMatch::Nth(3, 4), Fault::Garbage),
            rule(Some("b"), RuleMatch::Always, Fault::Suspend),
        ];
        let plan = Plan { seed: 1, rules };
        let of = |account: &str| {
            (1..=5)
                .map(|nth| plan.fault(account, nth).cloned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            of("a"),
            [
                None,
                Some(Fault::Hang),
                Some(Fault::Hang),
                Some(Fault::Garbage),
                None
            ]
        );
        assert_eq!(
            of("b")[..3],
            [
                Some(Fault::Suspend),
                Some(Fault::Suspend),
                Some(Fault::Garbage)
            ]
        );
        assert_eq!(of("c")[3], Some(Fault::Garbage));
    }

    #[test]
    fn a_share_is_kept_and_the_same_seed_chooses_the_same() {
        let plan = |seed| Plan {
            seed,
            rules: vec![rule(None, RuleMatch::Share(0.1), Fault::Hang)],
        };
        let chosen = |seed| {
            (0..10_000)
                .filter(|nth| plan(seed).fault("a", *nth).is_some())
                .collect::<Vec<u64>>()
        };
        assert!(
            (900..=1_100).contains(&chosen(7).len()),
            "{}",
            chosen(7).len()
        );
        assert_eq!(chosen(7), chosen(7));
        assert_ne!(chosen(7), chosen(8));
    }
}
