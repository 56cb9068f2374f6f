//! The breaker of one account: closed, open, half-open with one probe.
//!
//! ```text
//!   closed ──failures of a window reach the threshold, or the account itself fails──▶ open
//!   open ──cooldown over, one message goes──▶ half-open ──it succeeds──▶ closed
//!                                                 └──────it fails──────▶ open, full cooldown
//! ```
//!
//! A 429 is not a failure, because the account works; neither is a fault of the message alone.
//!
//! One message cannot show whether a failure was the account's or its own. Therefore each message
//! counts once per window, an account is given up only after at least two messages failed, and the
//! probe is a message that has not failed there. If an account rejects a message and then accepts
//! another one, the rejection was the message's own fault and does not count again.

/// The state of a breaker.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum BreakerState {
    /// Messages flow.
    #[default]
    Closed,
    /// No message is sent.
    Open,
    /// One message was sent as a probe.
    HalfOpen,
}

impl BreakerState {
    /// Returns the name used in records and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The minimum number of messages that must agree that an account is unavailable.
const AGREE: usize = 2;

/// The maximum length of each list of messages; the latest are kept.
const REMEMBERED: usize = 16;

/// The number of further cooldowns without another message after which one that failed here may be
/// the probe: it keeps no other message waiting.
const ALONE_COOLDOWNS: i64 = 2;

/// The thresholds and times of breakers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerSettings {
    /// The number of messages whose failure within a window opens the breaker if they are at least
    /// half of those that ended; never fewer than two.
    pub failures: u32,
    /// The window, in milliseconds.
    pub window_ms: i64,
    /// The time that a breaker stays open, in milliseconds.
    pub cooldown_ms: i64,
}

/// A breaker. All times are unix milliseconds by the store's clock.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Breaker {
    /// The state of the breaker.
    pub state: BreakerState,
    /// The number of messages that failed in this window.
    pub failures: u32,
    /// The number of successes in this window, as far as workers have reported them.
    pub successes: u64,
    /// The start of the window.
    pub window_from_ms: i64,
    /// The time of the last change of state.
    pub changed_at_ms: i64,
    /// The time from which one message may probe an open breaker.
    pub until_ms: i64,
    /// The reason for the last opening.
    pub why: String,
    /// The latest messages that failed in this window.
    pub failed: Vec<i64>,
    /// The messages with which the account itself was refused, that opened the breaker, or that
    /// failed as its probe.
    pub against: Vec<i64>,
    /// The messages that were refused by an account that then accepted another one.
    pub disproved: Vec<i64>,
}

/// A change of a breaker, for its listeners.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The name of the account.
    pub account: String,
    /// The previous state.
    pub from: BreakerState,
    /// The new state.
    pub to: BreakerState,
    /// The reason for the change.
    pub why: String,
    /// The time of the change, in unix milliseconds.
    pub at_ms: i64,
    /// The time from which one message may probe an open breaker, in unix milliseconds.
    pub until_ms: i64,
}

impl Breaker {
    /// Returns how many of the `successes` of the last `over_ms` belong to the window at `now_ms`,
    /// assuming an even spread. Earlier ones are left out, because a long healthy past says nothing
    /// about an account that fails now.
    pub fn of_window(
        &self,
        now_ms: i64,
        law: &BreakerSettings,
        successes: u64,
        over_ms: i64,
    ) -> u64 {
        let since = now_ms - self.window_from_ms;
        match since {
            since if since >= law.window_ms || since <= 0 => 0,
            since if since >= over_ms => successes,
            since => (successes as f64 * since as f64 / over_ms as f64) as u64,
        }
    }

    /// Records a failure at `now_ms`; `successes` is the number of successes in this window that
    /// the reporting worker has counted since its last report of a failure.
    #[must_use]
    pub fn failed(
        &self,
        now_ms: i64,
        law: &BreakerSettings,
        successes: u64,
        message: i64,
        why: &str,
    ) -> Self {
        match self.state {
            BreakerState::Closed => {
                let is_new = now_ms - self.window_from_ms >= law.window_ms;
                let mut counted = Self {
                    successes: self.successes + successes,
                    ..self.clone()
                };
                if is_new {
                    counted = Self {
                        window_from_ms: now_ms,
                        failures: 0,
                        successes,
                        failed: Vec::new(),
                        ..counted
                    };
                }
                if counted.failed.contains(&message) || counted.disproved.contains(&message) {
                    return counted;
                }
                counted.failures += 1;
                remember(&mut counted.failed, message);
                let is_most = u64::from(counted.failures) >= counted.successes;
                let enough = law.failures.max(AGREE as u32);
                if counted.failures >= enough && is_most {
                    counted.open(now_ms, law, message, why)
                } else {
                    counted
                }
            }
            BreakerState::HalfOpen => self.open(now_ms, law, message, why),
            // The message was already in progress when the breaker opened, so its failure is no
            // news.
            BreakerState::Open => self.clone(),
        }
    }

    /// Records a refusal of the account itself at `now_ms`. The second message that is refused
    /// opens the breaker at once.
    #[must_use]
    pub fn account_failed(
        &self,
        now_ms: i64,
        law: &BreakerSettings,
        message: i64,
        why: &str,
    ) -> Self {
        match self.state {
            BreakerState::Open if now_ms < self.until_ms => self.clone(),
            BreakerState::Closed if self.disproved.contains(&message) => self.clone(),
            BreakerState::Closed if self.against.iter().all(|other| *other == message) => {
                let mut doubted = self.clone();
                remember(&mut doubted.against, message);
                doubted
            }
            _ => self.open(now_ms, law, message, why),
        }
    }

    /// Returns true if this message may be sent at `now_ms`. A message that failed here does not
    /// probe the account unless no other message has come to do so.
    pub fn lets(&self, now_ms: i64, law: &BreakerSettings, message: i64) -> bool {
        let since_ms = match self.state {
            BreakerState::Closed => return true,
            BreakerState::Open => self.until_ms,
            BreakerState::HalfOpen => self.changed_at_ms,
        };
        let is_known = self.against.contains(&message) || self.disproved.contains(&message);
        !is_known || now_ms - since_ms >= ALONE_COOLDOWNS * law.cooldown_ms
    }

    /// Records that one message is about to be sent at `now_ms` although the breaker is not closed.
    #[must_use]
    pub fn probed(&self, now_ms: i64) -> Self {
        match self.state {
            BreakerState::Open if now_ms >= self.until_ms => Self {
                state: BreakerState::HalfOpen,
                changed_at_ms: now_ms,
                ..self.clone()
            },
            _ => self.clone(),
        }
    }

    /// Records a success at `now_ms`.
    #[must_use]
    pub fn succeeded(&self, now_ms: i64, message: i64) -> Self {
        let mut disproved = self.disproved.clone();
        self.against
            .iter()
            .filter(|other| **other != message)
            .for_each(|other| remember(&mut disproved, *other));
        match self.state {
            BreakerState::Closed => Self {
                against: Vec::new(),
                disproved,
                ..self.clone()
            },
            // The message was already in progress when the breaker opened.
            BreakerState::Open if now_ms < self.until_ms => self.clone(),
            BreakerState::Open | BreakerState::HalfOpen => Self {
                changed_at_ms: now_ms,
                window_from_ms: now_ms,
                disproved,
                ..Self::default()
            },
        }
    }

    fn open(&self, now_ms: i64, law: &BreakerSettings, message: i64, why: &str) -> Self {
        let mut against = self.against.clone();
        self.failed
            .iter()
            .chain([&message])
            .for_each(|one| remember(&mut against, *one));
        Self {
            state: BreakerState::Open,
            changed_at_ms: now_ms,
            until_ms: now_ms + law.cooldown_ms,
            why: why.to_owned(),
            failed: Vec::new(),
            against,
            ..self.clone()
        }
    }
}

fn remember(list: &mut Vec<i64>, message: i64) {
    if !list.contains(&message) {
        list.push(message);
    }
    let over = list.len().saturating_sub(REMEMBERED);
    list.drain(..over);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SETTINGS: BreakerSettings = BreakerSettings {
        failures: 5,
        window_ms: 10_000,
        cooldown_ms: 30_000,
    };

    /// Returns a breaker after this many messages failed in a row.
    fn after(failures: u32) -> Breaker {
        (0..failures).fold(Breaker::default(), |breaker, nth| {
            breaker.failed(
                1000 + i64::from(nth),
                &SETTINGS,
                0,
                i64::from(nth),
                "answered 503",
            )
        })
    }

    /// Returns a breaker after two messages found the account refused, the last at 1000 ms.
    fn refused() -> Breaker {
        Breaker::default()
            .account_failed(1000, &SETTINGS, 1, "")
            .account_failed(1000, &SETTINGS, 2, "answered 401")
    }

    #[test]
    fn the_nth_message_that_fails_opens_it_and_not_the_one_before() {
        assert_eq!(after(4).state, BreakerState::Closed);
        let open = after(5);
        assert_eq!(
            (open.state, open.until_ms, open.why.as_str()),
            (BreakerState::Open, 31_004, "answered 503")
        );
    }

    #[test]
    fn failures_of_an_old_window_or_among_many_successes_do_not() {
        let late = after(4).failed(12_000, &SETTINGS, 0, 9, "");
        assert_eq!((late.state, late.failures), (BreakerState::Closed, 1));
        let few = after(4).failed(1010, &SETTINGS, 100, 9, "");
        assert_eq!(
            (few.state, few.failures, few.successes),
            (BreakerState::Closed, 5, 100)
        );
    }

    #[test]
    fn successes_of_before_the_window_do_not_count() {
        let failing = Breaker {
            failures: 1,
            window_from_ms: 1_000,
            ..Breaker::default()
        };
        let of = |now_ms, over_ms| failing.of_window(now_ms, &SETTINGS, 1_000, over_ms);
        assert_eq!(
            (
                of(1_000, 3_600_000),
                of(1_010, 3_600_000),
                of(6_000, 10_000),
                of(6_000, 100)
            ),
            (0, 0, 500, 1_000)
        );
        assert_eq!(
            (
                of(11_000, 5_000),
                Breaker::default().of_window(99_000, &SETTINGS, 1_000, 50)
            ),
            (0, 0)
        );
    }

    #[test]
    fn an_account_that_two_messages_find_refused_is_given_up_at_once_and_those_under_way_change_nothing()
     {
        let open = refused();
        assert_eq!((open.state, open.until_ms), (BreakerState::Open, 31_000));
        assert_eq!(
            open.account_failed(2000, &SETTINGS, 3, "answered 401"),
            open
        );
        assert_eq!(open.failed(2000, &SETTINGS, 0, 3, ""), open);
        assert_eq!(open.succeeded(2000, 3), open);
    }

    #[test]
    fn the_probe_closes_it_or_opens_it_for_the_full_cooldown_again() {
        let open = after(5);
        assert_eq!(open.probed(31_003), open);
        let half = open.probed(31_004);
        assert_eq!(half.state, BreakerState::HalfOpen);
        assert_eq!(half.probed(31_005), half);
        let closed = half.succeeded(32_000, 9);
        assert_eq!((closed.state, closed.failures), (BreakerState::Closed, 0));
        let again = half.failed(32_000, &SETTINGS, 0, 9, "timed out");
        assert_eq!((again.state, again.until_ms), (BreakerState::Open, 62_000));
        assert_eq!(
            half.account_failed(32_000, &SETTINGS, 9, "suspended")
                .until_ms,
            62_000
        );
    }

    #[test]
    fn a_message_that_was_against_an_account_does_not_find_out_whether_it_is_back_while_another_may()
     {
        let open = refused();
        assert!(
            open.lets(31_000, &SETTINGS, 3)
                && !open.lets(31_000, &SETTINGS, 1)
                && !open.lets(90_999, &SETTINGS, 2)
        );
        assert!(open.lets(91_000, &SETTINGS, 2), "it is alone");
        let again = open.probed(31_000).account_failed(32_000, &SETTINGS, 3, "");
        assert!(
            !again.lets(62_000, &SETTINGS, 3)
                && !again.lets(62_000, &SETTINGS, 1)
                && again.lets(62_000, &SETTINGS, 4)
        );
        let failing = after(5);
        assert!((0..5).all(|message| !failing.lets(31_004, &SETTINGS, message)));
    }

    #[test]
    fn what_a_message_met_where_another_went_well_was_its_own_and_counts_no_more() {
        let doubted = Breaker::default().account_failed(1000, &SETTINGS, 1, "");
        let well = doubted.succeeded(1001, 9);
        assert_eq!((well.state, well.against.len()), (BreakerState::Closed, 0));
        // The disproved message does not count beside another refused one either.
        let other = well
            .account_failed(1002, &SETTINGS, 2, "")
            .account_failed(1003, &SETTINGS, 1, "");
        assert_eq!(other.state, BreakerState::Closed);
        assert_eq!(
            other.account_failed(1004, &SETTINGS, 3, "").state,
            BreakerState::Open
        );
        let closed = refused().probed(31_000).succeeded(31_001, 9);
        assert_eq!(
            closed
                .account_failed(31_002, &SETTINGS, 1, "")
                .account_failed(31_003, &SETTINGS, 2, ""),
            closed
        );
    }

    proptest! {
        /// In any order of events, the breaker never goes from open to closed before its cooldown
        /// is over, and its lists are bounded.
        #[test]
        fn an_open_breaker_stays_open_for_its_cooldown(
            steps in prop::collection::vec((0_u8..4, 0_i64..20_000, 0_i64..40), 1..80),
        ) {
            let (mut breaker, mut now) = (Breaker::default(), 0);
            let mut opened_at = None;
            for (what, wait, message) in steps {
                now += wait;
                let next = match what {
                    0 => breaker.failed(now, &SETTINGS, 0, message, ""),
                    1 => breaker.account_failed(now, &SETTINGS, message, ""),
                    2 => breaker.probed(now),
                    _ => breaker.succeeded(now, message),
                };
                if let (BreakerState::Open, Some(at)) = (breaker.state, opened_at) {
                    prop_assert!(next.state == BreakerState::Open || now - at >= SETTINGS.cooldown_ms);
                }
                if next.state == BreakerState::Open && next.changed_at_ms == now && breaker.changed_at_ms != now {
                    opened_at = Some(now);
                }
                prop_assert!([&next.failed, &next.against, &next.disproved].iter().all(|list| list.len() <= REMEMBERED));
                breaker = next;
            }
        }

        /// A single failing message, however often it is retried, never opens the breaker while all
        /// others succeed.
        #[test]
        fn one_message_alone_never_opens_it(steps in prop::collection::vec((0_u8..3, 0_i64..20_000), 1..200), law in 1_u32..4) {
            let law = BreakerSettings { failures: law, ..SETTINGS };
            let (mut breaker, mut now) = (Breaker::default(), 0);
            for (what, wait) in steps {
                now += wait;
                breaker = match what {
                    0 => breaker.failed(now, &law, 0, 7, ""),
                    1 => breaker.account_failed(now, &law, 7, ""),
                    _ => breaker.succeeded(now, 8),
                };
                prop_assert_eq!(breaker.state, BreakerState::Closed);
            }
        }
    }
}
