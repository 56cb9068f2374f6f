//! A snapshot of a pool, for people.

use crate::throttle::RateLimit;

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
