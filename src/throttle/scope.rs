//! The extent of a server's refusal, as the knob `trust_scope` and the reports name it.

/// The extent of a server's refusal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Jobs of the same throttle and key.
    #[default]
    Key,
    /// Everything that draws from the throttle above this one, such as the account's; the throttle
    /// itself if there is none above.
    Account,
    /// Every key of the throttle.
    Throttle,
}

impl Scope {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Throttle => "throttle",
            Self::Account => "account",
        }
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        [Self::Key, Self::Throttle, Self::Account]
            .into_iter()
            .find(|scope| scope.as_str() == text)
    }

    /// Returns the narrower of the two scopes: an account is wider than a throttle.
    #[must_use]
    pub fn narrower(self, other: Self) -> Self {
        let breadth = |scope| match scope {
            Self::Key => 0,
            Self::Throttle => 1,
            Self::Account => 2,
        };
        if breadth(other) < breadth(self) {
            other
        } else {
            self
        }
    }
}
