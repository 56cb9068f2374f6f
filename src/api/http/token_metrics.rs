//! Requests for tokens, counted by throttle and, where the settings ask for it, by key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use crate::input::patterns::allows;

/// The most throttles with their own series in one process, first come first served.
const THROTTLES_MAX: usize = 200;
/// The most keys of a throttle with their own series.
const KEYS_MAX: usize = 100;
/// The label of the throttles and keys beyond them.
const OTHER: &str = "other";

/// Requests for tokens by throttle and answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::api) struct TokenLabels {
    pub(in crate::api) throttle: String,
    pub(in crate::api) answer: &'static str,
}

/// Requests for tokens by key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(in crate::api) struct KeyLabels {
    pub(in crate::api) throttle: String,
    pub(in crate::api) key: String,
    pub(in crate::api) answer: &'static str,
}

/// Counters of requests for tokens. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct TokenMetrics {
    pub(in crate::api) requests: Family<TokenLabels, Counter>,
    pub(in crate::api) key_requests: Family<KeyLabels, Counter>,
    /// The throttles with series, each with its keys that have some.
    labels: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
    key_metrics: Arc<[String]>,
}

impl TokenMetrics {
    /// Creates counters; `key_metrics` names the throttles whose keys are counted, and a name that
    /// ends with `*` stands for all that begin like it.
    pub fn new(key_metrics: Arc<[String]>) -> Self {
        Self {
            key_metrics,
            ..Self::default()
        }
    }

    /// Counts a request for tokens of a throttle that exists.
    pub fn note(&self, throttle: &str, key: &str, is_allowed: bool) {
        self.count(throttle, key, is_allowed, true);
    }

    /// Counts a request that the store did not answer. Whether the throttle exists is unknown, and
    /// clients choose names, so it makes no series.
    pub fn note_unanswered(&self, throttle: &str, key: &str, is_allowed: bool) {
        self.count(throttle, key, is_allowed, false);
    }

    fn count(&self, throttle: &str, key: &str, is_allowed: bool, exists: bool) {
        let answer = if is_allowed { "allowed" } else { "refused" };
        let counts_keys = allows(&self.key_metrics, throttle);
        let (throttle, key) = self.labels(throttle, key, counts_keys, exists);
        let labels = TokenLabels {
            throttle: throttle.clone(),
            answer,
        };
        self.requests.get_or_create(&labels).inc();
        if counts_keys {
            let labels = KeyLabels {
                throttle,
                key,
                answer,
            };
            self.key_requests.get_or_create(&labels).inc();
        }
    }

    /// Returns the labels of a throttle and its key; their number is limited.
    fn labels(
        &self,
        throttle: &str,
        key: &str,
        counts_keys: bool,
        exists: bool,
    ) -> (String, String) {
        let mut known = self.labels.lock();
        if !known.contains_key(throttle) && (!exists || known.len() >= THROTTLES_MAX) {
            return (OTHER.to_owned(), OTHER.to_owned());
        }
        let keys = known.entry(throttle.to_owned()).or_default();
        if !counts_keys || keys.contains(key) || keys.len() < KEYS_MAX {
            if counts_keys {
                keys.insert(key.to_owned());
            }
            return (throttle.to_owned(), key.to_owned());
        }
        (throttle.to_owned(), OTHER.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttles_and_keys_are_counted_up_to_a_bound_and_keys_only_where_asked_for() {
        let metrics = TokenMetrics::new(Arc::from(["limit:*".to_owned()]));
        for n in 0..150 {
            metrics.note("limit:lead", &format!("k{n}"), n % 2 == 0);
        }
        for n in 0..300 {
            metrics.note_unanswered(&format!("guessed{n}"), "k", false);
        }
        for n in 0..300 {
            metrics.note(&format!("t{n}"), "secret", true);
        }
        metrics.note_unanswered("t0", "secret", false);

        let of = |throttle: &str, answer| {
            let throttle = throttle.to_owned();
            metrics
                .requests
                .get_or_create(&TokenLabels { throttle, answer })
                .get()
        };
        assert_eq!(
            (of("limit:lead", "allowed"), of("limit:lead", "refused")),
            (75, 75)
        );
        assert_eq!((of("t0", "allowed"), of("t299", "allowed")), (1, 0));
        assert_eq!(of(OTHER, "allowed"), 300 - 199);
        assert_eq!((of("t0", "refused"), of(OTHER, "refused")), (1, 300));
        let key = |key: &str, answer| {
            let (throttle, key) = ("limit:lead".to_owned(), key.to_owned());
            let labels = KeyLabels {
                throttle,
                key,
                answer,
            };
            metrics.key_requests.get_or_create(&labels).get()
        };
        assert_eq!((key("k0", "allowed"), key("k1", "refused")), (1, 1));
        assert_eq!(key(OTHER, "allowed") + key(OTHER, "refused"), 50);
        assert_eq!(key("secret", "allowed"), 0);
    }
}
