//! The breaker of one account: closed, open, half-open with one probe.
//!
//! ```text
//!   closed ──failures of a window reach the threshold, or the account itself fails──▶ open
//!   open ──cooldown over, one message goes──▶ half-open ──it succeeds──▶ closed
//!                                                 └──────it fails──────▶ open, for the full cooldown again
//! ```
//!
//! A 429 is no failure: the account works, and says so. Neither is anything that concerns the message alone.

/// Where a breaker stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Messages flow.
    #[default]
    Closed,
    /// None goes.
    Open,
    /// One has gone, to find out.
    HalfOpen,
}

impl State {
    /// The word for records and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// When a breaker opens and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Law {
    /// Failures within a window that open it, where they are at least half of what ended.
    pub failures: u32,
    /// The window, in milliseconds.
    pub window_ms: i64,
    /// How long it stays open, in milliseconds.
    pub cooldown_ms: i64,
}

/// A breaker. All times are unix milliseconds by the store's clock.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Breaker {
    /// Where it stands.
    pub state: State,
    /// Failures in this window,
    pub failures: u32,
    /// and successes beside them, as far as workers told of them.
    pub successes: u64,
    /// Since when the window lasts.
    pub window_from_ms: i64,
    /// When it last changed.
    pub changed_at_ms: i64,
    /// Open: when one message may go.
    pub until_ms: i64,
    /// What opened it.
    pub why: String,
}

/// A change, for those who are to hear of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The account.
    pub account: String,
    /// Where the breaker stood.
    pub from: State,
    /// Where it stands.
    pub to: State,
    /// Why.
    pub why: String,
    /// When, unix milliseconds.
    pub at_ms: i64,
    /// Open: when one message may go.
    pub until_ms: i64,
}

impl Breaker {
    /// Of `successes` that somebody counted over the last `over_ms`, those that belong to the window in which `now_ms` is: however long
    /// an account has been well, that says nothing once it fails.
    pub fn of_window(&self, now_ms: i64, law: &Law, successes: u64, over_ms: i64) -> u64 {
        let since = now_ms - self.window_from_ms;
        match since {
            since if since >= law.window_ms || since <= 0 => 0,
            since if since >= over_ms => successes,
            since => (successes as f64 * since as f64 / over_ms as f64) as u64,
        }
    }

    /// A message failed at `now_ms`, and `successes` of whoever tells so did not in this window since it last told of a failure.
    #[must_use]
    pub fn failed(&self, now_ms: i64, law: &Law, successes: u64, why: &str) -> Self {
        match self.state {
            State::Closed => {
                let is_new = now_ms - self.window_from_ms >= law.window_ms;
                let (from, failures, before) =
                    if is_new { (now_ms, 0, 0) } else { (self.window_from_ms, self.failures, self.successes) };
                let counted =
                    Self { failures: failures + 1, successes: before + successes, window_from_ms: from, ..self.clone() };
                let is_most = u64::from(counted.failures) >= counted.successes;
                if counted.failures >= law.failures && is_most { counted.open(now_ms, law, why) } else { counted }
            }
            State::HalfOpen => self.open(now_ms, law, why),
            // Whoever was under way when it opened says nothing new.
            State::Open => self.clone(),
        }
    }

    /// The account itself was refused at `now_ms`: it opens at once.
    #[must_use]
    pub fn account_failed(&self, now_ms: i64, law: &Law, why: &str) -> Self {
        match self.state {
            State::Open if now_ms < self.until_ms => self.clone(),
            _ => self.open(now_ms, law, why),
        }
    }

    /// One message is about to go at `now_ms` although the breaker is not closed.
    #[must_use]
    pub fn probed(&self, now_ms: i64) -> Self {
        match self.state {
            State::Open if now_ms >= self.until_ms => Self { state: State::HalfOpen, changed_at_ms: now_ms, ..self.clone() },
            _ => self.clone(),
        }
    }

    /// A message went well at `now_ms`.
    #[must_use]
    pub fn succeeded(&self, now_ms: i64) -> Self {
        match self.state {
            State::Closed => self.clone(),
            // It was under way when the breaker opened.
            State::Open if now_ms < self.until_ms => self.clone(),
            State::Open | State::HalfOpen => Self { changed_at_ms: now_ms, window_from_ms: now_ms, ..Self::default() },
        }
    }

    fn open(&self, now_ms: i64, law: &Law, why: &str) -> Self {
        Self {
            state: State::Open,
            changed_at_ms: now_ms,
            until_ms: now_ms + law.cooldown_ms,
            why: why.to_owned(),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LAW: Law = Law { failures: 5, window_ms: 10_000, cooldown_ms: 30_000 };

    fn after(failures: u32) -> Breaker {
        (0..failures).fold(Breaker::default(), |breaker, nth| breaker.failed(1000 + i64::from(nth), &LAW, 0, "answered 503"))
    }

    #[test]
    fn the_nth_failure_opens_it_and_not_the_one_before() {
        assert_eq!(after(4).state, State::Closed);
        let open = after(5);
        assert_eq!((open.state, open.until_ms, open.why.as_str()), (State::Open, 31_004, "answered 503"));
    }

    #[test]
    fn failures_of_an_old_window_or_among_many_successes_do_not() {
        let late = after(4).failed(12_000, &LAW, 0, "");
        assert_eq!((late.state, late.failures), (State::Closed, 1));
        let few = after(4).failed(1010, &LAW, 100, "");
        assert_eq!((few.state, few.failures, few.successes), (State::Closed, 5, 100));
    }

    #[test]
    fn successes_of_before_the_window_do_not_count() {
        let failing = Breaker { failures: 1, window_from_ms: 1_000, ..Breaker::default() };
        let of = |now_ms, over_ms| failing.of_window(now_ms, &LAW, 1_000, over_ms);
        assert_eq!((of(1_000, 3_600_000), of(1_010, 3_600_000), of(6_000, 10_000), of(6_000, 100)), (0, 0, 500, 1_000));
        assert_eq!((of(11_000, 5_000), Breaker::default().of_window(99_000, &LAW, 1_000, 50)), (0, 0));
    }

    #[test]
    fn an_account_that_is_refused_opens_it_at_once_and_those_under_way_change_nothing() {
        let open = Breaker::default().account_failed(1000, &LAW, "answered 401");
        assert_eq!((open.state, open.until_ms), (State::Open, 31_000));
        assert_eq!(open.account_failed(2000, &LAW, "answered 401"), open);
        assert_eq!(open.failed(2000, &LAW, 0, ""), open);
        assert_eq!(open.succeeded(2000), open);
    }

    #[test]
    fn the_probe_closes_it_or_opens_it_for_the_full_cooldown_again() {
        let open = after(5);
        assert_eq!(open.probed(31_003), open);
        let half = open.probed(31_004);
        assert_eq!(half.state, State::HalfOpen);
        assert_eq!(half.probed(31_005), half);
        let closed = half.succeeded(32_000);
        assert_eq!((closed.state, closed.failures), (State::Closed, 0));
        let again = half.failed(32_000, &LAW, 0, "timed out");
        assert_eq!((again.state, again.until_ms), (State::Open, 62_000));
        assert_eq!(half.account_failed(32_000, &LAW, "suspended").until_ms, 62_000);
    }

    proptest! {
        /// Whatever happens in whatever order, it never goes from open to closed before its cooldown is over.
        #[test]
        fn an_open_breaker_stays_open_for_its_cooldown(steps in prop::collection::vec((0_u8..4, 0_i64..20_000), 1..60)) {
            let (mut breaker, mut now) = (Breaker::default(), 0);
            let mut opened_at = None;
            for (what, wait) in steps {
                now += wait;
                let next = match what {
                    0 => breaker.failed(now, &LAW, 0, ""),
                    1 => breaker.account_failed(now, &LAW, ""),
                    2 => breaker.probed(now),
                    _ => breaker.succeeded(now),
                };
                if let (State::Open, Some(at)) = (breaker.state, opened_at) {
                    prop_assert!(next.state == State::Open || now - at >= LAW.cooldown_ms);
                }
                if next.state == State::Open && next.changed_at_ms == now && breaker.changed_at_ms != now {
                    opened_at = Some(now);
                }
                breaker = next;
            }
        }
    }
}
