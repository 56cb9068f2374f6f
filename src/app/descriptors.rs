//! The limit on open files and sockets of the process, and the share of it for connections from
//! outside.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one, as suits a process with many connections. Returns the
/// limit in force.
pub(super) fn raise_limit() -> u64 {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        // If the system refuses, the soft limit stays.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns the limit that a process of ours has after it raised it.
#[cfg(feature = "cli")]
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)
}

/// Returns the number of connections that the API may have open: the setting, but at most half of
/// the process's limit.
#[cfg(feature = "api")]
pub(super) fn connections(set: usize, limit: u64) -> usize {
    set.min(usize::try_from(limit / 2).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_stays_with_the_process() {
        assert_eq!(connections(4096, 256), 128);
        assert_eq!(connections(4096, u64::MAX), 4096);
        assert_eq!(connections(100, 1024), 100);
    }

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = raise_limit();
        assert_eq!(
            Some(raised),
            getrlimit(Resource::Nofile).maximum.or(Some(raised))
        );
    }
}
