//! A pool as people see it.

/// How an account stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Flow {
    /// Messages go through it.
    #[default]
    Flowing,
    /// Its provider asked it to slow down; it waits until a time.
    Blocked,
    /// Its breaker is open.
    Open,
    /// One message has gone, to find out whether others may.
    Probing,
}

impl Flow {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Flowing, Self::Blocked, Self::Open, Self::Probing];

    /// The word for metrics and pages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Flowing => "flowing",
            Self::Blocked => "blocked",
            Self::Open => "open",
            Self::Probing => "probing",
        }
    }
}

/// An account as people see it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct AccountView {
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: Flow,
    /// Until when it stands so, unix milliseconds, where that is known.
    pub until_ms: Option<i64>,
    /// Why, in the provider's words.
    pub why: String,
    /// Messages each second that it is taken to bear, with what is left as headroom taken off; below 0 for no limit.
    pub limit_rps: f64,
    /// The rate that was learned from its refusals, while that is lower.
    pub learned_rps: Option<f64>,
    /// Refusals since its rate is being learned.
    pub refused: f64,
    /// Failures in the breaker's window.
    pub failures: u32,
    /// When its breaker last changed, unix milliseconds; 0 for never.
    pub changed_at_ms: i64,
}

/// A pool as people see it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct PoolView {
    /// Its name, which is its throttle's too.
    pub name: String,
    /// Whose accounts they are.
    pub provider: String,
    /// What it carries.
    pub channel: String,
    /// Whether the whole pool sends less when accounts are away.
    pub shedding: bool,
    /// Messages each second that it can bear now; absent for no limit.
    pub capacity_rps: Option<f64>,
    /// Messages each second with all accounts there; absent for no limit.
    pub configured_rps: Option<f64>,
    /// Accounts that are there.
    pub there: usize,
    /// When the first account comes back where none is there, unix milliseconds.
    pub back_at_ms: Option<i64>,
    /// When no account was flowing for the last time, unix milliseconds; absent if one always was.
    pub away_at_ms: Option<i64>,
    /// The store's clock when this was so, unix milliseconds; 0 before the first look.
    pub at_ms: i64,
    /// The accounts in the order of their turns.
    pub accounts: Vec<AccountView>,
}
