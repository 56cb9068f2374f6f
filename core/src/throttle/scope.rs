//! The extent of a server's refusal, as the knob `trust_scope` and the reports name it.

/// The extent of a server's refusal.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
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
    /// The scopes with their words, from the narrowest to the widest.
    pub const WORDS: [(&'static str, Self); 3] = [
        ("key", Self::Key),
        ("throttle", Self::Throttle),
        ("account", Self::Account),
    ];

    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        text.parse().ok()
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
