//! The kinds that remote workers run, as far as this process needs them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use crate::jobs::{Handler, Issue, Kinds, Outcome, PreparedJob, Tuning};

/// Stands for a handler in another program. It has the settings of its kind and never runs.
struct RemoteKind;

impl Handler for RemoteKind {
    fn prepare(&self, _: &Value) -> Result<PreparedJob<'_>, Vec<Issue>> {
        Ok(PreparedJob::new(|_, _| async { Outcome::HandedBack }))
    }

    fn timeout(&self) -> Option<Duration> {
        None
    }
}

/// Returns these kinds with their settings.
pub(super) fn kinds(names: &[String], tunings: &BTreeMap<String, Tuning>) -> Kinds {
    let mut kinds = Kinds::default();
    for name in names {
        kinds.register(name.as_str(), RemoteKind);
        if let Some(tuning) = tunings.get(name) {
            kinds.tune(name, tuning);
        }
    }
    kinds
}
