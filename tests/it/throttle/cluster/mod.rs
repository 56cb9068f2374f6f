//! Throttles on a Redis Cluster of a test's own, with slots that move and primaries that die and hang under load.

mod fixture;
mod primaries;
mod slots;
