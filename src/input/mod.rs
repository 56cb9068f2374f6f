//! Reading of all input: arguments of jobs, bodies and queries of requests, and settings.

#[cfg(test)]
pub(crate) mod pinned;
