//! The ledger of a fake: its requests and their outcomes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::quota::{Counter, QuotaDecision};
use super::wire::{FakeRequest, QuotaStatus};
use super::{Fault, ThrottleScope, WindowQuota, plan::Plan};

/// The most accepted messages that are kept per account; the counts go on.
const MAX_MESSAGES_KEPT: usize = 200_000;

/// The most counters of recipients and senders that are kept.
const MAX_LIMITS_REMEMBERED: usize = 100_000;

/// An accepted message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// The time of arrival, in unix milliseconds.
    pub at_ms: u64,
    /// The provider's id of the message.
    pub id: String,
    /// The recipient of the message.
    pub to: String,
}

/// The counts of one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SecondTotals {
    /// The second, in unix time.
    pub at_s: u64,
    /// Requests that were accepted.
    pub accepted: u32,
    /// Requests beyond a quota or a limit.
    pub refused: u32,
}

/// The counts of an account since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// All requests, whatever the answer.
    pub requests: u64,
    /// Requests that were accepted, answered or not.
    pub accepted: u64,
    /// Requests beyond a quota or a limit.
    pub refused: u64,
    /// Requests with any other answer, or without one.
    pub failed: u64,
    /// Accepted requests with the same text and recipient as an earlier one.
    pub duplicates: u64,
}

#[derive(Default)]
struct AccountLedger {
    quota: Option<WindowQuota>,
    counter: Counter,
    is_suspended: bool,
    fault: Option<Fault>,
    totals: Totals,
    seconds: Vec<SecondTotals>,
    received: Vec<Received>,
    seen: HashSet<u64>,
}

impl AccountLedger {
    fn second(&mut self, now_ms: u64) -> &mut SecondTotals {
        let at_s = now_ms / 1_000;
        if self.seconds.last().is_none_or(|last| last.at_s < at_s) {
            self.seconds.push(SecondTotals {
                at_s,
                ..SecondTotals::default()
            });
        }
        let last = self.seconds.len() - 1;
        &mut self.seconds[last]
    }
}

pub(super) enum RequestDecision {
    /// Accepted as the message of this number; the fault may delay or suppress the answer.
    Accepted {
        number: u64,
        standing: QuotaStatus,
        fault: Option<Fault>,
    },
    /// Failed by this fault.
    Faulty(Fault),
    /// Refused because the quota of this party is used up for this time.
    Over(ThrottleScope, Duration),
}

/// The ledger of a fake; its times are unix milliseconds that never go back.
pub(super) struct Ledger {
    plan: Plan,
    per_recipient: Option<WindowQuota>,
    per_sender: Option<WindowQuota>,
    numbers: u64,
    books: HashMap<String, AccountLedger>,
    narrow: HashMap<(ThrottleScope, String, String), Counter>,
    gone: HashSet<String>,
}

impl Ledger {
    pub(super) fn new(
        plan: Plan,
        per_recipient: Option<WindowQuota>,
        per_sender: Option<WindowQuota>,
    ) -> Self {
        let numbers = super::plan::scrambled(plan.seed) % 1_000_000;
        let (books, narrow, gone) = (HashMap::new(), HashMap::new(), HashSet::new());
        Self {
            plan,
            per_recipient,
            per_sender,
            numbers,
            books,
            narrow,
            gone,
        }
    }

    fn book(&mut self, account: &str) -> &mut AccountLedger {
        if !self.books.contains_key(account) {
            self.books
                .insert(account.to_owned(), AccountLedger::default());
        }
        self.books.entry(account.to_owned()).or_default()
    }

    /// Counts a request and decides on it; `mark` identifies its content.
    pub(super) fn judge(&mut self, asked: &FakeRequest, mark: u64, now_ms: u64) -> RequestDecision {
        let book = self.book(&asked.account);
        book.totals.requests += 1;
        let (nth, suspended, own) = (book.totals.requests, book.is_suspended, book.fault.clone());
        let fault = suspended
            .then_some(Fault::Suspend)
            .or(own)
            .or_else(|| self.plan.fault(&asked.account, nth).cloned());
        let fault = fault.or_else(|| {
            self.gone
                .contains(&asked.to)
                .then_some(Fault::PermanentRecipient)
        });
        match fault {
            None | Some(Fault::Slow(_) | Fault::ResetAfterWrite) => {}
            Some(fault) => {
                let book = self.book(&asked.account);
                book.totals.failed += 1;
                return RequestDecision::Faulty(fault);
            }
        }
        let narrow = self.take_narrow(asked, now_ms);
        let book = self.book(&asked.account);
        let taken = match narrow {
            Some(over) => Err(over),
            None => match book.quota {
                None => Ok(0),
                Some(quota) => match book.counter.take(&quota, now_ms) {
                    QuotaDecision::Passes { left } => Ok(left),
                    QuotaDecision::Over { wait } => Err((ThrottleScope::Account, wait)),
                },
            },
        };
        match taken {
            Err((whom, wait)) => {
                book.totals.refused += 1;
                book.second(now_ms).refused += 1;
                RequestDecision::Over(whom, wait)
            }
            Ok(left) => {
                book.totals.accepted += 1;
                book.second(now_ms).accepted += 1;
                book.totals.duplicates += u64::from(!book.seen.insert(mark));
                let (limit, accepted) = (book.quota.map(|quota| quota.limit), book.totals.accepted);
                self.numbers += 1;
                RequestDecision::Accepted {
                    number: self.numbers,
                    standing: QuotaStatus {
                        limit,
                        left,
                        accepted,
                    },
                    fault,
                }
            }
        }
    }

    /// Counts the request against the limits of its sender and its recipient; returns the first one
    /// that it exceeds.
    fn take_narrow(
        &mut self,
        asked: &FakeRequest,
        now_ms: u64,
    ) -> Option<(ThrottleScope, Duration)> {
        if self.narrow.len() > MAX_LIMITS_REMEMBERED {
            self.narrow.clear();
        }
        let limits = [
            (ThrottleScope::Sender, self.per_sender, &asked.sender),
            (ThrottleScope::Recipient, self.per_recipient, &asked.to),
        ];
        limits.into_iter().find_map(|(whom, quota, whose)| {
            let quota = quota.filter(|_| !whose.is_empty())?;
            let counter = self
                .narrow
                .entry((whom, asked.account.clone(), whose.clone()));
            match counter.or_default().take(&quota, now_ms) {
                QuotaDecision::Passes { .. } => None,
                QuotaDecision::Over { wait } => Some((whom, wait)),
            }
        })
    }

    /// Counts a request that was refused before it was read as a message.
    pub(super) fn refused(&mut self, account: &str) {
        let totals = &mut self.book(account).totals;
        totals.requests += 1;
        totals.failed += 1;
    }

    /// Stores an accepted message under its id.
    pub(super) fn remember(&mut self, asked: &FakeRequest, id: &str, now_ms: u64) {
        let received = &mut self.book(&asked.account).received;
        if received.len() < MAX_MESSAGES_KEPT {
            received.push(Received {
                at_ms: now_ms,
                id: id.to_owned(),
                to: asked.to.clone(),
            });
        }
    }

    pub(super) fn set_quota(&mut self, account: &str, quota: Option<WindowQuota>) {
        self.book(account).quota = quota;
    }

    pub(super) fn suspend(&mut self, account: &str, is_suspended: bool) {
        self.book(account).is_suspended = is_suspended;
    }

    pub(super) fn set_fault(&mut self, account: &str, fault: Option<Fault>) {
        self.book(account).fault = fault;
    }

    /// Returns the fault of all requests of an account, messages or not.
    pub(super) fn account_fault(&self, account: &str) -> Option<Fault> {
        let book = self.books.get(account)?;
        book.is_suspended
            .then_some(Fault::Suspend)
            .or_else(|| book.fault.clone())
    }

    pub(super) fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    pub(super) fn bury(&mut self, to: &str) {
        self.gone.insert(to.to_owned());
    }

    pub(super) fn quota_status(&mut self, account: &str) -> QuotaStatus {
        let book = self.book(account);
        QuotaStatus {
            limit: book.quota.map(|quota| quota.limit),
            left: 0,
            accepted: book.totals.accepted,
        }
    }

    pub(super) fn received(&self, account: &str) -> Vec<Received> {
        self.books
            .get(account)
            .map(|book| book.received.clone())
            .unwrap_or_default()
    }

    pub(super) fn seconds(&self, account: &str) -> Vec<SecondTotals> {
        self.books
            .get(account)
            .map(|book| book.seconds.clone())
            .unwrap_or_default()
    }

    pub(super) fn totals(&self, account: &str) -> Totals {
        self.books
            .get(account)
            .map(|book| book.totals)
            .unwrap_or_default()
    }

    pub(super) fn accounts(&self) -> Vec<String> {
        let mut names: Vec<String> = self.books.keys().cloned().collect();
        names.sort();
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(account: &str, to: &str) -> FakeRequest {
        FakeRequest {
            account: account.to_owned(),
            to: to.to_owned(),
            ..FakeRequest::default()
        }
    }

    #[test]
    fn each_account_has_its_own_quota_and_each_second_its_own_counts() {
        let mut ledger = Ledger::new(Plan::default(), None, None);
        ledger.set_quota("a", Some(WindowQuota::per_second(3.0)));
        for (mark, now_ms) in (0..20).map(|n| (n, 1_000 + 100 * n)) {
            ledger.judge(&asked("a", "x"), mark, now_ms);
            ledger.judge(&asked("b", "x"), mark / 2, now_ms);
        }
        let second = |at_s| SecondTotals {
            at_s,
            accepted: 3,
            refused: 7,
        };
        assert_eq!(ledger.seconds("a"), [second(1), second(2)]);
        assert_eq!(
            ledger.totals("a"),
            Totals {
                requests: 20,
                accepted: 6,
                refused: 14,
                failed: 0,
                duplicates: 0
            }
        );
        assert_eq!(
            ledger.totals("b"),
            Totals {
                requests: 20,
                accepted: 20,
                refused: 0,
                failed: 0,
                duplicates: 10
            }
        );
    }

    #[test]
    fn a_recipients_limit_is_not_the_accounts() {
        let mut ledger = Ledger::new(Plan::default(), Some(WindowQuota::per_second(1.0)), None);
        assert!(matches!(
            ledger.judge(&asked("a", "x"), 1, 0),
            RequestDecision::Accepted { .. }
        ));
        assert!(matches!(
            ledger.judge(&asked("a", "x"), 2, 0),
            RequestDecision::Over(ThrottleScope::Recipient, _)
        ));
        assert!(matches!(
            ledger.judge(&asked("a", "y"), 3, 0),
            RequestDecision::Accepted { .. }
        ));
    }

    #[test]
    fn a_suspended_account_and_a_buried_recipient_are_refused_until_they_are_not() {
        let mut ledger = Ledger::new(Plan::default(), None, None);
        ledger.suspend("a", true);
        ledger.bury("z");
        assert!(matches!(
            ledger.judge(&asked("a", "x"), 1, 0),
            RequestDecision::Faulty(Fault::Suspend)
        ));
        ledger.suspend("a", false);
        assert!(matches!(
            ledger.judge(&asked("a", "x"), 1, 0),
            RequestDecision::Accepted { .. }
        ));
        assert!(matches!(
            ledger.judge(&asked("a", "z"), 1, 0),
            RequestDecision::Faulty(Fault::PermanentRecipient)
        ));
        assert_eq!(
            ledger.totals("a"),
            Totals {
                requests: 3,
                accepted: 1,
                refused: 0,
                failed: 2,
                duplicates: 0
            }
        );
    }
}
