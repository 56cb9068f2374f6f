//! Throttles on a private Redis Cluster, with slots that move and primaries that die and hang under
//! load.

mod fixture;
mod primaries;
mod slots;
