//! Knobs whose values are words.

/// The party that turns the `rps` knob.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// The governor turns the knob.
    Auto,
    /// A person turns the knob; the governor leaves it alone.
    #[default]
    Manual,
    /// The governor computes and records its decisions but writes nothing.
    Shadow,
    /// No governor runs for this throttle.
    Off,
}

/// The answer of `acquire` while Redis cannot be asked.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum OnStoreLoss {
    /// `acquire` grants nothing, because the throttle protects a receiver from overload.
    #[default]
    Closed,
    /// `acquire` grants everything, unless the throttle was stopped.
    Open,
    /// `acquire` grants at the last known rate divided by the live workers, halved each window.
    Local,
}

/// The effect of another server's refusal (a 429).
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum On429 {
    /// Keys keep to their own rate, a refusal pauses all jobs of its key, and the key's rate is
    /// learned.
    #[default]
    ActiveInformed,
    /// Keys keep to their own rate; a refusal delays the refused job alone.
    ActiveNaive,
    /// Keys have no rate of their own; a refusal pauses all jobs of its key.
    PassiveInformed,
    /// Keys have no rate of their own; a refusal delays the refused job alone.
    PassiveNaive,
}

/// The effect of more waiting jobs in a lane than `max_backlog`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum OnBacklog {
    /// The backlog is shown.
    #[default]
    Signal,
    /// New jobs of the lane are refused.
    Reject,
}

/// The fate of jobs that cannot run at once.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    serde::Serialize,
    serde::Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "snake_case")]
pub enum OverLimit {
    /// The jobs wait.
    #[default]
    Wait,
    /// The jobs end as dropped.
    Drop,
    /// The jobs wait, and of those with equal unique keys one waits for all.
    Merge,
}

impl Mode {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl OnStoreLoss {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl On429 {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns true if keys have no rate of their own.
    pub fn is_passive(self) -> bool {
        matches!(self, Self::PassiveInformed | Self::PassiveNaive)
    }

    /// Returns true if a refusal concerns the refused job alone.
    pub fn is_naive(self) -> bool {
        matches!(self, Self::ActiveNaive | Self::PassiveNaive)
    }

    /// Returns true if the rate of a refused key is learned.
    pub fn learns(self) -> bool {
        self == Self::ActiveInformed
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        let all = [
            Self::ActiveInformed,
            Self::ActiveNaive,
            Self::PassiveInformed,
            Self::PassiveNaive,
        ];
        all.into_iter().find(|word| word.as_str() == text)
    }
}

impl OverLimit {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl OnBacklog {
    /// Returns the word for the hash.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the word of the hash.
    pub fn of(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}
