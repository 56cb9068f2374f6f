//! Zones of stored profiles that are not in the time zone database of this process.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use serde_json::Value;

use crate::recipient::metrics::count_unknown_zone;

/// The most names in the log.
const LOGGED_MAX: usize = 1000;

/// The names that the log has: each once, because each message of a recipient reads its profile.
static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Counts a zone that is unknown here, and logs a new one.
pub(super) fn note_unknown_zone(zone: &Value) {
    count_unknown_zone();
    let Some(zone) = zone.as_str() else {
        return;
    };
    let mut logged = LOGGED.lock();
    if logged.len() < LOGGED_MAX && logged.insert(zone.to_owned()) {
        tracing::warn!(
            zone,
            "a profile names a time zone that is unknown here; the tenant's counts, or UTC"
        );
    }
}
