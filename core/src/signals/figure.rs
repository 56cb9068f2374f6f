//! Figures of databases' own statistics that can be signals.

use serde_json::Value;

/// A figure of a cluster; of the nodes' values the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterFigure {
    /// The load average of the operating system over a minute.
    Load,
    /// The used share of the heap, 0 to 1.
    Heap,
    /// Requests that wait in the queue of the thread pool for writes.
    WriteQueue,
    /// Requests per second that this thread pool rejects, of all nodes together.
    Rejected,
}

impl ClusterFigure {
    /// The words of the figures.
    pub const WORDS: [(&str, Self); 4] = [
        ("load", Self::Load),
        ("heap", Self::Heap),
        ("write_queue", Self::WriteQueue),
        ("rejected", Self::Rejected),
    ];

    /// Returns the figure of a word.
    pub fn parse(word: &str) -> Option<Self> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, figure)| *figure)
    }

    /// Returns the figure of one node; `None` if the node does not report it.
    pub(super) fn of(self, node: &Value) -> Option<f64> {
        let at = |pointer: &str| node.pointer(pointer).and_then(Value::as_f64);
        // The thread pool is called `bulk` before version 6.3.
        let pool = |name: &str| {
            at(&format!("/thread_pool/write/{name}"))
                .or_else(|| at(&format!("/thread_pool/bulk/{name}")))
        };
        match self {
            // A list before version 2, and a number before version 5.
            Self::Load => at("/os/cpu/load_average/1m")
                .or_else(|| at("/os/load_average/0"))
                .or_else(|| at("/os/load_average")),
            Self::Heap => at("/jvm/mem/heap_used_percent").map(|percent| percent / 100.0),
            Self::WriteQueue => pool("queue"),
            Self::Rejected => pool("rejected"),
        }
    }
}

/// A figure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFigure {
    /// Operations that wait for their turn.
    Queue,
    /// The share of the cache that is modified and not written yet, 0 to 1; the server slows
    /// writers down from 0.05 and makes them wait from 0.2.
    CacheDirty,
    /// 1 while the secondaries lag so much that the server holds writes back, else 0.
    Lagged,
    /// Operations per second.
    Operations,
}

impl ServerFigure {
    /// The words of the figures.
    pub const WORDS: [(&str, Self); 4] = [
        ("queue", Self::Queue),
        ("cache_dirty", Self::CacheDirty),
        ("lagged", Self::Lagged),
        ("operations", Self::Operations),
    ];

    /// Returns the figure of a word.
    pub fn parse(word: &str) -> Option<Self> {
        let found = Self::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, figure)| *figure)
    }

    /// Returns the figure in an answer of `serverStatus`; `None` if the server does not report it.
    #[cfg_attr(not(feature = "mongodb"), allow(dead_code))]
    pub(super) fn of(self, status: &Value) -> Option<f64> {
        let at = |pointer: &str| status.pointer(pointer).and_then(Value::as_f64);
        let sum = |pointers: &[&str]| {
            let found: Vec<_> = pointers.iter().filter_map(|pointer| at(pointer)).collect();
            (!found.is_empty()).then(|| found.iter().sum::<f64>())
        };
        match self {
            // The first form is that of version 7 and newer.
            Self::Queue => sum(&[
                "/queues/execution/read/normalPriority/queueLength",
                "/queues/execution/write/normalPriority/queueLength",
            ])
            .or_else(|| at("/globalLock/currentQueue/total")),
            Self::CacheDirty => {
                let most = at("/wiredTiger/cache/maximum bytes configured")?;
                let dirty = at("/wiredTiger/cache/tracked dirty bytes in the cache")?;
                (most > 0.0).then(|| dirty / most)
            }
            Self::Lagged => {
                let lagged = status.pointer("/flowControl/isLagged")?.as_bool()?;
                Some(f64::from(u8::from(lagged)))
            }
            Self::Operations => {
                let counters = status["opcounters"].as_object()?;
                Some(counters.values().filter_map(Value::as_f64).sum())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_of_a_cluster_are_read_from_versions_old_and_new() {
        let new = json!({"os": {"cpu": {"load_average": {"1m": 1.5, "5m": 9.0}}},
            "jvm": {"mem": {"heap_used_percent": 42}}, "thread_pool": {"write": {"queue": 7, "rejected": 11}}});
        let version_2 = json!({"os": {"load_average": 0.75}, "thread_pool": {"bulk": {"queue": 3, "rejected": 5}}});
        let version_1 = json!({"os": {"load_average": [2.5, 0.3, 0.1]}, "jvm": {"mem": {"heap_used_percent": 8}}});

        use ClusterFigure::{Heap, Load, Rejected, WriteQueue};
        for (node, figure, expected) in [
            (&new, Load, Some(1.5)),
            (&new, Heap, Some(0.42)),
            (&new, WriteQueue, Some(7.0)),
            (&new, Rejected, Some(11.0)),
            (&version_2, Load, Some(0.75)),
            (&version_2, WriteQueue, Some(3.0)),
            (&version_2, Heap, None),
            (&version_1, Load, Some(2.5)),
            (&version_1, Heap, Some(0.08)),
        ] {
            assert_eq!(figure.of(node), expected, "{figure:?} of {node}");
        }
    }

    #[test]
    fn figures_of_a_server_are_read_from_versions_old_and_new() {
        use ServerFigure::{CacheDirty, Lagged, Operations, Queue};
        let status = json!({
            "globalLock": {"currentQueue": {"total": 7, "readers": 3, "writers": 4}},
            "flowControl": {"isLagged": true},
            "wiredTiger": {"cache": {"maximum bytes configured": 1000.0, "tracked dirty bytes in the cache": 50}},
            "opcounters": {"insert": 1, "query": 2, "command": 3},
        });
        let new = json!({"queues": {"execution": {
            "read": {"normalPriority": {"queueLength": 2}}, "write": {"normalPriority": {"queueLength": 5}}}},
            "globalLock": {"currentQueue": {"total": 99}}});
        for (status, figure, expected) in [
            (&status, Queue, Some(7.0)),
            (&new, Queue, Some(7.0)),
            (&status, CacheDirty, Some(0.05)),
            (&new, CacheDirty, None),
            (&status, Lagged, Some(1.0)),
            (&new, Lagged, None),
            (&status, Operations, Some(6.0)),
        ] {
            assert_eq!(figure.of(status), expected, "{figure:?} of {status}");
        }
    }
}
