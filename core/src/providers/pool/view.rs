//! A snapshot of a pool, for people.

use jiff::Timestamp;

use crate::throttle::RateLimit;

/// The most accounts that [`PoolView::limits`] names.
const MAX_NAMED: usize = 3;

/// The state of an account.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, strum::IntoStaticStr,
)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Flow {
    /// Messages go through the account.
    #[default]
    Flowing,
    /// The provider has asked the account to slow down; it is blocked for a time.
    Blocked,
    /// The account's breaker is open.
    Open,
    /// One message was sent as a probe.
    Probing,
}

impl Flow {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Flowing, Self::Blocked, Self::Open, Self::Probing];

    /// Returns the name used in metrics and pages.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// A snapshot of an account.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct AccountView {
    /// The name of the account.
    pub name: String,
    /// The state of the account.
    pub state: Flow,
    /// The end of the state, in unix milliseconds, if known.
    pub until_ms: Option<i64>,
    /// The reason, in the provider's words.
    pub why: String,
    /// The limit in messages per second, after headroom; -1 for none.
    #[cfg_attr(feature = "api", schema(value_type = f64))]
    pub limit_rps: RateLimit,
    /// The rate learned from refusals, in messages per second, while it is lower than the limit.
    pub learned_rps: Option<f64>,
    /// The number of refusals since the rate is being learned.
    pub refused: f64,
    /// The number of failures in the breaker's window.
    pub failures: u32,
    /// The time of the breaker's last change, in unix milliseconds; 0 for never.
    pub changed_at_ms: i64,
}

/// A snapshot of a pool.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct PoolView {
    /// The name of the pool and of its throttle.
    pub name: String,
    /// The provider of all accounts.
    pub provider: String,
    /// The channel that the pool carries.
    pub channel: String,
    /// True if the whole pool slows down while accounts are unavailable.
    pub shedding: bool,
    /// The current capacity in messages per second; absent for no limit.
    pub capacity_rps: Option<f64>,
    /// The capacity with all accounts available, in messages per second; absent for no limit.
    pub configured_rps: Option<f64>,
    /// The number of available accounts.
    pub available: usize,
    /// The time at which the first account returns if none is available, in unix milliseconds.
    pub available_at_ms: Option<i64>,
    /// The last time at which no account was flowing, in unix milliseconds; absent if there always
    /// was one.
    pub unavailable_at_ms: Option<i64>,
    /// The store's clock at the snapshot, in unix milliseconds; 0 before the first.
    pub at_ms: i64,
    /// The accounts in their order of rotation.
    pub accounts: Vec<AccountView>,
}

impl PoolView {
    /// Describes the limits of its accounts for a message that waits; `None` if each account takes
    /// messages at its own rate. With `names`, the accounts that are limited are named with the
    /// reason, which is for operators.
    pub fn limits(&self, names: bool) -> Option<String> {
        let limited: Vec<String> = self
            .accounts
            .iter()
            .filter_map(AccountView::limited)
            .collect();
        if limited.is_empty() {
            return None;
        }
        let mut text = format!(
            "{} of {} accounts of pool {} are available",
            self.available,
            self.accounts.len(),
            self.name
        );
        if let Some(rps) = self.capacity_rps.filter(|_| self.available > 0) {
            text.push_str(&format!(", for {} messages a second together", short(rps)));
        }
        if !names {
            if let Some(at) = self.available_at_ms.and_then(time) {
                text.push_str(&format!("; the first is back at {at}"));
            }
            return Some(text);
        }
        for one in limited.iter().take(MAX_NAMED) {
            text.push_str("; ");
            text.push_str(one);
        }
        if limited.len() > MAX_NAMED {
            text.push_str(&format!("; and {} more", limited.len() - MAX_NAMED));
        }
        Some(text)
    }
}

impl AccountView {
    /// Describes its limit; `None` if it takes messages at its own rate.
    fn limited(&self) -> Option<String> {
        let what = match self.state {
            Flow::Flowing => {
                let learned = short(self.learned_rps?);
                return Some(format!(
                    "{} takes {learned} a second, which its provider's refusals taught",
                    self.name
                ));
            }
            Flow::Blocked => "is blocked",
            Flow::Open => "has an open breaker",
            Flow::Probing => "is tested with one message",
        };
        let until = self.until_ms.and_then(time);
        let until = until.map_or_else(String::new, |at| format!(" until {at}"));
        let why = match self.why.lines().next() {
            Some(why) if !why.is_empty() => format!(": {why}"),
            _ => String::new(),
        };
        Some(format!("{} {what}{until}{why}", self.name))
    }
}

/// Formats a rate with two decimals at most.
fn short(rps: f64) -> String {
    let text = format!("{rps:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a time to the second; `None` for one that no calendar has.
fn time(at_ms: i64) -> Option<String> {
    let at = Timestamp::from_millisecond(at_ms).ok()?;
    Some(format!("{at:.0}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, state: Flow) -> AccountView {
        AccountView {
            name: name.to_owned(),
            state,
            ..AccountView::default()
        }
    }

    #[test]
    fn a_wait_for_a_pool_names_the_accounts_that_are_limited_and_why() {
        let blocked = AccountView {
            until_ms: Some(30_000),
            why: "answered 429\nwith a body".to_owned(),
            ..account("b", Flow::Blocked)
        };
        let slow = AccountView {
            learned_rps: Some(2.5),
            ..account("c", Flow::Flowing)
        };
        let mut pool = PoolView {
            name: "mail".to_owned(),
            capacity_rps: Some(12.5),
            available: 2,
            accounts: vec![account("a", Flow::Flowing), blocked, slow],
            ..PoolView::default()
        };
        assert_eq!(
            pool.limits(true).unwrap(),
            "2 of 3 accounts of pool mail are available, for 12.5 messages a second together; b is \
             blocked until 1970-01-01T00:00:30Z: answered 429; c takes 2.5 a second, which its \
             provider's refusals taught"
        );
        assert_eq!(
            pool.limits(false).unwrap(),
            "2 of 3 accounts of pool mail are available, for 12.5 messages a second together"
        );

        let open = |n: usize| account(&format!("x{n}"), Flow::Open);
        pool.accounts = (0..5).map(open).collect();
        (pool.available, pool.capacity_rps) = (0, Some(0.0));
        pool.available_at_ms = Some(60_000);
        assert_eq!(
            pool.limits(true).unwrap(),
            "0 of 5 accounts of pool mail are available; x0 has an open breaker; x1 has an open \
             breaker; x2 has an open breaker; and 2 more"
        );
        assert_eq!(
            pool.limits(false).unwrap(),
            "0 of 5 accounts of pool mail are available; the first is back at 1970-01-01T00:01:00Z"
        );
        pool.accounts = vec![account("a", Flow::Flowing)];
        assert_eq!(pool.limits(true), None);
    }
}
