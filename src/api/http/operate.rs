//! The common part of all changes of many jobs: their extent, their author, and their answer.

use axum::Json;
use axum::extract::Request;
use serde::Serialize;
use serde_json::Value;

use super::body;
use super::caller::Caller;
use super::fields::{Errors, ObjectReader};
use super::problem::{Code, Problem};
use super::query::Query;
use super::timeout::{LIST_TIMEOUT, with_timeout};
use crate::jobs::{Attribution, BATCH_JOBS_MAX, BulkCursor, BulkResult, Count};

/// The number of jobs that one request changes if it does not set one.
const JOBS_DEFAULT: i64 = 1000;
/// The longest position to continue from, in bytes.
pub(in crate::api) const START_BYTES_MAX: usize = 100;

/// The longest name of an author, in bytes.
pub const BY_BYTES_MAX: usize = 100;
/// The longest reason, in bytes.
pub const WHY_BYTES_MAX: usize = 1000;

/// The fields of every change of many jobs.
pub const FIELDS: [&str; 5] = ["limit", "dry_run", "start", "by", "why"];

/// The author and the reason of a change.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Reason {
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// The result of a change of many jobs, or of its dry run.
#[derive(Serialize, utoipa::ToSchema)]
pub struct BulkChange {
    /// Jobs that were changed; with `dry_run` those that would be, at most 10,000.
    jobs: i64,
    /// Running jobs whose cancellation was requested; their handlers stop soon. With `dry_run` they
    /// are among `jobs`.
    requested: i64,
    /// True if nothing was changed.
    dry_run: bool,
    /// True if there may be more.
    more: bool,
    /// The `start` of the next request, if there may be more.
    next: Option<String>,
}

impl From<BulkResult> for BulkChange {
    fn from(walked: BulkResult) -> Self {
        let BulkResult {
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

impl From<Count> for BulkChange {
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

/// Reads a body of optional fields: first those of `read`, then the author and the reason.
pub async fn signed<T>(
    request: Request,
    caller: &Caller,
    allowed: &[&str],
    read: impl FnOnce(&mut ObjectReader<'_>) -> T,
) -> Result<(T, Attribution), Problem> {
    let value = body::json_or_nothing(request, body::ONE_BYTES_MAX).await?;
    from_body(value, caller, allowed, read)
}

/// Reads a value as [`signed`] does, for a body that was already read.
pub fn from_body<T>(
    value: Value,
    caller: &Caller,
    allowed: &[&str],
    read: impl FnOnce(&mut ObjectReader<'_>) -> T,
) -> Result<(T, Attribution), Problem> {
    let allowed: Vec<&str> = allowed
        .iter()
        .copied()
        .chain(["by", "why"].into_iter().filter(|f| !allowed.contains(f)))
        .collect();
    let mut errors = Errors::default();
    let found = ObjectReader::open(value, "", &allowed, &mut errors).map(|mut fields| {
        let found = read(&mut fields);
        let why = fields
            .text_or_null("why", 0..=WHY_BYTES_MAX)
            .unwrap_or_default();
        let by = fields
            .text_or_null("by", 1..=BY_BYTES_MAX)
            .unwrap_or_else(|| caller.who().to_owned());
        (
            found,
            Attribution {
                by,
                why,
                identity: caller.identity(),
            },
        )
    });
    found
        .filter(|_| errors.is_empty())
        .ok_or_else(|| Problem::fields(Code::InvalidFields, errors))
}

/// Reads the extent of a change from the fields of a body.
pub fn walk(fields: &mut ObjectReader<'_>) -> BulkCursor {
    BulkCursor {
        max_jobs: fields
            .whole("limit", 1..=BATCH_JOBS_MAX, "")
            .unwrap_or(JOBS_DEFAULT),
        dry_run: fields.flag("dry_run").unwrap_or(false),
        start: fields.text_or_null("start", 1..=START_BYTES_MAX),
    }
}

/// Reads the extent of a change from a query, for routes without a body.
pub fn walk_of_query(query: &mut Query) -> BulkCursor {
    BulkCursor {
        max_jobs: query
            .whole("limit", 1..=BATCH_JOBS_MAX)
            .unwrap_or(JOBS_DEFAULT),
        dry_run: query.flag("dry_run").unwrap_or(false),
        start: query.text("start", START_BYTES_MAX),
    }
}

/// Reads the author and the reason from a query.
pub fn signed_of_query(query: &mut Query, caller: &Caller) -> Attribution {
    Attribution {
        by: query
            .text("by", BY_BYTES_MAX)
            .unwrap_or_else(|| caller.who().to_owned()),
        why: query.text("why", WHY_BYTES_MAX).unwrap_or_default(),
        identity: caller.identity(),
    }
}

/// Reads a query that holds the author and the reason of a change alone.
pub fn signed_query(pairs: Vec<(String, String)>, caller: &Caller) -> Result<Attribution, Problem> {
    let mut query = Query::open(pairs, &["by", "why"]);
    let signed = signed_of_query(&mut query, caller);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    Ok(signed)
}

/// Counts the jobs of a dry run, or changes them.
pub async fn count_or_change<E: Into<Problem>>(
    dry_run: bool,
    count: impl Future<Output = Result<Count, E>>,
    change: impl Future<Output = Result<BulkResult, E>>,
) -> Result<Json<BulkChange>, Problem> {
    let changed = if dry_run {
        with_timeout(LIST_TIMEOUT, count).await?.into()
    } else {
        with_timeout(LIST_TIMEOUT, change).await?.into()
    };
    Ok(Json(changed))
}
