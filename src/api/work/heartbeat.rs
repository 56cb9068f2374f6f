//! Heartbeats of workers in other programs.

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::input::{self, Workers, stored_value};
use crate::api::http::caller::Caller;
use crate::api::http::fields::ObjectReader;
use crate::api::http::problem::Problem;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::remote::{RemoteBeat, RemoteProgress};

/// The longest note on the progress, in bytes.
pub(in crate::api) const NOTE_BYTES_MAX: usize = 500;

/// The most units done.
pub(in crate::api) const UNITS_MAX: i64 = 1 << 53;

/// A heartbeat.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Heartbeat {
    /// The lease of the job.
    lease: String,
    /// A value of up to 64 KiB from which a later attempt can go on; the last one is kept if absent.
    checkpoint: Option<Value>,
    /// The progress, for people; the last one is kept if absent.
    progress: Option<WorkProgress>,
    /// The real cost so far, in tokens.
    cost: Option<f64>,
}

/// The progress of a job.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes a part of the body; the fields are checked one by one"
)]
pub struct WorkProgress {
    /// Units done.
    done: i64,
    /// Units in all, if known.
    total: Option<i64>,
    /// A line for people.
    note: Option<String>,
}

/// The state of a lease.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ExtendedLease {
    /// The time at which the lease ends without another heartbeat.
    lease_expires_at: Timestamp,
    /// True if the job is to be cancelled: stop, and end it in any way.
    cancelled: bool,
}

/// Extends the lease of a job and stores its checkpoint and progress.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/heartbeat", operation_id = "heartbeat_job", tag = "workers",
    params(("id" = i64, Path, description = "The number of the job.")),
    request_body = Heartbeat,
    responses((status = 200, body = ExtendedLease)))]
pub async fn heartbeat(
    State(workers): State<Workers>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<ExtendedLease>, Problem> {
    let fields =
        |reader: &mut ObjectReader<'_>| (stored_value(reader, "checkpoint"), progress(reader));
    let allowed = ["checkpoint", "progress"];
    let (lease, cost, (cursor, progress)) =
        input::read(&id, &caller, request, &allowed, fields).await?;
    let job_id = lease.job_id;
    let beat = RemoteBeat {
        cursor,
        progress,
        cost,
    };
    let beaten = async {
        let beaten = workers.beat(lease, beat).await;
        beaten.map_err(|error| input::problem(error, Some(job_id)))
    };
    let state = with_timeout(ROW_TIMEOUT, beaten).await?;
    Ok(Json(ExtendedLease {
        lease_expires_at: state.expires_at,
        cancelled: state.is_cancelled,
    }))
}

fn progress(reader: &mut ObjectReader<'_>) -> Option<RemoteProgress> {
    if !reader.has("progress") {
        return None;
    }
    let mut fields = reader.part("progress", &["done", "total", "note"])?;
    if !fields.contains("done") {
        fields.missing("done", "the number of units done");
    }
    let done = fields.whole("done", 0..=UNITS_MAX, "");
    let total = fields.whole("total", 0..=UNITS_MAX, "");
    let note = fields.text("note", 0..=NOTE_BYTES_MAX);
    Some(RemoteProgress {
        done: done?,
        total,
        note: note.unwrap_or_default(),
    })
}
