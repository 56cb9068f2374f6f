//! Two governors on one resource: one leads, the others follow.
//!
//! Governors that control the same signal at the same setpoint both react to the same load:
//! together they have twice the gain, and each takes the other's work for a varying background. So
//! for each such signal one leads, and a follower **keeps its share**: instead of the rate that its
//! own controller asks for, it asks for the leader's rate times the ratio of the two when it began
//! to follow. Their throughputs are then in proportion, the leader's model sees both as its own
//! work, and the loop has the gain of one. Everything else of a follower stays its own: other
//! signals, bounds, manual rates, the breaker (which restarts after the leader's).
//!
//! The leader is the first by name of those governors that the signal really limits: at work, and
//! not at a bound of their own. It loses the lead after [`CONFIRMING_TICKS`] consecutive ticks in
//! which something else limited it. If the signal limits none of them, the first by name leads.
//!
//! The same signal at *another* setpoint is not a conflict: the throttle with the lower setpoint
//! gives way first, on purpose.

use std::collections::{BTreeMap, BTreeSet};

use crate::governor::explain::format::number;
use crate::governor::policy::{Extractor, Policy, SignalPolicy, SignalSource};

/// The number of consecutive ticks before a change counts.
const CONFIRMING_TICKS: u32 = 3;
/// The number of ticks without a decision after which a governor is not at work.
const AWAY_TICKS: f64 = 3.0;
/// The shortest time without a decision after which a governor is not at work, in seconds.
const AWAY_S: f64 = 15.0;
/// The relative difference below which setpoints count as the same.
const SAME_SETPOINT: f64 = 0.01;

/// The role of a governor among those that control the same signals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SharingRole {
    /// The other governors at work, by this one's signal.
    pub with: BTreeMap<String, Vec<String>>,
    /// The leader, by this one's signal, if it is another governor.
    pub leaders: BTreeMap<String, Leader>,
}

/// The current state of the governor that leads for a signal.
#[derive(Clone, Debug, PartialEq)]
pub struct Leader {
    /// The name of its throttle.
    pub throttle: String,
    /// The rate in force, in jobs per second or slots.
    pub rps: f64,
    /// True if its breaker is open.
    pub is_open: bool,
    /// The time at which a person set its rate, 0 without a manual rate; a follower does not follow
    /// a manual rate.
    pub held_from: f64,
}

/// The ratio that a follower keeps to its leader.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FollowerRatio {
    /// The throttle of the leader.
    pub throttle: String,
    /// The leader's [`Leader::held_from`] at the creation of the link.
    pub held_from: f64,
    /// The logarithm of the follower's rate over the leader's.
    pub ln_ratio: f64,
}

/// The governors that share a signal with another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sharing {
    members: BTreeMap<String, Member>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Member {
    /// The other governors and their own name for the signal, by this one's signal.
    with: BTreeMap<String, BTreeMap<String, String>>,
    tick_s: f64,
    post: Option<SharedTick>,
    /// True if a shared signal limits it.
    is_held: bool,
    /// The number of consecutive ticks that contradicted `is_held`.
    otherwise: u32,
}

/// The newest tick of a governor, as the others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedTick {
    /// The time in unix seconds.
    pub at: f64,
    /// The rate in force, in jobs per second or slots.
    pub rps: f64,
    /// True if its breaker is open.
    pub is_open: bool,
    /// The time at which a person set its rate, 0 without a manual rate.
    pub held_from: f64,
    /// The signal that limits it; `None` at a bound of its own.
    pub limited_by: Option<String>,
}

impl SharingRole {
    /// Returns true if another governor leads for `signal` and its breaker is open.
    pub(in crate::governor) fn leader_is_open(&self, signal: &str) -> bool {
        self.leaders
            .get(signal)
            .is_some_and(|leader| leader.is_open)
    }
}

impl Sharing {
    /// Finds the throttles that share signals, by the policies alone.
    pub fn of<'a>(policies: impl IntoIterator<Item = (&'a str, &'a Policy)>) -> Self {
        let all: Vec<(&str, &Policy)> = policies.into_iter().collect();
        let mut members: BTreeMap<String, Member> = BTreeMap::new();
        for (n, (name, policy)) in all.iter().enumerate() {
            for (other, theirs) in all
                .iter()
                .enumerate()
                .filter(|(m, _)| *m != n)
                .map(|(_, one)| one)
            {
                for signal in &policy.signals {
                    if let Some(same) = theirs.signals.iter().find(|theirs| is_same(signal, theirs))
                    {
                        let member = members.entry((*name).to_owned()).or_default();
                        member.tick_s = policy.law.tick_s;
                        member
                            .with
                            .entry(signal.name.clone())
                            .or_default()
                            .insert((*other).to_owned(), same.name.clone());
                    }
                }
            }
        }
        Self { members }
    }

    /// Returns every throttle that shares a signal, with the signal and the other throttles, for
    /// the log at start.
    pub fn shared_signals(&self) -> impl Iterator<Item = (&str, &str, Vec<&str>)> {
        self.members.iter().flat_map(|(name, member)| {
            member.with.iter().map(move |(signal, with)| {
                (
                    name.as_str(),
                    signal.as_str(),
                    with.keys().map(String::as_str).collect(),
                )
            })
        })
    }

    /// Returns the role of `throttle` at `now`; `None` if it shares nothing with a governor at
    /// work.
    pub fn role(&self, throttle: &str, now: f64) -> Option<SharingRole> {
        let own = self.members.get(throttle)?;
        let mut role = SharingRole::default();
        for (signal, with) in &own.with {
            let at_work: Vec<&String> = with
                .keys()
                .filter(|other| self.members.get(*other).is_some_and(|m| m.is_at_work(now)))
                .collect();
            if at_work.is_empty() {
                continue;
            }
            let rank = |name: &str| {
                (
                    !self.members.get(name).is_some_and(|m| m.is_held),
                    name.to_owned(),
                )
            };
            let first = at_work
                .iter()
                .map(|name| name.as_str())
                .chain([throttle])
                .min_by_key(|name| rank(name));
            if let Some(leader) = first.filter(|name| *name != throttle)
                && let Some(post) = self.members.get(leader).and_then(|m| m.post.as_ref())
            {
                let SharedTick {
                    rps,
                    is_open,
                    held_from,
                    ..
                } = *post;
                role.leaders.insert(
                    signal.clone(),
                    Leader {
                        throttle: leader.to_owned(),
                        rps,
                        is_open,
                        held_from,
                    },
                );
            }
            role.with
                .insert(signal.clone(), at_work.into_iter().cloned().collect());
        }
        (!role.with.is_empty()).then_some(role)
    }

    /// Records the state of `throttle` after its tick at `now`.
    pub fn post(&mut self, throttle: &str, tick: SharedTick) {
        let Some(member) = self.members.get_mut(throttle) else {
            return;
        };
        let patience = if member.is_at_work(tick.at) {
            CONFIRMING_TICKS
        } else {
            1
        };
        let limited_by = tick.limited_by.as_ref();
        let is_held = limited_by.is_some_and(|signal| member.with.contains_key(signal));
        member.otherwise = if is_held == member.is_held {
            0
        } else {
            member.otherwise + 1
        };
        if member.otherwise >= patience {
            (member.is_held, member.otherwise) = (is_held, 0);
        }
        member.post = Some(tick);
    }

    /// Records that `throttle` is not governed now: a person controls it, or it only follows.
    pub fn leave(&mut self, throttle: &str) {
        if let Some(member) = self.members.get_mut(throttle) {
            (member.post, member.is_held, member.otherwise) = (None, false, 0);
        }
    }
}

impl Member {
    fn is_at_work(&self, now: f64) -> bool {
        self.post
            .as_ref()
            .is_some_and(|post| now - post.at <= (AWAY_TICKS * self.tick_s).max(AWAY_S))
    }
}

/// Returns true if both measure the same thing and have the same setpoint.
fn is_same(a: &SignalPolicy, b: &SignalPolicy) -> bool {
    let near = (a.setpoint - b.setpoint).abs() <= SAME_SETPOINT * a.setpoint.max(b.setpoint);
    near && !resources(a).is_disjoint(&resources(b))
}

/// Returns the resources that a signal measures, as texts that are equal for the same resource; a
/// throttle's own feedback is never shared.
fn resources(signal: &SignalPolicy) -> BTreeSet<String> {
    let mut words = BTreeSet::new();
    let server = signal.server.as_deref().unwrap_or_default();
    match signal.source {
        SignalSource::Prometheus
        | SignalSource::Postgres
        | SignalSource::Elasticsearch
        | SignalSource::Mongodb => {
            _ = words.insert(format!("query {server} {}", without_spaces(&signal.query)))
        }
        SignalSource::Depth => _ = words.insert(format!("depth {}", signal.query)),
        SignalSource::Age => _ = words.insert(format!("age {}", signal.query)),
        // The page is the signal's probe, below; a throttle's own feedback is never shared.
        SignalSource::Http | SignalSource::Feedback | SignalSource::Complaints => {}
    }
    if let Some(look) = &signal.probe {
        let place = match &look.place {
            Extractor::Metric(metric) => without_spaces(metric),
            Extractor::Pointer(pointer) => pointer.clone(),
        };
        words.insert(format!("probe {} {place}", look.url));
    }
    words
}

/// Returns the query without insignificant spaces, those outside quotes.
fn without_spaces(query: &str) -> String {
    let mut quote = None;
    let keep = |c: &char| {
        match quote {
            Some(open) if open == *c => quote = None,
            None if ['"', '\'', '`'].contains(c) => quote = Some(*c),
            _ => {}
        }
        quote.is_some() || !c.is_whitespace()
    };
    query.chars().filter(keep).collect()
}

/// Returns the sentence for a person about this role.
pub(super) fn sentence(
    role: Option<&SharingRole>,
    links: &BTreeMap<String, FollowerRatio>,
) -> Option<String> {
    let each = role?.with.iter().map(|(signal, with)| {
        let part = "give one of them another signal, or another setpoint to make it yield first";
        match role?.leaders.get(signal) {
            Some(leader) => {
                let ratio = links
                    .get(signal)
                    .map_or(1.0, |link| link.ln_ratio.exp().min(1e12));
                let name = &leader.throttle;
                Some(format!(
                    "{signal} also governs {name}, so this throttle follows at {} x the rate of \
                     {name}; {part}",
                    number(ratio)
                ))
            }
            None => Some(format!(
                "{signal} also governs {}, which follow this throttle's rate in proportion; {part}",
                with.join(", ")
            )),
        }
    });
    each.collect::<Option<Vec<_>>>().map(|each| each.join("; "))
}

/// Returns the log work rate that a follower asks for instead of its `own`: the leader's times the
/// ratio that it keeps. `in_force` is the follower's log work rate in force, `ln_w` the logarithm
/// of the work of its jobs.
pub(in crate::governor) fn followed(
    links: &mut BTreeMap<String, FollowerRatio>,
    role: Option<&SharingRole>,
    signal: &str,
    own: f64,
    in_force: f64,
    ln_w: f64,
) -> f64 {
    let Some(leader) = role.and_then(|role| role.leaders.get(signal)) else {
        links.remove(signal);
        return own;
    };
    // A leader that is stopped, or has no limit, has no rate to follow.
    if leader.is_open || leader.rps <= 0.0 || !leader.rps.is_finite() {
        return own.min(in_force);
    }
    let theirs = leader.rps.ln();
    let known = links
        .get(signal)
        .filter(|link| link.throttle == leader.throttle && link.held_from == leader.held_from);
    let ln_ratio = known.map_or(in_force - ln_w - theirs, |link| link.ln_ratio);
    if !ln_ratio.is_finite() {
        return own;
    }
    let link = FollowerRatio {
        throttle: leader.throttle.clone(),
        held_from: leader.held_from,
        ln_ratio,
    };
    links.insert(signal.to_owned(), link);
    theirs + ln_ratio + ln_w
}
