//! The way of a message through the gates.
//!
//! [`plan`] looks at all gates when a message is accepted, so that one that must wait occupies
//! neither a token nor a slot. [`verify`] looks again in the attempt, and is the truth: it judges
//! caps by what was sent, and not by what waits.

use std::borrow::Cow;
use std::cell::OnceCell;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::address::RecipientKey;
use super::candidate::{CRITICAL, Candidate, CapList, NORMAL, Origin};
use super::caps::{CapRule, CapRules, CapWindow, judged_at, noted_at, time_of};
use super::collectors::digest_type;
use super::dedup::DedupClaim;
use super::digest::{Arrival, DigestType, OpenDigest};
use super::gate::{MessageGate, UnsentReason};
use super::profile::Profile;
use super::quiet::{Quiet, QuietMode, QuietRule};
use super::release::Release;
use super::rules::{OverCap, RecipientRules};
use crate::providers::Channel;

/// The times that quiet hours and caps may move a message past each other.
const ROUNDS_MAX: usize = 64;

/// The times of one list.
#[derive(Clone, Copy, Debug, Default)]
pub struct CapTimes<'a> {
    /// The seconds of the messages that went, oldest first.
    pub sent: &'a [i64],
    /// The seconds for which others wait.
    pub reserved: &'a [i64],
}

/// The rows of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct GateRows<'a> {
    pub is_suppressed: bool,
    /// The claim on its dedup key; `None` if nobody has one.
    pub claim: Option<DedupClaim>,
    /// The open digests of the types that may collect it, by name.
    pub digests: &'a [(&'a str, OpenDigest)],
    /// The times of its lists, in the order of [`cap_lists`]; a list that is missing is empty.
    pub times: &'a [CapTimes<'a>],
    /// Its lists, for callers that have them; else they are computed.
    pub lists: Option<&'a [CapList]>,
    /// True if an earlier attempt took its slots.
    pub has_slots: bool,
    /// The number of messages that were held for the time at which it is released with a crowd.
    pub held_with_it: u64,
    /// The capacity of its pool, in messages a second.
    pub capacity_per_s: f64,
}

/// The profile and the rules that apply to a message.
#[derive(Clone, Copy, Debug)]
pub struct GatePolicy<'a> {
    pub profile: &'a Profile,
    /// The defaults of the tenant.
    pub defaults: &'a Profile,
    pub rules: &'a RecipientRules,
}

/// A gate at which a message waits.
#[derive(Clone, Debug, PartialEq)]
pub struct GateHold {
    pub gate: MessageGate,
    /// The rule, such as `per_day 2 per 1d`.
    pub rule: String,
    pub until: Timestamp,
}

/// The plan of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum MessagePlan {
    /// It goes now, and takes a slot of each list.
    Send,
    /// It waits until the last of these holds ends, in their order; at least one.
    Held {
        holds: Vec<GateHold>,
        /// The second to reserve in each list, unless it coalesces.
        reserve_s: i64,
        /// True if it may be one of those that become one digest on waking. Then it reserves
        /// nothing, because caps look when it wakes.
        coalesces: bool,
    },
    /// It becomes an item of a digest of this type.
    Collected { digest: String, arrival: Arrival },
    /// It ends unsent.
    Ended {
        gate: MessageGate,
        reason: UnsentReason,
        rule: String,
    },
    /// It is not accepted; it would have room at `reset_at`.
    Refused { rule: String, reset_at: Timestamp },
}

impl MessagePlan {
    /// Returns the time at which the message goes, if it goes.
    pub fn planned_at(&self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::Send => Some(now),
            Self::Held { holds, .. } => holds.last().map(|hold| hold.until),
            _ => None,
        }
    }
}

/// Returns the plan of a message that is accepted at `now`.
pub fn plan(
    message: &Candidate<'_>,
    policy: GatePolicy<'_>,
    rows: &GateRows<'_>,
    now: Timestamp,
) -> MessagePlan {
    Walk::new(message, policy, rows, now, false).plan()
}

/// Returns the plan of a message whose attempt begins at `now`: [`MessagePlan::Send`] almost
/// always. It is never refused or collected.
pub fn verify(
    message: &Candidate<'_>,
    policy: GatePolicy<'_>,
    rows: &GateRows<'_>,
    now: Timestamp,
) -> MessagePlan {
    Walk::new(message, policy, rows, now, true).plan()
}

/// Returns the plan of a message that one of the gates before dedup ends; `None` if they let it pass.
pub fn ends_before_dedup(
    message: &Candidate<'_>,
    policy: GatePolicy<'_>,
    rows: &GateRows<'_>,
    now: Timestamp,
) -> Option<MessagePlan> {
    let rows = GateRows {
        claim: None,
        lists: Some(&[]),
        ..*rows
    };
    Walk::new(message, policy, &rows, now, false).ended()
}

/// Returns true if a message is compared with others, and claims its content: one of a sender, unless
/// a digest collects it whose type compares no items.
pub fn is_deduped(message: &Candidate<'_>, rules: &RecipientRules) -> bool {
    let kind = digest_type(message, rules);
    message.origin == Origin::Sender
        && !rules.category(message.category).dedup_window.is_zero()
        && kind.is_none_or(|kind| kind.dedup_items)
}

/// Returns the lists of sends whose caps apply to a message, in the order in which their rows are
/// locked. All must have room.
pub fn cap_lists(message: &Candidate<'_>, rules: &RecipientRules) -> Vec<CapList> {
    let category = rules.category(message.category);
    let list = |key: RecipientKey, caps: CapRules, over: &OverCap| CapList {
        key,
        caps,
        over: over.clone(),
    };
    let (recipient, over) = (message.recipient, &category.over_cap);
    let key = recipient.list("category", message.category);
    let mut lists = vec![list(
        key,
        rules.caps(message.category, message.channel),
        over,
    )];
    // An inbox interrupts nobody; `flyball.refuse_capped` has the same.
    if let Some(actor) = message.actor.filter(|_| message.channel != Channel::InApp) {
        let (caps, over) = (category.actor_caps.clone(), &category.over_actor_cap);
        lists.push(list(key.list("actor", actor), caps, over));
    }
    if let Some((rule, template)) = message.at_most.zip(message.template) {
        // Each rule has a list of its own, because a list is cut to what its rules need.
        let key = recipient.list("template", template);
        let key = key.list("at_most", &rule.to_string());
        lists.push(list(key, CapRules(vec![rule.clone()]), over));
    }
    lists.retain(|list| !list.caps.0.is_empty());
    lists.sort_by_key(|list| list.key);
    lists
}

/// Returns the quiet hours that hold for a message: those of the recipient, or else of the tenant,
/// and those that the law asks for.
pub fn quiet_of(message: &Candidate<'_>, policy: GatePolicy<'_>) -> Quiet {
    let channel = message.channel;
    let zone = zone_of(message, policy);
    let category = policy.rules.category(message.category);
    let mut quiet = Quiet::default();
    let passes = message.priority <= CRITICAL || category.quiet_mode(channel) == QuietMode::Always;
    let own = policy.profile.quiet.get(&channel);
    let hours = own.or_else(|| policy.defaults.quiet.get(&channel));
    if let Some(hours) = hours.filter(|_| !passes) {
        let zone = zone.cloned().unwrap_or(TimeZone::UTC);
        quiet.0.push(QuietRule::new(hours.clone(), zone));
    }
    // The law knows no urgency.
    let address = message.to.map_or("", |to| to.identity());
    for preset in &category.presets {
        preset.add_to(
            &mut quiet,
            channel,
            address,
            policy.profile.zone_of(channel),
        );
    }
    quiet
}

/// Returns the zone of the recipient on the channel, or else of the tenant; `None` if neither has
/// one.
pub fn zone_of<'a>(message: &Candidate<'_>, policy: GatePolicy<'a>) -> Option<&'a TimeZone> {
    policy.profile.zone_or(policy.defaults, message.channel)
}

/// One look at the gates.
struct Walk<'a> {
    message: &'a Candidate<'a>,
    policy: GatePolicy<'a>,
    rows: &'a GateRows<'a>,
    now: Timestamp,
    /// True in the attempt.
    attempts: bool,
    zone: TimeZone,
    /// Most messages that end do so before anybody asks.
    quiet: OnceCell<Quiet>,
    lists: Cow<'a, [CapList]>,
}

/// The time that the caps of all lists give to a message.
#[derive(Clone, Copy)]
struct Capped<'a> {
    at: Timestamp,
    rule: &'a CapRule,
    over: &'a OverCap,
}

impl<'a> Walk<'a> {
    fn new(
        message: &'a Candidate<'a>,
        policy: GatePolicy<'a>,
        rows: &'a GateRows<'a>,
        now: Timestamp,
        attempts: bool,
    ) -> Self {
        let lists = match rows.lists {
            // Its own earlier claims must not hold it.
            _ if rows.has_slots => Cow::default(),
            Some(lists) => Cow::Borrowed(lists),
            None => Cow::Owned(cap_lists(message, policy.rules)),
        };
        Self {
            zone: zone_of(message, policy).cloned().unwrap_or(TimeZone::UTC),
            quiet: OnceCell::new(),
            lists,
            message,
            policy,
            rows,
            now,
            attempts,
        }
    }

    fn quiet(&self) -> &Quiet {
        let quiet = || quiet_of(self.message, self.policy);
        self.quiet.get_or_init(quiet)
    }

    fn plan(&self) -> MessagePlan {
        if let Some(ended) = self.ended() {
            return ended;
        }
        match digest_type(self.message, self.policy.rules) {
            Some(kind) if !self.attempts => self.collected(kind),
            _ => self.timed(),
        }
    }

    /// Passes the gates that can end a message: 1 to 4.
    fn ended(&self) -> Option<MessagePlan> {
        let (message, rows) = (self.message, self.rows);
        let end = |gate, reason, rule: String| Some(MessagePlan::Ended { gate, reason, rule });
        let nameless = String::new;
        if message.is_cancelled {
            return end(MessageGate::Deadline, UnsentReason::Cancelled, nameless());
        }
        if message
            .deadline
            .is_some_and(|deadline| deadline <= self.now)
        {
            return end(MessageGate::Deadline, UnsentReason::Expired, nameless());
        }
        if message.to.is_none() {
            return end(MessageGate::Deadline, UnsentReason::Unreachable, nameless());
        }
        if rows.is_suppressed {
            return end(
                MessageGate::Suppression,
                UnsentReason::Suppressed,
                nameless(),
            );
        }
        let category = self.policy.rules.category(message.category);
        let opt_out = self.policy.profile.preferences.opt_out(
            &self.policy.defaults.preferences,
            message.channel,
            message.category,
            message.template,
        );
        if let Some(choice) = opt_out.filter(|_| !category.mandatory) {
            let rule = choice.to_string();
            return end(MessageGate::Preferences, UnsentReason::OptedOut, rule);
        }
        // An item that goes in an attempt does so alone.
        let is_deduped = match self.attempts {
            true => message.origin == Origin::Sender && !category.dedup_window.is_zero(),
            false => is_deduped(message, self.policy.rules),
        };
        let claim = rows.claim.filter(|claim| {
            is_deduped && claim.blocks(message.job, self.now, category.dedup_window)
        });
        claim.and_then(|claim| {
            let of = format!("of {}", claim.job);
            end(MessageGate::Dedup, UnsentReason::Duplicate, of)
        })
    }

    fn collected(&self, kind: &DigestType) -> MessagePlan {
        // The first one goes at once, if it passes the gates that remain.
        let arrival = match self.arrival(kind) {
            Arrival::Leads(_) if self.timed() != MessagePlan::Send => self.joins(kind),
            arrival => arrival,
        };
        MessagePlan::Collected {
            digest: kind.name.clone(),
            arrival,
        }
    }

    fn arrival(&self, kind: &DigestType) -> Arrival {
        let open = self
            .rows
            .digests
            .iter()
            .rfind(|(name, _)| *name == kind.name);
        kind.arrival(open.map(|(_, open)| open), self.now, &self.zone)
    }

    /// Returns the place of an item that may not go at once.
    fn joins(&self, kind: &DigestType) -> Arrival {
        let kind = DigestType {
            leading: false,
            ..kind.clone()
        };
        self.arrival(&kind)
    }

    /// Passes the gates that can delay a message: its local time, and from then on quiet hours and
    /// caps, until it suits both.
    fn timed(&self) -> MessagePlan {
        let category = self.policy.rules.category(self.message.category);
        let mode = category.quiet_mode(self.message.channel);
        let (mut at, mut holds) = (self.now, Vec::new());
        if let Some(local) = self.message.local.filter(|local| local.at > at) {
            at = self.spread(local.at);
            hold(
                &mut holds,
                MessageGate::LocalTime,
                local.rule(&self.zone),
                at,
            );
        }
        for _ in 0..ROUNDS_MAX {
            let before = at;
            let awake = self.quiet().next_allowed(at);
            if let Some(rule) = awake.rule {
                let is_final = self.message.origin != Origin::Digest;
                let reason = match awake.at {
                    _ if mode == QuietMode::Drop && is_final => Some(UnsentReason::Quiet),
                    None => Some(UnsentReason::Expired),
                    Some(_) => None,
                };
                if let Some(reason) = reason {
                    let (gate, rule) = (MessageGate::QuietHours, rule.name.clone());
                    return MessagePlan::Ended { gate, reason, rule };
                }
                at = self.spread(awake.at.unwrap_or(at));
                hold(&mut holds, MessageGate::QuietHours, rule.name.clone(), at);
                if self.may_coalesce(mode) && !self.attempts {
                    break;
                }
            }
            if let Some(capped) = self.capped(at) {
                if let Some(plan) = self.over(&capped) {
                    return plan;
                }
                at = match capped.rule.window {
                    CapWindow::LocalDay => self.spread(capped.at),
                    CapWindow::Rolling(_) => capped.at,
                };
                let rule = format!("{} {}", capped.rule.name, capped.rule);
                hold(&mut holds, MessageGate::Caps, rule, at);
            }
            if at == before {
                break;
            }
        }
        self.on_time(at, holds, mode)
    }

    /// Returns true if a message that sleeps may become one with others when it wakes.
    fn may_coalesce(&self, mode: QuietMode) -> bool {
        mode == QuietMode::DigestOnWake
            && self.message.origin != Origin::Digest
            && !self.message.goes_alone()
    }

    /// Ends a message that would go after its deadline.
    fn on_time(&self, at: Timestamp, holds: Vec<GateHold>, mode: QuietMode) -> MessagePlan {
        let Some(last) = holds.last() else {
            return MessagePlan::Send;
        };
        let deadline = self.message.deadline;
        if deadline.is_some_and(|deadline| deadline < at) && self.message.origin != Origin::Digest {
            let reason = match last.gate {
                MessageGate::Caps => UnsentReason::Capped,
                _ => UnsentReason::Expired,
            };
            let (gate, rule) = (last.gate, last.rule.clone());
            return MessagePlan::Ended { gate, reason, rule };
        }
        let sleeps = holds
            .iter()
            .any(|hold| hold.gate == MessageGate::QuietHours);
        MessagePlan::Held {
            reserve_s: noted_at(at),
            coalesces: sleeps && self.may_coalesce(mode),
            holds,
        }
    }

    /// Returns the latest of the times that the lists give; `None` if all have room at `at`. Where
    /// one of them has a digest for the message, the others neither hold nor drop it.
    fn capped(&self, at: Timestamp) -> Option<Capped<'_>> {
        let from_s = if at == self.now {
            judged_at(at)
        } else {
            noted_at(at)
        };
        let (mut latest, mut collecting) = (None, None);
        for (n, list) in self.lists.iter().enumerate() {
            let times = self.rows.times.get(n).copied().unwrap_or_default();
            let reserved = if self.attempts { &[] } else { times.reserved };
            let plan = list.caps.plan(times.sent, reserved, from_s, &self.zone);
            let Some(rule) = plan.rule.filter(|_| plan.at_s > from_s) else {
                continue;
            };
            let capped = Capped {
                at: time_of(plan.at_s),
                rule,
                over: &list.over,
            };
            if self.collector(capped.over).is_some() {
                keep_later(&mut collecting, capped);
            }
            keep_later(&mut latest, capped);
        }
        let is_refused = latest.is_some_and(|one| *one.over == OverCap::Refuse);
        collecting.filter(|_| !is_refused).or(latest)
    }

    /// Returns the type of digest that collects the message when it is over a cap with this rule.
    fn collector(&self, over: &OverCap) -> Option<&'a DigestType> {
        let OverCap::Digest(kind) = over else {
            return None;
        };
        let message = self.message;
        if self.attempts || message.origin != Origin::Sender || message.goes_alone() {
            return None;
        }
        let rules = self.policy.rules;
        let named = kind.as_deref().and_then(|name| rules.digest(name));
        named.or_else(|| rules.digest_of_template(message.template?))
    }

    /// Returns the plan of a message over a cap that does not wait for room.
    fn over(&self, capped: &Capped<'_>) -> Option<MessagePlan> {
        let rule = format!("{} {}", capped.rule.name, capped.rule);
        let category = self.policy.rules.category(self.message.category);
        // A digest stays open, whatever the rule says of messages.
        if self.message.origin == Origin::Digest {
            return None;
        }
        let ended = |rule| MessagePlan::Ended {
            gate: MessageGate::Caps,
            reason: UnsentReason::Capped,
            rule,
        };
        match capped.over {
            OverCap::Drop => Some(ended(rule)),
            OverCap::Refuse if self.attempts => Some(ended(rule)),
            OverCap::Refuse => Some(MessagePlan::Refused {
                rule,
                reset_at: capped.at,
            }),
            OverCap::Digest(_) | OverCap::Hold => match self.collector(capped.over) {
                Some(kind) => Some(MessagePlan::Collected {
                    digest: kind.name.clone(),
                    arrival: self.joins(kind),
                }),
                None => self.too_late(capped, category.valid_for),
            },
        }
    }

    /// Ends a message that a cap would hold for too long.
    fn too_late(&self, capped: &Capped<'_>, valid_for: SignedDuration) -> Option<MessagePlan> {
        // In whole seconds, as caps count: messages of one second fare alike.
        let waits_s = capped.at.as_second() - noted_at(self.message.accepted_at);
        let is_late = SignedDuration::from_secs(waits_s) > valid_for;
        is_late.then(|| MessagePlan::Ended {
            gate: MessageGate::Caps,
            reason: UnsentReason::Capped,
            rule: format!("{} {}", capped.rule.name, capped.rule),
        })
    }

    /// Returns the time at which the message is released of a crowd that is due at `at`.
    fn spread(&self, at: Timestamp) -> Timestamp {
        if self.attempts {
            return at;
        }
        let release = &self.policy.rules.release;
        let spread = release.spread(self.rows.held_with_it, self.rows.capacity_per_s);
        released_at(self.message, release, self.quiet(), at, spread)
    }
}

/// Returns the time at which a message is released of a crowd that is due at `at` and goes over
/// `spread`. An urgent one goes first, and so does one that would then be too late.
pub(super) fn released_at(
    message: &Candidate<'_>,
    release: &Release,
    quiet: &Quiet,
    at: Timestamp,
    spread: SignedDuration,
) -> Timestamp {
    let released = release.at(at, spread, &message.recipient, quiet);
    let is_late = message.deadline.is_some_and(|deadline| deadline < released);
    match message.priority < NORMAL || is_late {
        true => at,
        false => released,
    }
}

/// Keeps the later of two times.
fn keep_later<'a>(kept: &mut Option<Capped<'a>>, capped: Capped<'a>) {
    if kept.is_none_or(|one| capped.at > one.at) {
        *kept = Some(capped);
    }
}

/// Adds a hold, or moves the last one if it is at the same gate.
fn hold(holds: &mut Vec<GateHold>, gate: MessageGate, rule: String, until: Timestamp) {
    match holds.last_mut().filter(|last| last.gate == gate) {
        Some(last) => (last.rule, last.until) = (rule, until),
        None => holds.push(GateHold { gate, rule, until }),
    }
}

#[cfg(test)]
#[path = "gates_digest_tests.rs"]
mod digest_tests;
#[cfg(test)]
#[path = "gates_local_tests.rs"]
mod local_tests;
#[cfg(test)]
#[path = "gates_tests.rs"]
mod tests;
