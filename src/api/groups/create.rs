//! Creation of groups, with or without their jobs.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::{Value, json};

use super::change::shown;
use crate::api::clock;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader, must_be, place_of};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{LIST_TIMEOUT, with_timeout};
use crate::api::jobs::enqueue::{kinds_elsewhere, refused, refused_key, traceparent, warnings};
use crate::api::jobs::input::{self, KnownKinds};
use crate::api::jobs::permissions;
use crate::api::jobs::redact::mask_args;
use crate::api::jobs::state::JobsState;
use crate::api::notifications::repeat::KEY;
use crate::jobs::{
    self, CreatedGroup, GROUP_JOBS_MAX, GROUP_NAME_BYTES_MAX, GroupJob, GroupState, JobGroup,
    NewGroup,
};

/// The fields of a group.
const FIELDS: [&str; 3] = ["name", "callback", "jobs"];

/// A new group.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct GroupBody {
    /// The name for people; it need not be unique.
    name: Option<String>,
    /// The job that is enqueued when all jobs of the group have ended, with the fields of a job.
    /// Its arguments get the counts of the group as `group`.
    #[schema(value_type = Option<Object>)]
    callback: Option<Value>,
    /// All jobs of the group, which seal it; without them, jobs join by their field `group` until
    /// the group is sealed.
    #[schema(value_type = Option<Vec<Object>>)]
    jobs: Option<Vec<Value>>,
}

/// A group that was created.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NewGroupView {
    /// The group.
    #[serde(flatten)]
    group: JobGroup,
    /// Its jobs, in the order of the request.
    members: Vec<GroupJob>,
    /// Warnings for the sender, for example that a throttle does not exist yet.
    warnings: Vec<String>,
}

/// Creates a group of jobs with a callback. With `jobs` all of it happens or nothing, and no more
/// jobs can join.
#[utoipa::path(post, path = "/api/v1/groups", operation_id = "create_group", tag = "groups", request_body = GroupBody,
    responses((status = 201, body = NewGroupView, description = "The group was created.",
        headers(("Location" = String, description = "The URL of the group.")))))]
pub async fn create(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let trace = traceparent(request.headers());
    let has_key = request.headers().contains_key(KEY);
    let value = body::json(request, body::BATCH_BYTES_MAX).await?;
    let mut group = read(&state, value).await?;
    if has_key {
        let instead = "create it without jobs, enqueue each with its field group, and seal it";
        return Err(refused_key("for a group", instead));
    }
    let all = group.jobs.iter_mut().flatten().chain(&mut group.callback);
    for job in all.filter(|job| job.traceparent.is_none()) {
        job.traceparent.clone_from(&trace);
    }
    if let Some(jobs) = &group.jobs {
        permissions::check_at(&state, &caller, jobs, |index| format!("/jobs/{index}")).await?;
    }
    if let Some(callback) = &group.callback {
        let callback = std::slice::from_ref(callback);
        permissions::check_at(&state, &caller, callback, |_| "/callback".to_owned()).await?;
    }
    let throttles = group.jobs.iter().flatten().chain(&group.callback);
    let warnings = warnings(&state, throttles.map(|job| job.throttle.as_str())).await;

    let create = async {
        let created = state
            .queue
            .create_group_for(&caller.owner, &caller.module, &group)
            .await;
        created.map_err(|error| unacceptable(&state, &caller, error))
    };
    let CreatedGroup { id, jobs: members } = with_timeout(LIST_TIMEOUT, create).await?;
    // The group is there, even if this read fails.
    let group = match shown(&state.queue, &caller, id).await {
        Ok(group) => group,
        Err(_) => as_created(&caller, id, group, &members),
    };
    let view = NewGroupView {
        group,
        members,
        warnings,
    };
    let location = format!("/api/v1/groups/{id}");
    Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)))
}

/// Returns a group as it was sent, if it cannot be read.
fn as_created(caller: &Caller, id: i64, group: NewGroup, members: &[GroupJob]) -> JobGroup {
    let joined = members.iter().filter(|job| !job.duplicate).count() as i64;
    let now = clock::now();
    let is_sealed = group.jobs.is_some();
    JobGroup {
        id,
        name: group.name,
        tenant: caller.tenant.as_deref().unwrap_or_default().to_owned(),
        state: match is_sealed {
            true if joined > 0 => GroupState::Running,
            true => GroupState::Ended,
            false => GroupState::Open,
        },
        jobs: joined,
        pending: joined,
        completed: 0,
        dead: 0,
        cancelled: 0,
        created_at: now,
        sealed_at: is_sealed.then_some(now),
        cancelled_at: None,
        ended_at: (is_sealed && joined == 0).then_some(now),
        callback: group.callback.map(|mut callback| {
            mask_args(&callback.kind, &mut callback.args);
            json!(callback)
        }),
        callback_job_id: None,
        callback_problem: None,
    }
}

async fn read(state: &JobsState, value: Value) -> Result<NewGroup, Problem> {
    let mut errors = Errors::default();
    let mut group = NewGroup::default();
    let (mut callback, mut jobs) = (None, None);
    if let Some(mut fields) = ObjectReader::open(value, "", &FIELDS, &mut errors) {
        let name = fields.text_or_null("name", 0..=GROUP_NAME_BYTES_MAX);
        group.name = name.unwrap_or_default();
        callback = fields.take_nullable("callback");
        jobs = match fields.take_nullable("jobs") {
            Some(Value::Array(jobs)) if jobs.len() > GROUP_JOBS_MAX => {
                let message = format!("must be at most {GROUP_JOBS_MAX} jobs, not {}", jobs.len());
                fields.wrong("jobs", message);
                None
            }
            Some(Value::Array(jobs)) => Some(Value::Array(jobs)),
            Some(other) => {
                fields.wrong("jobs", must_be("a list of jobs", &other));
                None
            }
            None => None,
        };
    }
    let named: Vec<Value> = callback
        .iter()
        .chain(jobs.iter().filter_map(Value::as_array).flatten())
        .map(|job| json!({ "kind": job.get("kind") }))
        .collect();
    let elsewhere = kinds_elsewhere(state, &Value::Array(named)).await?;
    let known = KnownKinds {
        here: &state.kinds,
        elsewhere: &elsewhere,
    };
    if let Some(callback) = callback {
        group.callback = input::job(callback, "/callback", &known, &mut errors);
        if group
            .callback
            .as_ref()
            .is_some_and(|job| job.group.is_some())
        {
            let message = "must be left out: the callback runs after the group and is not in one";
            errors.body("/callback/group", message);
        }
        if group
            .callback
            .as_ref()
            .is_some_and(|job| !job.after.is_empty())
        {
            let message = "must be left out: the callback runs after the group";
            errors.body("/callback/after", message);
        }
    }
    if let Some(Value::Array(jobs)) = jobs {
        let mut read = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.into_iter().enumerate() {
            let at = format!("/jobs/{index}");
            let Some(job) = input::job(job, &at, &known, &mut errors) else {
                continue;
            };
            if job.group.is_some() {
                let message = "must be left out: the jobs join the new group";
                errors.body(format!("{at}/group"), message);
            }
            read.push(job);
        }
        group.jobs = Some(read);
    }
    if errors.is_empty() {
        Ok(group)
    } else {
        Err(Problem::fields(Code::InvalidFields, errors))
    }
}

/// Converts a refusal of the queue: the place of a wrong field is below `callback` or `jobs`.
fn unacceptable(state: &JobsState, caller: &Caller, error: jobs::Error) -> Problem {
    let jobs::Error::Refused {
        index,
        field,
        message,
    } = error
    else {
        return refused(state, caller, error, true);
    };
    let mut errors = Errors::default();
    let at = match (index, field.strip_prefix("callback.")) {
        (Some(index), _) => format!("/jobs/{index}{}", place_of(&field)),
        (None, Some(field)) => format!("/callback{}", place_of(field)),
        (None, None) => place_of(&field),
    };
    errors.body(at, message);
    Problem::fields(Code::InvalidFields, errors)
}
