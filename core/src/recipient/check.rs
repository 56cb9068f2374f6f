//! The state of a recipient: what its caps leave, and what else holds its messages, without using
//! anything.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::candidate::CapList;
use super::caps::{CapCheck, CapRule, judged_at, noted_at, time_of};
use super::explain::{DigestView, GateForecast, HoldingGate};
use super::gates::CapTimes;

/// The times that lists of caps may move a message past each other.
const ROUNDS_MAX: usize = 64;

/// The answer of all caps together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RateLimitCheck {
    /// True if a message that is sent now would not wait for a cap.
    pub allowed: bool,
    /// The messages that may go now; `null` if there is no cap.
    pub remaining: Option<u32>,
    /// The time at which a message that is sent now may go.
    pub reset_at: Timestamp,
    /// The cap that makes it wait, or else the one with the fewest remaining; empty for none.
    pub rule: String,
}

/// The state of one cap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct CheckedCap {
    #[serde(flatten)]
    pub check: CapCheck,
    /// The cap, such as `2 per 1d`.
    pub cap: String,
    /// True if it counts the messages about one actor, and not those of the category.
    pub is_of_actor: bool,
    /// The messages that wait for a time of their own and count already.
    pub reserved: usize,
    /// The times of the last messages that count, oldest first; at most 20.
    pub sent_at: Vec<Timestamp>,
}

/// The choice of a recipient that counts for a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct CheckedPreference {
    /// True if the message is wanted, or its category is mandatory.
    pub wanted: bool,
    /// The choice, such as `the category marketing by email`; empty if there is none.
    pub rule: String,
}

/// A message that waits for its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct HeldView {
    /// The number of its job.
    pub id: i64,
    #[serde(flatten)]
    pub held_by: HoldingGate,
}

/// A message that the gates have looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct PastMessage {
    /// The number of its job.
    pub id: i64,
    /// The state of its delivery.
    pub state: String,
    pub category: String,
    /// The gate that holds it, or that decided what became of it; empty for none.
    pub gate: String,
    /// The rule of that gate.
    pub rule: String,
    /// The time at which it was accepted.
    pub accepted_at: Timestamp,
    /// The time of the last change.
    pub changed_at: Timestamp,
    /// The time at which it goes, or at which there was room for a capped one.
    pub until: Option<Timestamp>,
}

/// The state of a recipient for a kind of message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct RecipientCheck {
    #[serde(flatten)]
    pub all: RateLimitCheck,
    /// Each cap.
    pub rules: Vec<CheckedCap>,
    /// The end of quiet hours; `null` if they are not on.
    pub quiet_until: Option<Timestamp>,
    /// The rule of the quiet hours; empty if they are not on.
    pub quiet_rule: String,
    /// True if the recipient gets no messages on the channel.
    pub suppressed: bool,
    pub preference: CheckedPreference,
    /// The address, masked; empty if there is none.
    #[cfg_attr(feature = "api", schema(example = "a***@e***.com"))]
    pub to: String,
    /// The open digests of the recipient on the channel, next to close first; at most 100.
    pub digests: Vec<DigestView>,
    /// Its messages on the channel that wait, next to go first; at most 100.
    pub held: Vec<HeldView>,
    /// Its newest messages on the channel that a cap counted or a gate held, collected or ended,
    /// newest first; at most 20.
    pub history: Vec<PastMessage>,
    /// The way of such a message through the gates now. Duplicates are not looked for.
    pub forecast: GateForecast,
}

/// The newest sends that an answer shows.
const SHOWN: usize = 20;

/// Returns the state of all caps together, and of each.
pub fn caps(
    lists: &[CapList],
    times: &[CapTimes<'_>],
    now: Timestamp,
    zone: &TimeZone,
    is_of_actor: impl Fn(&CapList) -> bool,
) -> (RateLimitCheck, Vec<CheckedCap>) {
    let mut rules: Vec<CheckedCap> = Vec::new();
    for (n, list) in lists.iter().enumerate() {
        let times = times.get(n).copied().unwrap_or_default();
        let newest = &times.sent[times.sent.len().saturating_sub(SHOWN)..];
        // A message that waits has its place already.
        let checks = list.caps.checks(times.sent, times.reserved, now, zone);
        rules.extend(
            checks
                .into_iter()
                .zip(&list.caps.0)
                .map(|(check, rule)| CheckedCap {
                    check,
                    cap: rule.to_string(),
                    is_of_actor: is_of_actor(list),
                    reserved: times.reserved.len(),
                    sent_at: newest.iter().copied().map(time_of).collect(),
                }),
        );
    }
    let (reset_at, waits_for) = next(lists, times, now, zone);
    let fewest = rules.iter().min_by_key(|rule| rule.check.remaining);
    let binding = waits_for.map(|rule| rule.name.clone());
    let all = RateLimitCheck {
        allowed: binding.is_none(),
        remaining: fewest.map(|rule| rule.check.remaining),
        reset_at,
        rule: binding
            .or_else(|| fewest.map(|rule| rule.check.rule.clone()))
            .unwrap_or_default(),
    };
    (all, rules)
}

/// Returns the time at which a message may go by all lists, as its plan tells, and the cap that
/// makes it wait.
fn next<'a>(
    lists: &'a [CapList],
    times: &[CapTimes<'_>],
    now: Timestamp,
    zone: &TimeZone,
) -> (Timestamp, Option<&'a CapRule>) {
    let (mut at, mut binding) = (now, None);
    for _ in 0..ROUNDS_MAX {
        let from_s = if at == now {
            judged_at(at)
        } else {
            noted_at(at)
        };
        let mut latest = from_s;
        for (n, list) in lists.iter().enumerate() {
            let times = times.get(n).copied().unwrap_or_default();
            let plan = list.caps.plan(times.sent, times.reserved, from_s, zone);
            if let Some(rule) = plan.rule.filter(|_| plan.at_s > latest) {
                (latest, binding) = (plan.at_s, Some(rule));
            }
        }
        if latest == from_s {
            break;
        }
        at = time_of(latest);
    }
    (at, binding)
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
