//! Schedules: read, create or replace, delete, pause and resume, run now.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::cron_masks::refuse_masks;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{self, Errors, FieldLocation, ObjectReader};
use crate::api::http::lagging::read_list;
use crate::api::http::operate::Reason;
use crate::api::http::operate::{BY_BYTES_MAX, WHY_BYTES_MAX, signed, signed_query};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::jobs::enqueue::{kinds_elsewhere, warnings};
use crate::api::jobs::input::{self, KnownKinds};
use crate::api::jobs::permissions;
use crate::api::jobs::redact::mask_schedule;
use crate::api::jobs::state::JobsState;
use crate::cron::schedule::{CATCH_UPS, OVERLAPS, check_name};
use crate::cron::{self, NewSchedule, RunNowOutcome, Schedule, Schedules};
use crate::input::wording::must_be_one_of;
use crate::jobs::{NewJob, Queue};

/// The fields of a schedule besides those of its job.
const OWN_FIELDS: [&str; 7] = [
    "expression",
    "time_zone",
    "catch_up",
    "overlap",
    "paused",
    "by",
    "why",
];
/// The longest expression, in bytes.
pub(super) const EXPRESSION_BYTES_MAX: usize = 256;
/// The longest name of a time zone, in bytes.
pub(super) const ZONE_BYTES_MAX: usize = 64;
/// Fields of a job that the schedule sets itself.
pub(super) const SET_BY_SCHEDULE: [&str; 13] = [
    "run_at",
    "unique_key",
    "unique_for",
    "debounce",
    "debounce_max",
    "replace",
    "traceparent",
    "group",
    "after",
    "after_failure",
    "on_complete",
    "on_dead",
    "webhook_secret",
];

/// A new schedule. It has these fields and the fields of a job, without those that make sense for a
/// single job only.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct ScheduleBody {
    /// The cron expression: `minute hour day-of-month month day-of-week`, with or without a leading
    /// field for the second, or `@daily` and the like.
    expression: String,
    /// The time zone of the expression; `UTC` if absent.
    time_zone: Option<String>,
    /// The treatment of missed occurrences; `one` if absent.
    catch_up: Option<cron::CatchUp>,
    /// The treatment of an occurrence that comes while the last job is unfinished; `skip` if
    /// absent.
    overlap: Option<cron::Overlap>,
    /// Pauses or resumes the schedule; unchanged if absent.
    paused: Option<bool>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
    /// The job of each occurrence.
    #[serde(flatten)]
    job: NewJob,
}

/// All schedules.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ScheduleList {
    /// The schedules, by name.
    crons: Vec<Schedule>,
}

/// A schedule with warnings for its sender.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ScheduleView {
    /// The schedule.
    #[serde(flatten)]
    schedule: Schedule,
    /// Warnings, for example that the throttle does not exist yet.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// The job of a schedule that was run manually.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ManualRun {
    /// The new job, or the unfinished one that prevented it.
    id: i64,
    /// True if no new job was created.
    duplicate: bool,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Lists all schedules.
#[utoipa::path(get, path = "/api/v1/crons", operation_id = "list_schedules", tag = "crons", responses((status = 200, body = ScheduleList)))]
pub async fn list(State(queue): State<Queue>) -> Result<Json<ScheduleList>, Problem> {
    let read = |queue: Queue| async move { schedules(&queue).list().await };
    let crons = read_list(&queue, read).await?;
    Ok(Json(ScheduleList {
        crons: crons.into_iter().map(mask_schedule).collect(),
    }))
}

/// Shows a schedule and its next occurrences.
#[utoipa::path(get, path = "/api/v1/crons/{name}", operation_id = "show_schedule", tag = "crons",
    params(("name" = String, Path, description = "Its name.")), responses((status = 200, body = Schedule)))]
pub async fn show(
    State(queue): State<Queue>,
    Path(name): Path<String>,
) -> Result<Json<Schedule>, Problem> {
    Ok(Json(found(&queue, &name_of(name)?).await?))
}

/// Creates a schedule, or replaces the one with this name.
#[utoipa::path(put, path = "/api/v1/crons/{name}", operation_id = "set_schedule", tag = "crons",
    params(("name" = String, Path, description = "Its name.")), request_body = ScheduleBody,
    responses(
        (status = 201, body = ScheduleView, description = "The schedule was created."),
        (status = 200, body = ScheduleView, description = "The schedule was replaced.")))]
pub async fn set(
    State(state): State<Arc<JobsState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let name = name_of(name)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let elsewhere = kinds_elsewhere(&state, &value).await?;
    let known = KnownKinds {
        here: &state.kinds,
        elsewhere: &elsewhere,
    };
    let (schedule, by, why) =
        read(name, value, &known).map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    permissions::check(&state, &caller, std::slice::from_ref(&schedule.job), false).await?;
    let by = by.unwrap_or_else(|| caller.who().to_owned());
    let before = with_timeout(ROW_TIMEOUT, schedules(&state.queue).get(&schedule.name)).await?;
    let before = before.map(mask_schedule);
    if let Some(before) = &before {
        refuse_masks(before, &schedule.job.args)?;
    }

    let is_new = with_timeout(ROW_TIMEOUT, schedules(&state.queue).set(&schedule)).await?;

    let after = found(&state.queue, &schedule.name).await?;
    let mut warnings = warnings(&state, std::iter::once(schedule.job.throttle.as_str())).await;
    let mut entry = AuditEntry::now(by, "cron.set", schedule.name.clone(), why).by(&caller);
    entry.before = before.as_ref().map(audited_fields);
    entry.after = Some(audited_fields(&after));
    warnings.extend(log::note(&state.queue, &entry).await);
    let status = if is_new {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((
        status,
        Json(ScheduleView {
            schedule: after,
            warnings,
        }),
    ))
}

/// Deletes a schedule. Its jobs stay.
#[utoipa::path(delete, path = "/api/v1/crons/{name}", operation_id = "delete_schedule", tag = "crons",
    params(
        ("name" = String, Path, description = "Its name."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses((status = 204, description = "The schedule was deleted.")))]
pub async fn delete(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<StatusCode, Problem> {
    let name = name_of(name)?;
    let signed = signed_query(pairs, &caller)?;
    let before = found(&queue, &name).await?;
    if !with_timeout(ROW_TIMEOUT, schedules(&queue).delete(&before.name)).await? {
        return Err(not_found(&before.name));
    }
    let mut entry =
        AuditEntry::now(signed.by, "cron.delete", before.name.clone(), signed.why).by(&caller);
    entry.before = Some(audited_fields(&before));
    log::note(&queue, &entry).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Creates the job of a schedule now, apart from its times.
#[utoipa::path(post, path = "/api/v1/crons/{name}/run", operation_id = "run_schedule", tag = "crons",
    params(("name" = String, Path, description = "Its name.")),
    request_body = Reason,
    responses(
        (status = 201, body = ManualRun, description = "A job was created."),
        (status = 200, body = ManualRun, description = "No job was created: the last job of the schedule is unfinished, and its overlap is skip.")))]
pub async fn run(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let name = name_of(name)?;
    let ((), signed) = signed(request, &caller, &[], |_| ()).await?;
    let RunNowOutcome::Job(job) =
        with_timeout(ROW_TIMEOUT, schedules(&queue).run_now(&name)).await?
    else {
        return Err(not_found(&name));
    };
    let mut entry = AuditEntry::now(signed.by, "cron.run", name, signed.why).by(&caller);
    entry.after = Some(json!({"job_id": job.id, "duplicate": job.duplicate}));
    let warnings = log::note(&queue, &entry).await.into_iter().collect();
    let status = if job.duplicate {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok((
        status,
        Json(ManualRun {
            id: job.id,
            duplicate: job.duplicate,
            warnings,
        }),
    ))
}

/// Pauses a schedule. Occurrences missed meanwhile are not caught up.
#[utoipa::path(post, path = "/api/v1/crons/{name}/pause", operation_id = "pause_schedule", tag = "crons",
    params(("name" = String, Path, description = "Its name.")), request_body = Reason, responses((status = 200, body = ScheduleView)))]
pub async fn pause(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<ScheduleView>, Problem> {
    turn(&queue, &caller, name, request, true).await
}

/// Resumes a paused schedule from its next occurrence.
#[utoipa::path(post, path = "/api/v1/crons/{name}/resume", operation_id = "resume_schedule", tag = "crons",
    params(("name" = String, Path, description = "Its name.")), request_body = Reason, responses((status = 200, body = ScheduleView)))]
pub async fn resume(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<ScheduleView>, Problem> {
    turn(&queue, &caller, name, request, false).await
}

async fn turn(
    queue: &Queue,
    caller: &Caller,
    name: String,
    request: Request,
    paused: bool,
) -> Result<Json<ScheduleView>, Problem> {
    let name = name_of(name)?;
    let ((), signed) = signed(request, caller, &[], |_| ()).await?;
    let changed = with_timeout(ROW_TIMEOUT, schedules(queue).pause(&name, paused)).await?;
    let schedule = found(queue, &name).await?;
    let mut warnings = Vec::new();
    if changed {
        let action = if paused { "cron.pause" } else { "cron.resume" };
        let entry = AuditEntry::now(signed.by, action, name, signed.why).by(caller);
        warnings.extend(log::note(queue, &entry).await);
    }
    Ok(Json(ScheduleView { schedule, warnings }))
}

fn schedules(queue: &Queue) -> Schedules {
    Schedules::of(queue)
}

async fn found(queue: &Queue, name: &str) -> Result<Schedule, Problem> {
    with_timeout(ROW_TIMEOUT, schedules(queue).get(name))
        .await?
        .map(mask_schedule)
        .ok_or_else(|| not_found(name))
}

fn not_found(name: &str) -> Problem {
    Problem::new(
        Code::ScheduleNotFound,
        format!("there is no schedule {name}; GET /api/v1/crons lists them"),
    )
}

fn name_of(name: String) -> Result<String, Problem> {
    match check_name(&name) {
        Ok(()) => Ok(name),
        Err(message) => Err(Problem::at(
            Code::InvalidPath,
            FieldLocation::Path,
            "name",
            message,
        )),
    }
}

/// Returns the fields of a schedule that the audit log stores: those that people set.
fn audited_fields(schedule: &Schedule) -> Value {
    let mut value = serde_json::to_value(schedule).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        for passing in [
            "next_at",
            "upcoming",
            "last_at",
            "last_job_id",
            "skipped_at",
            "problem",
            "updated_at",
        ] {
            map.remove(passing);
        }
    }
    value
}

/// Reads the schedule of a request with its author and its reason, or lists every error.
fn read(
    name: String,
    value: Value,
    known: &KnownKinds<'_>,
) -> Result<(NewSchedule, Option<String>, String), Errors> {
    let mut errors = Errors::default();
    let Value::Object(map) = value else {
        errors.body(
            "",
            fields::must_be("an object, which is a schedule", &value),
        );
        return Err(errors);
    };
    let allowed: Vec<&str> = OWN_FIELDS
        .iter()
        .chain(&input::FIELDS)
        .copied()
        .filter(|f| !SET_BY_SCHEDULE.contains(f))
        .collect();
    let (mut own, mut job) = (Map::new(), Map::new());
    for (field, value) in map {
        if SET_BY_SCHEDULE.contains(&field.as_str()) {
            errors.body(
                fields::pointer("", &field),
                "not allowed for the job of a schedule, which sets it itself; leave it out",
            );
        } else if OWN_FIELDS.contains(&field.as_str()) {
            own.insert(field, value);
        } else if allowed.contains(&field.as_str()) {
            job.insert(field, value);
        } else {
            errors.body(
                fields::pointer("", &field),
                fields::unknown(&field, "field", &allowed),
            );
        }
    }
    let job = match input::one(Value::Object(job), known) {
        Ok(job) => job,
        Err(more) => {
            errors.total += more.total;
            errors.listed.extend(more.listed);
            NewJob::new("", json!({}))
        }
    };
    let mut schedule = NewSchedule::new(name, "", job);
    let (mut by, mut why) = (None, String::new());
    let mut read = Errors::default();
    if let Some(mut fields) = ObjectReader::open(Value::Object(own), "", &OWN_FIELDS, &mut read) {
        match fields.take("expression") {
            Some(value) => {
                schedule.expression = fields
                    .text_of("expression", value, 1..=EXPRESSION_BYTES_MAX)
                    .unwrap_or_default()
            }
            None => fields.wrong(
                "expression",
                "is missing: it must be a cron expression such as \"30 2 * * *\"",
            ),
        }
        if let Some(zone) = fields.text("time_zone", 1..=ZONE_BYTES_MAX) {
            schedule.time_zone = zone;
        }
        if let Some(value) = fields.take("catch_up") {
            schedule.catch_up = read_choice(&mut fields, "catch_up", &value, &CATCH_UPS);
        }
        if let Some(value) = fields.take("overlap") {
            schedule.overlap = read_choice(&mut fields, "overlap", &value, &OVERLAPS);
        }
        match fields.take_nullable("paused") {
            Some(Value::Bool(paused)) => schedule.paused = Some(paused),
            Some(other) => fields.wrong("paused", fields::must_be("true or false", &other)),
            None => {}
        }
        by = fields.text("by", 1..=BY_BYTES_MAX);
        why = fields.text("why", 0..=WHY_BYTES_MAX).unwrap_or_default();
    }
    if read.is_empty() {
        for problem in schedule.problems() {
            read.body(fields::pointer("", problem.field), problem.message);
        }
    }
    errors.total += read.total;
    errors.listed.extend(read.listed);
    errors.listed.truncate(fields::MAX_LISTED);
    if errors.is_empty() {
        Ok((schedule, by, why))
    } else {
        Err(errors)
    }
}

fn read_choice<T: Copy + Default>(
    fields: &mut ObjectReader<'_>,
    name: &str,
    value: &Value,
    words: &[(&str, T)],
) -> T {
    let known = words.iter().find(|(word, _)| value.as_str() == Some(word));
    if known.is_none() {
        let allowed: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        fields.wrong(name, must_be_one_of(&allowed, value));
    }
    known.map(|(_, value)| *value).unwrap_or_default()
}

impl From<cron::Error> for Problem {
    fn from(error: cron::Error) -> Self {
        match error {
            cron::Error::Queue(error) => Self::from_queue(error, false),
            cron::Error::Invalid(problems) => {
                let mut errors = Errors::default();
                for problem in problems {
                    errors.body(fields::pointer("", problem.field), problem.message);
                }
                Self::fields(Code::InvalidFields, errors)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::{Context, Job, Kinds, Outcome};

    fn wrong(body: Value) -> Vec<(String, String)> {
        let mut kinds = Kinds::default();
        kinds.register_fn("report", |_: Job, _: Context| async { Outcome::Done });
        match read(
            "nightly".into(),
            body,
            &KnownKinds {
                here: &kinds,
                elsewhere: &[],
            },
        ) {
            Ok(_) => Vec::new(),
            Err(errors) => errors
                .listed
                .into_iter()
                .map(|error| (error.pointer, error.message))
                .collect(),
        }
    }

    #[test]
    fn a_schedule_is_read_with_the_fields_of_its_job() {
        assert_eq!(
            wrong(
                json!({"expression": "30 2 * * *", "time_zone": "Europe/Berlin", "kind": "report", "key": "a"})
            ),
            []
        );
    }

    #[test]
    fn everything_that_is_wrong_is_reported_at_once() {
        let wrong = wrong(
            json!({"expression": "61 2 * * *", "kind": "reprot", "priority": 9, "run_at": null, "overlap": "no",
            "paused": 1, "expresion": ""}),
        );
        let pointers: Vec<&str> = wrong.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(
            pointers,
            [
                "/expresion",
                "/run_at",
                "/kind",
                "/priority",
                "/overlap",
                "/paused"
            ]
        );
        assert!(
            wrong[0].1.contains("did you mean \"expression\"?"),
            "{}",
            wrong[0].1
        );
    }

    #[test]
    fn an_expression_is_refused_by_field() {
        let wrong =
            wrong(json!({"expression": "61 2 * * *", "kind": "report", "time_zone": "Mars"}));
        let pointers: Vec<&str> = wrong.iter().map(|(pointer, _)| pointer.as_str()).collect();
        assert_eq!(pointers, ["/expression", "/time_zone"]);
        assert!(
            wrong[0]
                .1
                .starts_with("minute: 61 is out of range; allowed: 0 to 59"),
            "{}",
            wrong[0].1
        );
    }
}
