//! Maps and sets of ids. Their hash is seeded, and several times cheaper than that of the standard
//! library: a worker looks up each job some ten times.

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;

/// A map by ids, of lanes unless `K` says otherwise.
pub(super) type IdMap<V, K = i64> = HashMap<K, V, RandomState>;

/// A set of the ids of lanes.
pub(super) type IdSet = HashSet<i64, RandomState>;
