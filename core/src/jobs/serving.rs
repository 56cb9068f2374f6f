//! The jobs that each worker serves, the differences between workers, and jobs that nobody serves.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;

use super::secret::ANY_KEY;
use crate::input::patterns::allows;
use crate::throttle::is_admission;

/// The most workers that one sentence names.
const MAX_WORKERS_NAMED: usize = 5;

/// The most differing settings that a refusal names.
const MAX_SETTINGS_NAMED: usize = 10;

/// The jobs that a process is set to serve, as patterns; an empty list stands for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Serves {
    /// The throttles.
    pub throttles: Vec<String>,
    /// The kinds.
    pub kinds: Vec<String>,
    /// The pools of accounts.
    pub pools: Vec<String>,
}

impl Serves {
    /// Returns true if the process serves jobs of this throttle.
    pub fn has_throttle(&self, throttle: &str) -> bool {
        is_served(&self.throttles, throttle)
    }
}

/// Returns true if a list of patterns, in which an empty one stands for all, contains the name.
pub fn is_served(patterns: &[String], name: &str) -> bool {
    patterns.is_empty() || allows(patterns, name)
}

/// Returns true if a live worker serves jobs of this throttle. Messages that wait for admission are
/// moved by every worker.
pub fn serves_throttle(live: &[WorkerCapabilities], throttle: &str) -> bool {
    live.iter().any(|worker| worker.has_throttle(throttle))
        || !live.is_empty() && is_admission(throttle)
}

/// Settings that all processes must share: by subject, such as `pool sms`, and by field, with a
/// digest of the value.
pub type SharedSettings = BTreeMap<String, BTreeMap<String, String>>;

/// A live worker, with its capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCapabilities {
    /// The id of the worker.
    pub id: i32,
    /// The name of the worker, for people.
    pub name: String,
    /// False if its last heartbeat is some seconds old, although its time to live has not passed.
    pub is_fresh: bool,
    /// True for a broker, which claims for workers in other programs.
    pub is_broker: bool,
    /// The throttles that the worker is set to serve, as patterns; empty for all.
    pub throttles: Vec<String>,
    /// The kinds that the worker runs.
    pub kinds: BTreeSet<String>,
    /// The capabilities besides the kinds, each with a digest of the settings behind it.
    pub capabilities: BTreeMap<String, String>,
}

impl WorkerCapabilities {
    /// Returns true if the worker serves jobs of this throttle.
    pub fn has_throttle(&self, throttle: &str) -> bool {
        is_served(&self.throttles, throttle)
    }

    /// Returns true if the worker runs jobs of this throttle and kind that need these capabilities.
    pub fn runs(&self, throttle: &str, kind: &str, needs: &[String]) -> bool {
        self.has_throttle(throttle)
            && self.kinds.contains(kind)
            && needs
                .iter()
                .all(|need| self.capabilities.contains_key(need))
    }

    /// Returns true if another worker has a kind or a capability that this one does not have.
    pub fn lacks_of(&self, other: &WorkerCapabilities) -> bool {
        let has = |one| self.capabilities.contains_key(one);
        !other.kinds.is_subset(&self.kinds) || !other.capabilities.keys().all(has)
    }

    /// Returns true if no live worker has a kind or a capability that this one does not have.
    pub fn has_all(&self, live: &[WorkerCapabilities]) -> bool {
        !live.iter().any(|other| self.lacks_of(other))
    }

    /// Returns true if no live worker serves a job that this one does not serve.
    pub fn is_whole(&self, live: &[WorkerCapabilities]) -> bool {
        self.throttles.is_empty() && self.has_all(live)
    }

    /// Returns the rank of this worker among the live workers that serve exactly the same, and
    /// their number.
    pub fn rank(&self, live: &[WorkerCapabilities]) -> (u32, u32) {
        let serves_the_same = |other: &&WorkerCapabilities| {
            other.kinds == self.kinds
                && other.throttles == self.throttles
                && other.capabilities.keys().eq(self.capabilities.keys())
        };
        let others = live
            .iter()
            .filter(|other| other.id != self.id && other.is_fresh)
            .filter(serves_the_same);
        let (mut before, mut all) = (0, 1);
        for other in others {
            all += 1;
            before += u32::from(other.id < self.id);
        }
        (before, all)
    }

    fn has(&self, thing: &Thing<'_>) -> bool {
        match thing {
            Thing::Kind(kind) => self.kinds.contains(*kind),
            Thing::Capability(capability) => self.capabilities.contains_key(*capability),
        }
    }

    fn called(&self) -> String {
        format!("{} ({})", self.name, self.id)
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Thing<'a> {
    Capability(&'a str),
    Kind(&'a str),
}

/// Returns the differences between live workers in the jobs that they run, one sentence each.
///
/// A job waits for a worker that can run it. Brokers are left out, because they serve what other
/// programs ask for.
pub fn differences(all_workers: &[WorkerCapabilities]) -> Vec<String> {
    let workers: Vec<&WorkerCapabilities> = all_workers
        .iter()
        .filter(|worker| !worker.is_broker)
        .collect();
    let kinds = workers
        .iter()
        .flat_map(|worker| worker.kinds.iter().map(|kind| Thing::Kind(kind)));
    let capabilities = workers.iter().flat_map(|worker| {
        let keys = worker.capabilities.keys();
        keys.map(|capability| Thing::Capability(capability))
    });
    let all: BTreeSet<Thing<'_>> = kinds.chain(capabilities).collect();
    let mut answer = Vec::new();
    for one in &all {
        let shown = match one {
            Thing::Kind(kind) => format!("the kind {kind}"),
            Thing::Capability(capability) => (*capability).to_owned(),
        };
        let (with, without): (Vec<&WorkerCapabilities>, Vec<&WorkerCapabilities>) =
            workers.iter().copied().partition(|worker| worker.has(one));
        if !without.is_empty() {
            answer.push(format!(
                "{} of {} workers serve {shown}; not served by {}",
                with.len(),
                workers.len(),
                named(&without)
            ));
        }
        let Thing::Capability(capability) = one else {
            continue;
        };
        let mut digests: BTreeMap<&str, Vec<&WorkerCapabilities>> = BTreeMap::new();
        for worker in with {
            let digest = &worker.capabilities[*capability];
            digests.entry(digest).or_default().push(worker);
        }
        if digests.len() > 1 {
            let groups: Vec<String> = digests.values().map(|group| named(group)).collect();
            answer.push(format!(
                "the settings of {shown} differ between {}",
                groups.join(" and ")
            ));
        }
    }
    let (all, limited): (Vec<&WorkerCapabilities>, Vec<&WorkerCapabilities>) = workers
        .iter()
        .copied()
        .partition(|worker| worker.throttles.is_empty());
    if !all.is_empty() {
        for worker in limited {
            let throttles = worker.throttles.join(", ");
            answer.push(format!(
                "{} serves only the throttles {throttles}",
                worker.called()
            ));
        }
    }
    answer
}

fn named(workers: &[&WorkerCapabilities]) -> String {
    let names: Vec<String> = workers
        .iter()
        .take(MAX_WORKERS_NAMED)
        .map(|worker| worker.called())
        .collect();
    let more = workers.len().saturating_sub(MAX_WORKERS_NAMED);
    if more > 0 {
        format!("{} and {more} more", names.join(", "))
    } else {
        names.join(", ")
    }
}

/// Returns the settings of which a live worker has another value than this process, one phrase
/// each; values are never shown.
pub fn differing_settings(
    own: &SharedSettings,
    others: &[(String, String, BTreeMap<String, String>)],
) -> Vec<String> {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (worker, subject, theirs) in others {
        let Some(ours) = own.get(subject) else {
            continue;
        };
        // A field that one of them does not know is one of another version.
        for (field, own) in ours {
            if theirs.get(field).is_some_and(|their| their != own) {
                let what = format!("{field} of {subject}");
                found.entry(what).or_default().insert(worker);
            }
        }
    }
    let more = found.len().saturating_sub(MAX_SETTINGS_NAMED);
    let mut phrases: Vec<String> = found
        .into_iter()
        .take(MAX_SETTINGS_NAMED)
        .map(|(what, workers)| {
            let mut names: Vec<&str> = workers.iter().copied().take(MAX_WORKERS_NAMED).collect();
            if workers.len() > MAX_WORKERS_NAMED {
                names.push("others");
            }
            format!("{what} differs from worker {}", names.join(", "))
        })
        .collect();
    if more > 0 {
        phrases.push(format!("and {more} more"));
    }
    phrases
}

/// Ready jobs that no live worker serves.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "api", derive(utoipa::ToSchema))]
pub struct UnservedJobs {
    /// The throttle of the jobs.
    #[cfg_attr(feature = "api", schema(example = "sms"))]
    pub throttle: String,
    /// Their kind; absent if no live worker serves the throttle, whatever the kind.
    #[cfg_attr(feature = "api", schema(example = "notification"))]
    pub kind: Option<String>,
    /// The capabilities that they need besides the kind.
    #[cfg_attr(feature = "api", schema(example = json!(["channel sms"])))]
    pub needs: Vec<String>,
    /// Their number, when they were last counted.
    pub jobs: i64,
    /// The time since which the oldest of them exists.
    pub since: Option<Timestamp>,
    /// The remedy, in one sentence.
    #[cfg_attr(
        feature = "api",
        schema(
            example = "no live worker serves channel sms; add [pools.<name>] to the settings of a worker"
        )
    )]
    pub remedy: String,
}

/// Returns the remedy for jobs that no live worker serves, in one sentence.
pub fn remedy(
    live: &[WorkerCapabilities],
    throttle: &str,
    kind: Option<&str>,
    needs: &[String],
) -> String {
    if live.is_empty() {
        return "no worker is live; start one".to_owned();
    }
    let Some(kind) = kind.filter(|_| live.iter().any(|worker| worker.has_throttle(throttle)))
    else {
        return format!(
            "no live worker serves the throttle {throttle}; start one without --throttles, or with a pattern that stands for it"
        );
    };
    if !live.iter().any(|worker| worker.kinds.contains(kind)) {
        return format!("no live worker serves the kind {kind}; start a worker that does");
    }
    let lacks = |need: &&String| {
        let mut all = live.iter();
        !all.any(|worker| worker.capabilities.contains_key(*need))
    };
    let Some(need) = needs.iter().find(lacks) else {
        let all = [
            format!("the kind {kind}"),
            format!("the throttle {throttle}"),
        ];
        let all: Vec<String> = all.into_iter().chain(needs.iter().cloned()).collect();
        return format!("no live worker serves {} together", all.join(", "));
    };
    let add = match need.split(' ').next() {
        Some("channel") => {
            "add [pools.<name>] to the settings of a worker, or name its pool with --pools"
        }
        Some("secret") => "set the variable of that secret for a worker",
        Some("secret-key") if need == ANY_KEY => {
            "set FLYBALL_SECRET_KEYS of a worker to what flyball secret-key prints"
        }
        Some("secret-key") => "add that key to FLYBALL_SECRET_KEYS of a worker",
        Some("source" | "sink") => "add it to the settings of a worker",
        _ => "start a worker that does",
    };
    format!("no live worker serves {need}; {add}")
}

#[cfg(test)]
#[path = "serving_tests.rs"]
mod tests;
