//! Capabilities of the workers, and their differences. Pure.

use std::collections::{BTreeMap, BTreeSet};

/// The beginning of the text recorded on a job that a worker could not run.
const NOT_SERVED: &str = "this worker does not serve ";

/// The end of the text recorded on a job that a worker could not run.
const WAITS: &str = "; waiting for one that does";

/// The most workers that one sentence names.
const MAX_WORKERS_NAMED: usize = 5;

/// A live worker, with its capabilities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerCapabilities {
    /// The id of the worker.
    pub id: i32,
    /// The name of the worker, for people.
    pub name: String,
    /// The kinds that the worker runs.
    pub kinds: BTreeSet<String>,
    /// The capabilities besides the kinds, each with a digest of the settings behind it.
    pub capabilities: BTreeMap<String, String>,
}

impl WorkerCapabilities {
    /// Returns true if the worker runs jobs that need this capability, named as in [`not_served`].
    pub fn serves(&self, need: &str) -> bool {
        self.capabilities.contains_key(need)
            || need
                .strip_prefix("the kind ")
                .is_some_and(|kind| self.kinds.contains(kind))
    }

    fn called(&self) -> String {
        format!("{} ({})", self.name, self.id)
    }
}

/// Returns the text recorded on a job that a worker could not run.
pub fn not_served(need: &str) -> String {
    format!("{NOT_SERVED}{need}{WAITS}")
}

/// Returns the capability that a job lacked, read from the recorded text.
pub fn need_of(kept: &str) -> Option<&str> {
    kept.strip_prefix(NOT_SERVED)?.strip_suffix(WAITS)
}

/// Returns the differences between live workers in the jobs that they run, one sentence each.
///
/// A job goes to a worker that can run it, but later than it might.
pub fn differences(workers: &[WorkerCapabilities]) -> Vec<String> {
    let kinds = workers
        .iter()
        .flat_map(|worker| &worker.kinds)
        .map(|kind| format!("the kind {kind}"));
    let capabilities = workers
        .iter()
        .flat_map(|worker| worker.capabilities.keys().cloned());
    let all: BTreeSet<String> = kinds.chain(capabilities).collect();
    let mut answer = Vec::new();
    for one in &all {
        let (with, without): (Vec<&WorkerCapabilities>, Vec<&WorkerCapabilities>) =
            workers.iter().partition(|worker| worker.serves(one));
        if !without.is_empty() {
            answer.push(format!(
                "{} of {} workers serve {one}; not served by {}",
                with.len(),
                workers.len(),
                named(&without)
            ));
        }
        let mut digests: BTreeMap<&str, Vec<&WorkerCapabilities>> = BTreeMap::new();
        for worker in with {
            if let Some(digest) = worker.capabilities.get(one) {
                digests.entry(digest).or_default().push(worker);
            }
        }
        if digests.len() > 1 {
            let groups: Vec<String> = digests.values().map(|group| named(group)).collect();
            answer.push(format!(
                "the settings of {one} differ between {}",
                groups.join(" and ")
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

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(id: i32, kinds: &[&str], capabilities: &[(&str, &str)]) -> WorkerCapabilities {
        let capabilities = capabilities
            .iter()
            .map(|(what, digest)| ((*what).to_owned(), (*digest).to_owned()))
            .collect();
        WorkerCapabilities {
            id,
            name: "w".into(),
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            capabilities,
        }
    }

    #[test]
    fn workers_that_can_run_the_same_do_not_differ() {
        let same = |id| worker(id, &["http", "notification"], &[("channel sms", "a1")]);

        assert_eq!(differences(&[same(1), same(2)]), Vec::<String>::new());
        assert_eq!(differences(&[same(1)]), Vec::<String>::new());
    }

    #[test]
    fn a_kind_or_a_channel_that_one_lacks_and_settings_that_differ_are_reported_with_who() {
        let workers = [
            worker(1, &["http", "mail"], &[("channel sms", "a1")]),
            worker(2, &["http"], &[]),
            worker(3, &["http", "mail"], &[("channel sms", "b2")]),
        ];

        assert_eq!(
            differences(&workers),
            [
                "2 of 3 workers serve channel sms; not served by w (2)",
                "the settings of channel sms differ between w (1) and w (3)",
                "2 of 3 workers serve the kind mail; not served by w (2)",
            ]
        );
    }

    #[test]
    fn what_a_job_lacked_is_read_from_what_was_kept_of_it() {
        assert_eq!(need_of(&not_served("channel sms")), Some("channel sms"));
        assert_eq!(need_of("500 Internal Server Error"), None);
    }
}
