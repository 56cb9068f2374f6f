//! The governor's journal: its decisions, and the state of every governor.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;

use super::read_error::ReadError;
use crate::governor::{Decision, GovernorView};
use crate::throttle;

/// The governor's decisions, read from its journal.
pub trait Decisions: Send + Sync + 'static {
    /// Returns the last decisions, newest first; those of all throttles if none is named.
    fn recent<'a>(
        &'a self,
        throttle: Option<&'a str>,
        limit: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>>;

    /// Returns the state of every governor, by throttle, in one read, because it is called each
    /// second.
    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorView>, ReadError>>;

    /// Returns the reason for the throttle's rate, in one sentence; `None` leaves the explanation
    /// to the knobs. Unless the caller `sees_all` tenants, what people and servers said of a
    /// throttle above, or of a pause of everything, is left out.
    fn why<'a>(
        &'a self,
        status: &'a throttle::Status,
        sees_all: bool,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>>;
}

/// An empty journal, for processes without a governor and for tests.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDecisions;

impl Decisions for NoDecisions {
    fn recent<'a>(
        &'a self,
        _: Option<&'a str>,
        _: i64,
    ) -> BoxFuture<'a, Result<Vec<Decision>, ReadError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn governors(&self) -> BoxFuture<'_, Result<BTreeMap<String, GovernorView>, ReadError>> {
        Box::pin(async { Ok(BTreeMap::new()) })
    }

    fn why<'a>(
        &'a self,
        _: &'a throttle::Status,
        _: bool,
    ) -> BoxFuture<'a, Result<Option<String>, ReadError>> {
        Box::pin(async { Ok(None) })
    }
}
