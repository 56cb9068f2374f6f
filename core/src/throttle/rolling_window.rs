//! The rolling window: at most a number of tokens within any span of a number of seconds.
//!
//! A window remembers its grants, oldest first, and forgets each when the span has passed since:
//!
//! ```text
//!   used  = sum of the tokens granted after now - span
//!   units = floor((limit - used) / cost)
//!   wait  = time until the oldest grants that must go are a span old
//! ```
//!
//! Up to 256 grants are remembered one by one, so that the law is exact. Beyond them, grants within
//! the 256th part of the span count as one at the time of the last, which never grants more.
//! `throttle.lua` contains the same law, operation by operation.

use super::RateLimit;

/// The grants that are remembered one by one.
const EXACT_GRANTS: usize = 256;

/// The error of a sum of costs that does not count, in tokens.
const SLACK_TOKENS: f64 = 1e-9;

/// The most windows of one throttle, or of each key.
pub const WINDOWS_MAX: usize = 4;

/// The highest limit of a window, in tokens.
pub const TOKENS_MAX: f64 = 9_999_999.0;

/// The longest span of a window, in seconds: 115 days.
pub const SPAN_S_MAX: f64 = 9_999_999.0;

/// A limit of tokens within any span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowLimit {
    /// The most tokens.
    pub tokens: f64,
    /// The span, in seconds.
    pub span_s: f64,
}

impl WindowLimit {
    /// Parses limits as `10/1 1000/3600`: tokens and seconds; none from an empty text. Returns
    /// `None` for anything else.
    pub fn parse_all(text: &str) -> Option<Vec<Self>> {
        let limits: Option<Vec<Self>> = text
            .split([' ', '\t', '\n', '\r', '\x0b', '\x0c'])
            .filter(|word| !word.is_empty())
            .map(Self::parse)
            .collect();
        limits.filter(|limits| limits.len() <= WINDOWS_MAX)
    }

    /// Returns the span in whole microseconds.
    fn span_us(&self) -> f64 {
        (self.span_s * 1e6).round()
    }

    /// Returns the grants that count under this limit: those of the window with its span or, if the
    /// span was turned, those of the shortest longer one, or else of the longest.
    fn nearest<'a>(&self, known: &'a [WindowGrants]) -> Option<&'a WindowGrants> {
        let by_span =
            |one: &&WindowGrants, other: &&WindowGrants| one.span_s.total_cmp(&other.span_s);
        let long_enough = known.iter().filter(|known| known.span_s >= self.span_s);
        let shortest = long_enough.min_by(by_span);
        shortest.or_else(|| known.iter().max_by(by_span))
    }

    fn parse(word: &str) -> Option<Self> {
        let number = |text: &str| -> Option<f64> {
            let is_plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
            text.parse().ok().filter(|_| is_plain)
        };
        let (tokens, span_s) = word.split_once('/')?;
        let limit = Self {
            tokens: number(tokens)?,
            span_s: number(span_s)?,
        };
        let is_sound = (1.0..=TOKENS_MAX).contains(&limit.tokens)
            && (0.001..=SPAN_S_MAX).contains(&limit.span_s);
        is_sound.then_some(limit)
    }
}

impl std::fmt::Display for WindowLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.tokens, self.span_s)
    }
}

/// Returns limits in words, such as `10 tokens a second and 1000 a minute`.
pub fn in_words(limits: &[WindowLimit], unit: &str) -> String {
    let one = |(place, limit): (usize, &WindowLimit)| {
        let span = match limit.span_s {
            1.0 => "a second".to_owned(),
            60.0 => "a minute".to_owned(),
            3600.0 => "an hour".to_owned(),
            86400.0 => "a day".to_owned(),
            span_s => format!("in any {span_s} s"),
        };
        let unit = match limit.tokens {
            1.0 => unit.trim_end_matches('s'),
            _ => unit,
        };
        match place {
            0 => format!("{} {unit} {span}", limit.tokens),
            _ => format!("{} {span}", limit.tokens),
        }
    };
    let texts: Vec<String> = limits.iter().enumerate().map(one).collect();
    match texts.split_last() {
        Some((last, first)) if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        _ => texts.concat(),
    }
}

/// The grants of one window, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WindowGrants {
    /// The span of the window, in seconds.
    pub span_s: f64,
    /// The times in unix microseconds, with the tokens granted.
    pub grants: Vec<(f64, f64)>,
}

/// A window at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenWindow {
    limit: WindowLimit,
    grants: Vec<(f64, f64)>,
    used: f64,
    is_changed: bool,
}

impl OpenWindow {
    /// Opens the windows of `limits` at `now` (unix microseconds). A grant of the future counts as
    /// one of now, so that a clock that steps back delays nothing for longer than a span. A window
    /// whose span was turned counts the grants of before that are within it.
    pub fn open_all(limits: &[WindowLimit], known: &[WindowGrants], now: f64) -> Vec<Self> {
        let open = |limit: &WindowLimit| {
            let span_us = limit.span_us();
            let (mut grants, mut used, mut is_changed) = (Vec::new(), 0.0, false);
            let known = limit.nearest(known);
            for (at, tokens) in known.iter().flat_map(|known| &known.grants) {
                is_changed |= *at > now;
                let at = at.min(now);
                if at + span_us > now {
                    grants.push((at, *tokens));
                    used += tokens;
                }
            }
            Self {
                limit: *limit,
                grants,
                used,
                is_changed,
            }
        };
        limits.iter().map(open).collect()
    }

    /// Returns a window whose grants all count at the present time.
    pub(super) fn of(limit: WindowLimit, grants: Vec<(f64, f64)>) -> Self {
        let used = grants.iter().map(|(_, tokens)| tokens).sum();
        Self {
            limit,
            grants,
            used,
            is_changed: false,
        }
    }

    /// Returns true if the window must be stored: it granted something, or a grant of the future
    /// counts as one of now, which would move along with the clock. Others are left as they are
    /// stored, which may be more than the present limits need.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Returns the units of `cost` tokens that may be granted now. One that costs more than the
    /// limit goes when nothing else counts.
    pub fn units(&self, cost: f64) -> f64 {
        let units = ((self.limit.tokens - self.used + SLACK_TOKENS) / cost).floor();
        if units < 1.0 && self.grants.is_empty() {
            1.0
        } else {
            units.max(0.0)
        }
    }

    /// Returns the microseconds until the next unit of `cost` tokens may be granted.
    pub fn wait_us(&self, cost: f64, now: f64) -> f64 {
        let needed = (self.used + cost - self.limit.tokens).min(self.used);
        if needed <= SLACK_TOKENS {
            return 0.0;
        }
        let mut freed = 0.0;
        for (at, tokens) in &self.grants {
            freed += tokens;
            if freed >= needed - SLACK_TOKENS {
                return at + self.limit.span_us() - now;
            }
        }
        0.0
    }

    /// Returns the limit.
    pub fn limit(&self) -> WindowLimit {
        self.limit
    }

    /// Returns the tokens that count now, more than the limit if some were charged after the fact.
    pub fn used(&self) -> f64 {
        self.used
    }

    /// Returns the grants that count, oldest first: their times in unix microseconds, with the
    /// tokens.
    pub fn grants(&self) -> &[(f64, f64)] {
        &self.grants
    }

    /// Returns the tokens that may still be granted now, at least 0.
    pub fn left(&self) -> f64 {
        (self.limit.tokens - self.used).max(0.0)
    }

    /// Returns the microseconds until the oldest grant is a span old; 0 if none counts.
    pub fn frees_us(&self, now: f64) -> f64 {
        self.grants
            .first()
            .map_or(0.0, |(at, _)| at + self.limit.span_us() - now)
    }

    /// Returns the microseconds until the `place`-th further token may be granted, from 1, if each
    /// is taken as soon as it is there and nothing else takes any.
    pub fn place_us(&self, place: f64, now: f64) -> f64 {
        // After those that count now, every span grants as many as the limit.
        let spans = ((place / self.limit.tokens).ceil() - 1.0).max(0.0);
        let needed = self.used + place - (spans + 1.0) * self.limit.tokens;
        let mut freed = 0.0;
        let first = self.grants.iter().find(|(_, tokens)| {
            freed += tokens;
            freed >= needed - SLACK_TOKENS
        });
        let frees_us = first
            .filter(|_| needed > SLACK_TOKENS)
            .map_or(0.0, |(at, _)| at + self.limit.span_us() - now);
        frees_us + spans * self.limit.span_us()
    }

    /// Records a grant at `now`.
    pub fn take(&mut self, tokens: f64, now: f64) {
        self.used += tokens;
        self.is_changed = true;
        let part_us = self.limit.span_us() / EXACT_GRANTS as f64;
        let is_crowded = self.grants.len() >= EXACT_GRANTS;
        if let Some(last) = self.grants.last_mut()
            && (last.0 == now
                || (is_crowded && (last.0 / part_us).floor() == (now / part_us).floor()))
        {
            *last = (now, last.1 + tokens);
        } else {
            self.grants.push((now, tokens));
        }
    }

    /// Returns the grants to remember.
    pub fn close(self) -> WindowGrants {
        WindowGrants {
            span_s: self.limit.span_s,
            grants: self.grants,
        }
    }
}

/// The windows of a throttle and of one of its keys at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowUsage {
    /// The store's clock, unix microseconds.
    pub at_us: i64,
    /// The windows of the throttle.
    pub throttle: Vec<OpenWindow>,
    /// The windows of the key.
    pub key: Vec<OpenWindow>,
}

/// Charges tokens after the fact, or gives them back if negative, in every window.
pub fn settle_all(
    limits: &[WindowLimit],
    known: &[WindowGrants],
    tokens: f64,
    now: f64,
) -> Vec<WindowGrants> {
    let mut open = OpenWindow::open_all(limits, known, now);
    if tokens > 0.0 {
        open.iter_mut().for_each(|window| window.take(tokens, now));
    }
    let mut closed: Vec<WindowGrants> = open.into_iter().map(OpenWindow::close).collect();
    if tokens < 0.0 {
        closed
            .iter_mut()
            .for_each(|window| window.give_back(-tokens));
    }
    closed
}

/// Returns the rate that the windows allow in the long run, if there are any.
pub fn lasting_rps(limits: &[WindowLimit]) -> RateLimit {
    limits
        .iter()
        .map(|limit| RateLimit::PerSecond(limit.tokens / limit.span_s))
        .fold(RateLimit::Unlimited, RateLimit::slower)
}

impl WindowGrants {
    /// Takes granted tokens back, the newest first.
    pub fn give_back(&mut self, mut tokens: f64) {
        while let Some(last) = self.grants.last_mut() {
            let back = last.1.min(tokens);
            last.1 -= back;
            tokens -= back;
            if last.1 > SLACK_TOKENS {
                return;
            }
            self.grants.pop();
            if tokens <= SLACK_TOKENS {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(text: &str) -> Vec<WindowLimit> {
        WindowLimit::parse_all(text).unwrap()
    }

    /// Grants what is allowed of `want` units of one token, and returns the number.
    fn grant(limits: &[WindowLimit], known: &mut Vec<WindowGrants>, want: u32, now_s: f64) -> u32 {
        let now = (now_s * 1e6).round();
        let mut open = OpenWindow::open_all(limits, known, now);
        let granted = open
            .iter()
            .map(|window| window.units(1.0))
            .fold(f64::from(want), f64::min);
        if granted > 0.0 {
            open.iter_mut().for_each(|window| window.take(granted, now));
        }
        *known = open.into_iter().map(OpenWindow::close).collect();
        granted as u32
    }

    #[test]
    fn limits_are_told_in_words() {
        for (text, words) in [
            ("", ""),
            ("100/60", "100 messages a minute"),
            ("10/1 1000/3600", "10 messages a second and 1000 an hour"),
            (
                "1/0.5 2/90 9/86400",
                "1 message in any 0.5 s, 2 in any 90 s and 9 a day",
            ),
        ] {
            let limits = WindowLimit::parse_all(text).unwrap();
            assert_eq!(in_words(&limits, "messages"), words);
        }
    }

    #[test]
    fn limits_are_read_and_nonsense_is_not() {
        assert_eq!(
            limits(" 10/1  1000/3600 "),
            [
                WindowLimit {
                    tokens: 10.0,
                    span_s: 1.0
                },
                WindowLimit {
                    tokens: 1000.0,
                    span_s: 3600.0
                }
            ]
        );
        assert_eq!(limits(""), []);
        for text in [
            "3",
            "3/",
            "/5",
            "0/5",
            "3/0",
            "-3/5",
            "3/5/7",
            "1e3/5",
            "x",
            "3/inf",
            "1/1 1/2 1/3 1/4 1/5",
            "20000000/1",
            "1/99999999",
        ] {
            assert_eq!(WindowLimit::parse_all(text), None, "{text}");
        }
    }

    /// The sample of seed 001: 50 in a minute, sent within the first seconds; the 51st comes at
    /// second 42.
    #[test]
    fn the_fifty_first_of_a_minute_waits_until_the_first_is_a_minute_old() {
        let (limits, mut known) = (limits("50/60"), Vec::new());
        assert_eq!(grant(&limits, &mut known, 100, 0.0), 50);
        assert_eq!(grant(&limits, &mut known, 1, 42.0), 0);
        let open = OpenWindow::open_all(&limits, &known, 42e6);
        assert_eq!(open[0].wait_us(1.0, 42e6), 18e6);
        assert_eq!(grant(&limits, &mut known, 1, 60.0), 1);
    }

    /// Fifty at once, ten of them given back; the places follow at second 42.
    #[test]
    fn every_place_in_a_queue_has_its_time() {
        let (limits, mut known) = (limits("50/60"), Vec::new());
        grant(&limits, &mut known, 50, 0.0);
        let open = OpenWindow::open_all(&limits, &known, 42e6);
        let waits = [1.0, 50.0, 51.0, 100.0, 101.0].map(|place| open[0].place_us(place, 42e6));
        assert_eq!(waits, [18e6, 18e6, 78e6, 78e6, 138e6]);
        assert_eq!((open[0].left(), open[0].frees_us(42e6)), (0.0, 18e6));

        known[0].give_back(10.0);
        let open = OpenWindow::open_all(&limits, &known, 42e6);
        let waits = [1.0, 10.0, 11.0, 50.0, 51.0].map(|place| open[0].place_us(place, 42e6));
        assert_eq!(waits, [0.0, 0.0, 18e6, 18e6, 60e6]);
        assert_eq!((open[0].left(), open[0].frees_us(42e6)), (10.0, 18e6));
        let idle = OpenWindow::open_all(&limits, &[], 42e6);
        assert_eq!((idle[0].left(), idle[0].frees_us(42e6)), (50.0, 0.0));
    }

    #[test]
    fn a_lasting_burst_gets_three_every_five_seconds() {
        let (limits, mut known) = (limits("3/5"), Vec::new());
        let mut per_five = [0; 4];
        for tick in 0..2000 {
            let now_s = f64::from(tick) * 0.01;
            per_five[(now_s / 5.0) as usize] += grant(&limits, &mut known, 5, now_s);
        }
        assert_eq!(per_five, [3, 3, 3, 3]);
    }

    #[test]
    fn a_second_and_an_hour_limit_together() {
        let (limits, mut known) = (limits("10/1 25/3600"), Vec::new());
        let granted: Vec<u32> = (0..5)
            .map(|s| grant(&limits, &mut known, 100, f64::from(s)))
            .collect();
        assert_eq!(granted, [10, 10, 5, 0, 0]);
        let open = OpenWindow::open_all(&limits, &known, 5e6);
        let waits: Vec<f64> = open.iter().map(|window| window.wait_us(1.0, 5e6)).collect();
        assert_eq!(waits, [0.0, 3595e6]);
    }

    #[test]
    fn what_is_given_back_is_granted_again_and_a_clock_that_steps_back_costs_one_span_at_most() {
        let (limits, mut known) = (limits("3/5"), Vec::new());
        assert_eq!(grant(&limits, &mut known, 3, 100.0), 3);
        known[0].give_back(2.0);
        assert_eq!(grant(&limits, &mut known, 3, 101.0), 2);
        // An hour back.
        let open = OpenWindow::open_all(&limits, &known, -3500e6);
        assert_eq!(open[0].wait_us(1.0, -3500e6), 5e6);
    }

    #[test]
    fn a_span_that_is_turned_keeps_the_grants_that_count() {
        let mut known = Vec::new();
        assert_eq!(grant(&limits("5/60"), &mut known, 9, 0.0), 5);
        assert_eq!(grant(&limits("8/3600"), &mut known, 9, 10.0), 3);
        assert_eq!(grant(&limits("5/30"), &mut known, 9, 35.0), 2);
        assert_eq!(grant(&limits("9/60 6/10"), &mut known, 9, 36.0), 4);
        // The grants of the minute count, and not those of the ten seconds.
        assert_eq!(grant(&limits("9/20"), &mut known, 9, 46.5), 3);
    }

    #[test]
    fn a_job_that_costs_more_than_the_limit_goes_alone() {
        let (limits, mut known) = (limits("3/5"), Vec::new());
        let mut open = OpenWindow::open_all(&limits, &known, 0.0);
        assert_eq!(open[0].units(10.0), 1.0);
        open[0].take(10.0, 0.0);
        known = open.into_iter().map(OpenWindow::close).collect();
        assert_eq!(grant(&limits, &mut known, 1, 4.9), 0);
        let open = OpenWindow::open_all(&limits, &known, 1e6);
        assert_eq!(
            (open[0].wait_us(10.0, 1e6), open[0].wait_us(1.0, 1e6)),
            (4e6, 4e6)
        );
        assert_eq!(grant(&limits, &mut known, 5, 5.0), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_span_ever_sees_more_than_the_limit(
            tokens in 1u32..2000, span_ms in 10u32..5000, steps in prop::collection::vec((0u32..40, 1u32..60), 1..600)
        ) {
            let span_us = f64::from(span_ms) * 1000.0;
            let limits = [WindowLimit { tokens: f64::from(tokens), span_s: f64::from(span_ms) / 1000.0 }];
            let (mut known, mut now, mut log) = (Vec::new(), 0.0, Vec::<(f64, u32)>::new());
            for (pause_ms, want) in steps {
                now += f64::from(pause_ms) * 1000.0;
                let granted = grant(&limits, &mut known, want, now / 1e6);
                log.push((now, granted));
                let within: u32 = log.iter().filter(|(at, _)| at + span_us > now).map(|(_, n)| n).sum();
                prop_assert!(within <= tokens);
                prop_assert!(known[0].grants.len() <= 2 * EXACT_GRANTS + 1);
                // Nothing is held back while the grants are remembered one by one.
                let is_exact = known[0].grants.len() < EXACT_GRANTS;
                prop_assert!(!is_exact || granted == want || within == tokens);
            }
        }
    }
}
