//! What every change of many jobs shares: how far it goes, who signs, and what it answers.

use axum::extract::Request;
use serde::Serialize;
use serde_json::Value;

use super::auth::Caller;
use super::body;
use super::fields::{Errors, Fields};
use super::problem::{Code, Problem};
use super::query::Query;
use crate::jobs::{BATCH_JOBS_MAX, Count, Signed, Walk, Walked};

/// Jobs that one request changes where it does not say how many.
const JOBS_DEFAULT: i64 = 1000;
/// The longest place to go on from, in bytes.
pub(super) const START_BYTES_MAX: usize = 100;

/// The longest name of who asks, in bytes.
pub const BY_BYTES_MAX: usize = 100;
/// The longest reason, in bytes.
pub const WHY_BYTES_MAX: usize = 1000;

/// The fields of every change of many jobs.
pub const FIELDS: [&str; 5] = ["limit", "dry_run", "start", "by", "why"];

/// What a change of many jobs did, or would do.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Changed {
    /// Jobs that were changed; with `dry_run` those that would be, at most 10,000.
    jobs: i64,
    /// Running jobs that were asked to stop; their handlers stop soon. With `dry_run` they are among `jobs`.
    requested: i64,
    /// True if nothing was changed.
    dry_run: bool,
    /// True if there may be more.
    more: bool,
    /// `start` of the next request, where there may be more.
    next: Option<String>,
}

impl From<Walked> for Changed {
    fn from(walked: Walked) -> Self {
        let Walked {
            jobs,
            requested,
            next,
        } = walked;
        Self {
            jobs,
            requested,
            dry_run: false,
            more: next.is_some(),
            next,
        }
    }
}

impl From<Count> for Changed {
    fn from(count: Count) -> Self {
        Self {
            jobs: count.jobs,
            requested: 0,
            dry_run: true,
            more: count.more,
            next: None,
        }
    }
}

/// Reads a body of optional fields: `read` takes its own, then come who and why.
pub async fn signed<T>(
    request: Request,
    caller: &Caller,
    allowed: &[&str],
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> Result<(T, Signed), Problem> {
    let value = body::json_or_nothing(request, body::ONE_BYTES_MAX).await?;
    from_body(value, caller, allowed, read)
}

/// As [`signed`], for a body that was read already.
pub fn from_body<T>(
    value: Value,
    caller: &Caller,
    allowed: &[&str],
    read: impl FnOnce(&mut Fields<'_>) -> T,
) -> Result<(T, Signed), Problem> {
    let allowed: Vec<&str> = allowed
        .iter()
        .copied()
        .chain(["by", "why"].into_iter().filter(|f| !allowed.contains(f)))
        .collect();
    let mut errors = Errors::default();
    let found = Fields::open(value, "", &allowed, &mut errors).map(|mut fields| {
        let found = read(&mut fields);
        let why = fields
            .text_or_null("why", 0..=WHY_BYTES_MAX)
            .unwrap_or_default();
        let by = fields
            .text_or_null("by", 1..=BY_BYTES_MAX)
            .unwrap_or_else(|| caller.who().to_owned());
        (
            found,
            Signed {
                by,
                why,
                via: caller.via(),
            },
        )
    });
    found
        .filter(|_| errors.is_empty())
        .ok_or_else(|| Problem::fields(Code::InvalidFields, errors))
}

/// How far a change goes, from the fields of a body.
pub fn walk(fields: &mut Fields<'_>) -> Walk {
    Walk {
        max_jobs: fields
            .whole("limit", 1..=BATCH_JOBS_MAX, "")
            .unwrap_or(JOBS_DEFAULT),
        dry_run: fields.flag("dry_run").unwrap_or(false),
        start: fields.text_or_null("start", 1..=START_BYTES_MAX),
    }
}

/// The same from a query, for routes without a body.
pub fn walk_of_query(query: &mut Query) -> Walk {
    Walk {
        max_jobs: query
            .whole("limit", 1..=BATCH_JOBS_MAX)
            .unwrap_or(JOBS_DEFAULT),
        dry_run: query.flag("dry_run").unwrap_or(false),
        start: query.text("start", START_BYTES_MAX),
    }
}

/// Who signs, from a query.
pub fn signed_of_query(query: &mut Query, caller: &Caller) -> Signed {
    Signed {
        by: query
            .text("by", BY_BYTES_MAX)
            .unwrap_or_else(|| caller.who().to_owned()),
        why: query.text("why", WHY_BYTES_MAX).unwrap_or_default(),
        via: caller.via(),
    }
}
