//! The way of a message through its gates, for people.

use jiff::Timestamp;
use serde::Serialize;

use super::digest::Arrival;
use super::gate::MessageGate;
use super::gates::{GateHold, MessagePlan};
use super::rule_source::RuleSource;

/// The finding of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum GateFinding {
    Passed,
    /// The message waits here.
    Waits,
    /// The message became an item here.
    Collected,
    /// The message ended here.
    Ended,
    /// An earlier gate decided.
    NotReached,
}

/// A gate with its finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct GateStep {
    /// The gate, such as `quiet_hours`.
    pub gate: &'static str,
    pub finding: GateFinding,
    /// The rule that decided; empty for none.
    pub rule: String,
    /// The time at which the wait began; absent where it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The end of the wait, also of one that is over.
    pub until: Option<Timestamp>,
    /// The message of which this one is a duplicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duplicate_of: Option<i64>,
    /// The digest that has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest_id: Option<i64>,
    /// The one who set the rule, and when; absent for no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set_by: Option<RuleSource>,
}

impl GateStep {
    /// Returns true if the gate held the message, or decided what became of it.
    pub fn decided(&self) -> bool {
        match self.finding {
            GateFinding::Waits | GateFinding::Collected | GateFinding::Ended => true,
            GateFinding::Passed | GateFinding::NotReached => false,
        }
    }
}

/// The way of a message that is still to come, by what is known now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct GateForecast {
    /// The time at which the gates look next.
    pub at: Timestamp,
    /// True if it is about the digest that has the message, and not about the message itself.
    pub is_of_digest: bool,
    /// The forecast as a sentence.
    pub sentence: String,
    /// Each gate in its order.
    pub gates: Vec<GateStep>,
    /// The time at which it would go; `null` if it would not.
    pub goes_at: Option<Timestamp>,
}

/// An open digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct DigestView {
    pub id: i64,
    /// The tenant; empty for the operators' own.
    pub tenant: String,
    /// The type of digest.
    #[serde(rename = "type")]
    pub kind: String,
    pub channel: String,
    /// The id of the recipient; empty if it is an address alone.
    pub recipient: String,
    /// The address, masked; empty if the profile has it.
    #[cfg_attr(feature = "api", schema(example = "a***@e***.com"))]
    pub to: String,
    /// The actor, of a type that has one digest for each; else empty.
    pub actor: String,
    pub opened_at: Timestamp,
    /// The time at which it closes, unless a gate keeps it open.
    pub closes_at: Timestamp,
    /// The number of items.
    pub items: usize,
    /// The gate that keeps it open beyond its window; empty for none.
    pub gate: String,
    /// The rule of that gate.
    pub rule: String,
}

/// The explanation of a message: its gates until now, and those to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct MessageExplanation {
    /// The number of the message's job.
    pub id: i64,
    /// The tenant; empty for the operators' own.
    pub tenant: String,
    /// The state of its delivery.
    pub state: String,
    /// The explanation as a sentence.
    pub sentence: String,
    /// Each gate in its order, as the gates found it when they looked last.
    pub gates: Vec<GateStep>,
    /// The time of the first plan; `null` if there was none.
    pub first_planned_at: Option<Timestamp>,
    /// The time at which it goes, as far as is known now; `null` if it does not, or has gone.
    pub planned_at: Option<Timestamp>,
    /// The open digest that has it.
    pub digest: Option<DigestView>,
    /// The message in which it went, of an item whose digest has closed; absent for others, and where
    /// the digest went as several messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub carried_by: Option<i64>,
    /// The gates to come; `null` once nothing can happen.
    pub forecast: Option<GateForecast>,
}

/// The gate that holds a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct HoldingGate {
    /// The gate, such as `quiet_hours`.
    pub gate: String,
    /// The rule, such as `22:00-08:00 Europe/Berlin`.
    pub rule: String,
    pub until: Timestamp,
}

/// Returns each gate in its order with its finding.
pub fn steps(plan: &MessagePlan) -> Vec<GateStep> {
    let step = |gate: MessageGate| {
        let (finding, rule, until) = finding(plan, gate);
        GateStep {
            gate: gate.as_str(),
            finding,
            rule,
            since: None,
            until,
            duplicate_of: None,
            digest_id: None,
            set_by: None,
        }
    };
    MessageGate::ALL.into_iter().map(step).collect()
}

fn finding(plan: &MessagePlan, gate: MessageGate) -> (GateFinding, String, Option<Timestamp>) {
    let at = |decides: MessageGate, finding, rule: &str, until| match gate.cmp(&decides) {
        std::cmp::Ordering::Less => (GateFinding::Passed, String::new(), None),
        std::cmp::Ordering::Equal => (finding, rule.to_owned(), until),
        std::cmp::Ordering::Greater => (GateFinding::NotReached, String::new(), None),
    };
    match plan {
        MessagePlan::Send => at(MessageGate::Pool, GateFinding::Passed, "", None),
        MessagePlan::Held { holds, .. } => match holds.iter().rfind(|hold| hold.gate == gate) {
            Some(hold) => (GateFinding::Waits, hold.rule.clone(), Some(hold.until)),
            None if gate == MessageGate::Pool => (GateFinding::NotReached, String::new(), None),
            None => (GateFinding::Passed, String::new(), None),
        },
        MessagePlan::Collected { digest, arrival } => {
            let until = match arrival {
                Arrival::Leads(_) => return at(MessageGate::Pool, GateFinding::Passed, "", None),
                Arrival::Joins(open) => Some(open.closes_at),
            };
            at(MessageGate::Digest, GateFinding::Collected, digest, until)
        }
        MessagePlan::Ended { gate, rule, .. } => at(*gate, GateFinding::Ended, rule, None),
        MessagePlan::Refused { rule, reset_at } => {
            at(MessageGate::Caps, GateFinding::Ended, rule, Some(*reset_at))
        }
    }
}

/// Adds to the gates that a message has passed the waits that were there, of a hold that ended at
/// this time.
pub fn add_past_holds(gates: &mut [GateStep], holds: &[GateHold], ended_at: Option<Timestamp>) {
    for hold in holds {
        let mut passed = gates
            .iter_mut()
            .filter(|step| step.finding == GateFinding::Passed);
        if let Some(step) = passed.find(|step| step.gate == hold.gate.as_str()) {
            step.rule.clone_from(&hold.rule);
            step.until = Some(ended_at.map_or(hold.until, |end| end.min(hold.until)));
        }
    }
}

/// Returns each gate of a message at which no gate has looked yet.
pub fn unplanned() -> Vec<GateStep> {
    let mut gates = steps(&MessagePlan::Send);
    gates
        .iter_mut()
        .for_each(|step| step.finding = GateFinding::NotReached);
    gates
}

/// Returns what the gates would find for a message, or for the digest that has it, at a time.
pub fn forecast(plan: &MessagePlan, at: Timestamp, is_of_digest: bool) -> GateForecast {
    GateForecast {
        at,
        is_of_digest,
        sentence: forecast_sentence(plan),
        gates: steps(plan),
        goes_at: goes_at(plan, at),
    }
}

/// Returns a plan that is still to come as one sentence.
fn forecast_sentence(plan: &MessagePlan) -> String {
    match plan {
        MessagePlan::Ended { .. } => ended("ends", plan),
        plan => sentence(plan),
    }
}

fn goes_at(plan: &MessagePlan, at: Timestamp) -> Option<Timestamp> {
    match plan {
        MessagePlan::Collected { arrival, .. } => match arrival {
            Arrival::Leads(_) => Some(at),
            Arrival::Joins(_) => None,
        },
        plan => plan.planned_at(at),
    }
}

/// Returns the plan as one sentence.
pub fn sentence(plan: &MessagePlan) -> String {
    match plan {
        MessagePlan::Send => "passes all gates".to_owned(),
        MessagePlan::Held { holds, .. } => {
            let each = holds.iter().map(|hold| {
                let (gate, rule) = (words(hold.gate), named(&hold.rule));
                format!("{gate}{rule} until {:.0}", hold.until)
            });
            format!("waits for {}", each.collect::<Vec<_>>().join(", then for "))
        }
        MessagePlan::Collected { digest, arrival } => match arrival {
            Arrival::Leads(_) => {
                format!("goes at once, and those that follow are collected in {digest}")
            }
            Arrival::Joins(open) => format!(
                "is collected in {digest}, with {}, which closes at {:.0}",
                item_count(open.items),
                open.closes_at
            ),
        },
        MessagePlan::Ended { .. } => ended("ended", plan),
        MessagePlan::Refused { rule, reset_at } => {
            format!("is refused by {rule}; there is room at {reset_at:.0}")
        }
    }
}

/// Returns a number of items in words.
pub fn item_count(number: usize) -> String {
    match number {
        1 => "1 item".to_owned(),
        number => format!("{number} items"),
    }
}

fn ended(verb: &str, plan: &MessagePlan) -> String {
    let MessagePlan::Ended { gate, reason, rule } = plan else {
        return String::new();
    };
    let (reason, gate) = (reason.as_str(), gate.as_str());
    format!("{verb} as {reason} at the gate {gate}{}", named(rule))
}

fn named(rule: &str) -> String {
    match rule {
        "" => String::new(),
        rule => format!(" ({rule})"),
    }
}

fn words(gate: MessageGate) -> &'static str {
    match gate {
        MessageGate::LocalTime => "the local time",
        MessageGate::QuietHours => "quiet hours",
        MessageGate::Caps => "a cap",
        gate => gate.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipient::digest::OpenDigest;
    use crate::recipient::gate::UnsentReason;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_held_message_shows_each_wait_and_what_comes_after() {
        let hold = |gate, rule: &str, until| GateHold {
            gate,
            rule: rule.to_owned(),
            until: at(until),
        };
        let plan = MessagePlan::Held {
            holds: vec![
                hold(
                    MessageGate::QuietHours,
                    "22:00-08:00 Europe/Berlin",
                    "2026-06-11T06:00:00Z",
                ),
                hold(
                    MessageGate::Caps,
                    "per_day 2 per 1d",
                    "2026-06-11T09:00:00Z",
                ),
            ],
            reserve_s: 0,
            coalesces: false,
        };
        assert_eq!(
            sentence(&plan),
            "waits for quiet hours (22:00-08:00 Europe/Berlin) until 2026-06-11T06:00:00Z, \
             then for a cap (per_day 2 per 1d) until 2026-06-11T09:00:00Z"
        );
        let findings: Vec<GateFinding> = steps(&plan).iter().map(|step| step.finding).collect();
        use GateFinding::{NotReached, Passed, Waits};
        assert_eq!(
            findings,
            [
                Passed, Passed, Passed, Passed, Passed, Passed, Waits, Waits, NotReached
            ]
        );
    }

    #[test]
    fn a_wait_that_is_over_stays_on_the_way() {
        let hold = |gate, until| GateHold {
            gate,
            rule: "its rule".to_owned(),
            until: at(until),
        };
        let holds = [
            hold(MessageGate::QuietHours, "2026-06-11T06:00:00Z"),
            hold(MessageGate::Caps, "2026-06-11T09:00:00Z"),
        ];
        // The cap was raised meanwhile.
        let ended_at = Some(at("2026-06-11T08:00:00Z"));
        let of = |plan: &MessagePlan| {
            let mut gates = steps(plan);
            add_past_holds(&mut gates, &holds, ended_at);
            [6, 7, 8].map(|n: usize| (gates[n].finding, gates[n].rule.clone(), gates[n].until))
        };
        let rule = || "its rule".to_owned();
        let passed = GateFinding::Passed;
        assert_eq!(
            of(&MessagePlan::Send),
            [
                (passed, rule(), Some(at("2026-06-11T06:00:00Z"))),
                (passed, rule(), ended_at),
                (passed, String::new(), None)
            ]
        );
        let suppressed = MessagePlan::Ended {
            gate: MessageGate::Suppression,
            reason: UnsentReason::Suppressed,
            rule: String::new(),
        };
        let not_reached = (GateFinding::NotReached, String::new(), None);
        assert_eq!(
            of(&suppressed),
            [not_reached.clone(), not_reached.clone(), not_reached]
        );
    }

    #[test]
    fn one_item_is_not_told_as_several() {
        let of = |items| {
            let open = OpenDigest {
                opened_at: at("2026-06-11T06:00:00Z"),
                closes_at: at("2026-06-11T09:00:00Z"),
                items,
            };
            sentence(&MessagePlan::Collected {
                digest: "new-comment".to_owned(),
                arrival: Arrival::Joins(open),
            })
        };
        let end = "which closes at 2026-06-11T09:00:00Z";
        let told = |items: &str| format!("is collected in new-comment, with {items}, {end}");
        assert_eq!((of(1), of(2)), (told("1 item"), told("2 items")));
    }

    #[test]
    fn a_message_that_ended_shows_the_gate_and_nothing_behind_it() {
        let plan = MessagePlan::Ended {
            gate: MessageGate::Preferences,
            reason: UnsentReason::OptedOut,
            rule: "the category marketing by sms".to_owned(),
        };
        assert_eq!(
            sentence(&plan),
            "ended as opted_out at the gate preferences (the category marketing by sms)"
        );
        let step = &steps(&plan)[2];
        assert_eq!(
            (step.finding, step.rule.as_str()),
            (GateFinding::Ended, "the category marketing by sms")
        );
        assert!(
            steps(&plan)[3..]
                .iter()
                .all(|step| step.finding == GateFinding::NotReached)
        );
        assert!(
            steps(&MessagePlan::Send)
                .iter()
                .all(|step| step.finding == GateFinding::Passed)
        );
    }
}
