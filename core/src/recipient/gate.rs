//! The gates of a message, in their order. `docs/gates.md` has the same table.

use strum::{EnumString, IntoStaticStr};

/// A gate. A gate uses something up only where every later gate can merely delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum MessageGate {
    /// Cancelled, or past its deadline, or without an address.
    Deadline,
    /// The recipient is suppressed on the channel.
    Suppression,
    /// The recipient does not want such messages.
    Preferences,
    /// The same message went to it within the window.
    Dedup,
    /// The message becomes an item of a digest.
    Digest,
    /// The recipient's clock does not show the time yet that the sender names.
    LocalTime,
    /// The recipient's clock is in quiet hours.
    QuietHours,
    /// The recipient got as many messages as the caps allow.
    Caps,
    /// The pool of accounts, and the providers' quotas.
    Pool,
}

/// The effect that a gate can have on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum GateEffect {
    /// It ends unsent.
    End,
    /// It becomes an item.
    Collect,
    /// It waits, or ends if its rule says so.
    Delay,
}

impl MessageGate {
    /// All gates in their order.
    pub const ALL: [Self; 9] = [
        Self::Deadline,
        Self::Suppression,
        Self::Preferences,
        Self::Dedup,
        Self::Digest,
        Self::LocalTime,
        Self::QuietHours,
        Self::Caps,
        Self::Pool,
    ];

    /// Returns its name in records, metrics and answers.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns its effect.
    pub fn effect(self) -> GateEffect {
        match self {
            Self::Deadline | Self::Suppression | Self::Preferences | Self::Dedup => GateEffect::End,
            Self::Digest => GateEffect::Collect,
            Self::LocalTime | Self::QuietHours | Self::Caps | Self::Pool => GateEffect::Delay,
        }
    }

    /// Returns what a message that passes uses up; empty for nothing.
    pub fn uses(self) -> &'static str {
        match self {
            Self::Dedup => "claim",
            Self::Caps => "slot",
            Self::Pool => "token",
            _ => "",
        }
    }

    /// Returns true if it is looked at again in the attempt, before anything is sent.
    pub fn is_verified(self) -> bool {
        !matches!(self, Self::Digest | Self::Pool)
    }

    /// Returns true if a critical message passes it in any case.
    pub fn lets_critical_pass(self) -> bool {
        matches!(self, Self::Digest | Self::QuietHours)
    }
}

/// The end of a message that was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum UnsentReason {
    Cancelled,
    Expired,
    /// There is no address on the channel.
    Unreachable,
    Suppressed,
    OptedOut,
    Duplicate,
    /// It came in quiet hours, and its category is not sent later.
    Quiet,
    Capped,
}

impl UnsentReason {
    /// Returns its name in records, metrics and answers.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The end of an attempt, as far as it concerns what the gates took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// A provider has accepted the message.
    Accepted,
    /// The message goes again later.
    Retried,
    /// The message has ended, and no provider has accepted it.
    Unsent,
    /// Nobody knows.
    Ambiguous,
}

/// The fate of a dedup claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimFate {
    /// It stays as it is.
    Kept,
    /// It is marked, and its window begins.
    Marked,
    /// It is given back, so that the next such message is no duplicate.
    GivenBack,
}

impl AttemptEnd {
    /// Returns the end of a message that was sent, or refused for good, by an earlier attempt.
    pub fn settled(was_sent: bool) -> Self {
        match was_sent {
            true => Self::Accepted,
            false => Self::Unsent,
        }
    }

    /// Returns the fate of the dedup claim.
    pub fn claim(self) -> ClaimFate {
        match self {
            Self::Accepted => ClaimFate::Marked,
            // A message that may have arrived must not arrive again.
            Self::Ambiguous => ClaimFate::Marked,
            Self::Retried => ClaimFate::Kept,
            Self::Unsent => ClaimFate::GivenBack,
        }
    }

    /// Returns true if the slots of the caps are given back. A retry keeps its own until its next
    /// attempt takes them again.
    pub fn gives_slots_back(self) -> bool {
        self == Self::Unsent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule behind the order.
    #[test]
    fn a_gate_uses_something_up_only_where_every_later_gate_can_merely_delay() {
        assert!(MessageGate::ALL.is_sorted());
        for (n, gate) in MessageGate::ALL.iter().enumerate() {
            let ends_later = MessageGate::ALL[n + 1..]
                .iter()
                .any(|later| later.effect() == GateEffect::End);
            assert!(gate.uses().is_empty() || !ends_later, "{gate:?}");
        }
    }

    #[test]
    fn the_page_has_the_gates_in_their_order() {
        let page = include_str!("../../../docs/gates.md");
        let table = page.split("\n## The order\n").nth(1).unwrap();
        let rows = table.lines().filter(|line| line.starts_with("| `"));
        let documented: Vec<Vec<&str>> = rows
            .map(|row| row.split('|').map(str::trim).skip(1).take(5).collect())
            .take(MessageGate::ALL.len())
            .collect();
        let answer = |yes| if yes { "yes" } else { "no" };
        for (row, gate) in documented.iter().zip(MessageGate::ALL) {
            let effect: &str = gate.effect().into();
            let name = format!("`{}`", gate.as_str());
            let wanted = [
                name.as_str(),
                effect,
                gate.uses(),
                answer(gate.is_verified()),
                answer(gate.lets_critical_pass()),
            ];
            assert_eq!(*row, wanted);
        }
        assert_eq!(documented.len(), MessageGate::ALL.len());
    }

    #[test]
    fn what_an_unsent_message_took_is_given_back_and_what_may_have_arrived_is_kept() {
        let fates = [
            AttemptEnd::Accepted,
            AttemptEnd::Retried,
            AttemptEnd::Unsent,
            AttemptEnd::Ambiguous,
        ]
        .map(|end| (end.claim(), end.gives_slots_back()));
        assert_eq!(
            fates,
            [
                (ClaimFate::Marked, false),
                (ClaimFate::Kept, false),
                (ClaimFate::GivenBack, true),
                (ClaimFate::Marked, false),
            ]
        );
    }
}
