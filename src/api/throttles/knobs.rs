//! Throttles: their state, and edits of their knobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::HeaderMap;
use axum::http::header::ETAG;
use axum::response::{AppendHeaders, IntoResponse};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::state::ThrottlesState;
use super::view::{View, explain};
use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::clock;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, FieldLocation, ObjectReader};
use crate::api::http::limits;
use crate::api::http::operate::{BY_BYTES_MAX, WHY_BYTES_MAX};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::stream::live_sample::LiveSample;
use crate::governor::{Decision, GovernorView};
use crate::throttle::name::InvalidName;
use crate::throttle::rules::{Knob, knob, settable};
use crate::throttle::{self, Change, Makers, Name, Status};

/// All throttles.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Throttles {
    /// The time of this answer.
    at: Timestamp,
    /// True if the token may change jobs and throttles.
    may_change: bool,
    /// True if the token may enqueue jobs.
    may_enqueue: bool,
    /// The throttles, by name.
    throttles: Vec<View>,
}

/// The reason for the rate of a throttle.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Explanation {
    /// The name of the throttle.
    throttle: String,
    /// The reason, in one sentence.
    #[schema(
        example = "34.2 rps, held by search-load 1.96 of 2.00 (sample 14 s old); would be 51 by mongo-load; grew 3 %/min."
    )]
    sentence: String,
    /// The last decisions, newest first.
    decisions: Vec<Decision>,
}

/// An edit of knobs; an absent field keeps its value, `null` resets it to its default.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct KnobsEdit {
    /// Tokens per second; 0 stops, -1 is unlimited.
    rps: Option<f64>,
    /// Tokens that may be spent at once after an idle time, in windows' worth.
    burst: Option<f64>,
    /// The window, in seconds.
    window: Option<f64>,
    /// The mode: `auto`, `manual`, `shadow` or `off`.
    mode: Option<String>,
    /// Unix milliseconds at which manual mode ends; the throttle then returns to the previous mode.
    manual_until_ms: Option<i64>,
    /// Lowest rate that the governor may set.
    min: Option<f64>,
    /// Highest rate that the governor may set.
    max: Option<f64>,
    /// Rate in force when `rps` cannot be read or its lease has expired.
    safe_rps: Option<f64>,
    /// The rate that the resource behind the throttle can serve now; no rate in force is above it.
    /// -1 means no limit.
    capacity: Option<f64>,
    /// Rate of each key; -1 is unlimited.
    key_rps: Option<f64>,
    /// Tokens of each key that may be spent at once, as `burst`.
    key_burst: Option<f64>,
    /// The factor by which the costs of jobs, and the tokens of requests, count.
    cost_factor: Option<f64>,
    /// Rolling windows, such as `10/1 1000/3600`: the most tokens within any span of this many
    /// seconds.
    windows: Option<String>,
    /// Rolling windows of each key.
    key_windows: Option<String>,
    /// The throttle from which this one takes tokens as well.
    parent: Option<String>,
    /// `true` stops the throttle and keeps its knobs.
    paused: Option<bool>,
    /// The answer to requests for tokens while Redis does not answer: `closed`, `open` or `local`.
    on_store_loss: Option<String>,
    /// `true` lets it take the spare tokens of its parent beyond its own rate.
    borrow: Option<bool>,
    /// The effect of another server's refusal: `active-informed`, `active-naive`,
    /// `passive-informed` or `passive-naive`.
    on_429: Option<String>,
    /// The highest level that an answer of a receiver may slow down: `key`, `throttle` or
    /// `account`.
    trust_scope: Option<String>,
    /// The longest pause after a refusal, in seconds; `null` for the default.
    max_pause: Option<f64>,
    /// The most jobs that may run at once over all processes; 0 lets none run, -1 means no limit.
    concurrency: Option<i64>,
    /// The most jobs of one key that may run at once over all processes; -1 means no limit.
    key_concurrency: Option<i64>,
    /// Share of a worker's slots beside other throttles.
    weight: Option<f64>,
    /// The fate of jobs that cannot run at once: `wait`, `drop` or `merge`.
    over_limit: Option<String>,
    /// The highest cost of one job, in tokens.
    max_cost: Option<f64>,
    /// The most jobs of one lane that may wait before `on_backlog` acts.
    max_backlog: Option<u64>,
    /// The effect of a backlog above `max_backlog`: `signal` or `reject`.
    on_backlog: Option<String>,
    /// The author of the edit, for the audit log.
    by: Option<String>,
    /// The reason for the edit, for the audit log.
    why: Option<String>,
}

/// Lists all throttles, and the names that only jobs use; for a tenant its own.
#[utoipa::path(get, path = "/api/v1/throttles", operation_id = "list_throttles", tag = "throttles", responses((status = 200, body = Throttles)))]
pub async fn list(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Throttles>, Problem> {
    let mut names = state.throttles.names().await?;
    let makers = Makers::of(&names, state.throttles_created_max);
    names.retain(|name| caller.sees(name.as_str()));
    let (late, answered): (Vec<_>, Vec<_>) = read_statuses(&state, names)
        .await
        .into_iter()
        .partition(|(_, status)| matches!(status, Err(throttle::Error::Lost(_))));
    let sample = state.live.sample();
    let (mut statuses, mut unseen) = (Vec::new(), Vec::new());
    for (name, status) in late {
        // One answer of many that comes too late is no reason to show none.
        match last_seen(&name, sample.as_deref()) {
            _ if answered.is_empty() => statuses.extend(status?),
            Some(seen) => statuses.push(seen),
            None => unseen.push(name),
        }
    }
    // A throttle that was deleted after its name was read is omitted.
    for (_, status) in answered
        .into_iter()
        .chain(read_statuses(&state, unseen).await)
    {
        statuses.extend(status?);
    }
    let mut views: BTreeMap<String, View> = statuses
        .iter()
        .map(|status| {
            let view = view(&caller, status, sample.as_deref());
            (status.name.to_string(), view)
        })
        .collect();
    if let Some((sample, counted_at)) = sample
        .as_deref()
        .and_then(|sample| Some((sample, sample.counted_at?)))
    {
        for (name, measured) in sample
            .throttles
            .iter()
            .filter(|(_, measured)| measured.status.is_none() && !sample.is_store_lost)
            .filter(|(name, _)| caller.sees(name))
        {
            views.entry(name.clone()).or_insert_with(|| {
                let parked = View::parked(name, &measured.depth, counted_at, clock::now());
                match Name::new(name.as_str()) {
                    // The first request for its tokens makes it.
                    Ok(name) if makers.pattern_of(&name).is_some() => View {
                        problems: Vec::new(),
                        ..parked
                    },
                    _ => parked,
                }
            });
        }
    }
    Ok(Json(Throttles {
        at: clock::now(),
        may_change: caller.leave.has(TokenScope::OpsWrite),
        may_enqueue: caller.leave.has(TokenScope::JobsEnqueue),
        throttles: views.into_values().collect(),
    }))
}

/// Asks the store for the status of each throttle.
async fn read_statuses(
    state: &Arc<ThrottlesState>,
    names: Vec<Name>,
) -> Vec<(Name, Result<Option<Status>, throttle::Error>)> {
    let statuses = state.throttles.statuses(&names).await;
    names.into_iter().zip(statuses).collect()
}

/// Returns the status of a throttle in the last sample, which is about a second old.
fn last_seen(name: &Name, sample: Option<&LiveSample>) -> Option<Status> {
    sample?.throttles.get(name.as_str())?.status.clone()
}

/// Shows one throttle.
#[utoipa::path(get, path = "/api/v1/throttles/{name}", operation_id = "show_throttle", tag = "throttles",
    params(("name" = String, Path, description = "The name, with slashes percent-encoded.")),
    responses((status = 200, body = View, headers(("ETag" = String, description = "The knobs' `seq`, for `If-Match`.")))))]
pub async fn show(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Problem> {
    let status = status(&state, &name_or_pattern_of(name)?).await?;
    let view = view(&caller, &status, state.live.sample().as_deref());
    Ok(answer(view))
}

/// Explains the rate of a throttle.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/why", operation_id = "explain_throttle", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("limit" = Option<i64>, Query, description = "The maximum number of decisions, 1 to 1000; 20 if absent.")),
    responses((status = 200, body = Explanation)))]
pub async fn why(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Explanation>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(20);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let status = status(&state, &name_or_pattern_of(name)?).await?;
    let why = state.decisions.why(&status, caller.tenant.is_none());
    let sentence = with_timeout(ROW_TIMEOUT, why)
        .await?
        .unwrap_or_else(|| explain(&status));
    let decisions = with_timeout(
        ROW_TIMEOUT,
        state.decisions.recent(Some(status.name.as_str()), limit),
    )
    .await?;
    Ok(Json(Explanation {
        throttle: status.name.to_string(),
        sentence,
        decisions,
    }))
}

/// Edits the knobs of a throttle.
#[utoipa::path(patch, path = "/api/v1/throttles/{name}", operation_id = "edit_throttle", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("create" = Option<bool>, Query, description = "`true` creates the throttle if it does not exist."),
        ("If-Match" = Option<String>, Header, description = "Apply the change only if the knobs' `seq` equals this.")),
    request_body = KnobsEdit,
    responses((status = 200, body = View)))]
pub async fn edit(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let name = name_or_pattern_of(name)?;
    let mut query = Query::open(pairs, &["create"]);
    let create = query
        .choice(
            "create",
            &[("true", true), ("false", false), ("1", true), ("0", false)],
        )
        .unwrap_or(false);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let if_seq = if_match(request.headers())?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let mut change = change(&state, &name, value)
        .map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    if let Some(parent) = change
        .fields
        .get("parent")
        .and_then(Option::as_deref)
        .filter(|parent| limits::is_of_the_api(parent))
        && !caller.leave.is_admin()
    {
        let detail = format!(
            "throttle {parent} limits the API itself; only a token with the scope admin may make \
             it a parent"
        );
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    change.if_seq = if_seq;
    change.create = create;
    if change.by.is_empty() {
        change.by = caller.who().to_owned();
    }

    let (before, after) = state.throttles.set(&name, &change).await?;

    let entry = AuditEntry::turned("throttle.set", &change, before.as_ref(), &after).by(&caller);
    let mut view = view(&caller, &after, state.live.sample().as_deref());
    view.warnings.extend(log::note(&state.queue, &entry).await);
    Ok(answer(view))
}

/// Reads an edit, or lists every error in it.
fn change(state: &ThrottlesState, name: &Name, value: Value) -> Result<Change, Errors> {
    let mut errors = Errors::default();
    let mut change = Change::default();
    let knobs: BTreeMap<String, Value> = {
        let allowed = [settable(), vec!["by", "why"]].concat();
        let Some(mut fields) = ObjectReader::open(value, "", &allowed, &mut errors) else {
            return Err(errors);
        };
        change.by = fields.text("by", 1..=BY_BYTES_MAX).unwrap_or_default();
        change.why = fields.text("why", 0..=WHY_BYTES_MAX).unwrap_or_default();
        fields
            .rest()
            .into_iter()
            .filter(|(field, _)| knob(field).is_some_and(Knob::is_settable))
            .collect()
    };
    match (state.check_knobs)(&knobs) {
        Ok(fields) => change.fields = fields,
        Err(problems) => {
            for problem in problems {
                errors.body(
                    crate::api::http::fields::pointer("", &problem.field),
                    problem.message,
                );
            }
        }
    }
    if knobs.get("parent").and_then(Value::as_str) == Some(name.as_str()) {
        errors.body(
            "/parent",
            "a throttle cannot be its own parent; allowed: the name of another throttle, or null",
        );
    }
    let ends = knobs.get("manual_until_ms").and_then(Value::as_f64);
    if ends.is_some_and(|ends| ends <= clock::now().as_millisecond() as f64) && errors.is_empty() {
        errors.body(
            "/manual_until_ms",
            "is in the past; allowed: unix milliseconds in the future, or null for no end",
        );
    }
    if knobs.is_empty() && errors.is_empty() {
        errors.body(
            "",
            format!(
                "there is nothing to change; allowed: any of {}",
                settable().join(", ")
            ),
        );
    }
    if errors.is_empty() {
        Ok(change)
    } else {
        Err(errors)
    }
}

fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("if-match") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(None);
    }
    text.trim_start_matches("W/")
        .trim_matches('"')
        .parse()
        .map(Some)
        .map_err(|_| {
            let message = format!(
                "{:?} is not allowed; allowed: the seq of the knobs in quotes, such as \"17\"",
                crate::api::http::fields::clipped(text)
            );
            Problem::at(
                Code::InvalidHeader,
                FieldLocation::Header,
                "If-Match",
                message,
            )
        })
}

/// Parses the throttle's name of a path.
pub fn name_of(text: String) -> Result<Name, Problem> {
    Name::new(text).map_err(invalid_name)
}

/// Parses the name of a throttle or of a pattern of a path.
pub fn name_or_pattern_of(text: String) -> Result<Name, Problem> {
    Name::or_pattern(text).map_err(invalid_name)
}

fn invalid_name(error: InvalidName) -> Problem {
    Problem::at(
        Code::InvalidPath,
        FieldLocation::Path,
        "name",
        error.to_string(),
    )
}

/// Returns the status of a throttle, or the problem that it does not exist.
pub async fn status(state: &ThrottlesState, name: &Name) -> Result<Status, Problem> {
    state
        .throttles
        .status(name)
        .await?
        .ok_or_else(|| Problem::throttle_not_found(name))
}

/// Returns the throttle as the API shows it to a caller.
pub fn view(caller: &Caller, status: &Status, sample: Option<&LiveSample>) -> View {
    let measured = sample.and_then(|sample| sample.throttles.get(status.name.as_str()));
    let counted_at = sample.and_then(|sample| sample.counted_at);
    let mut view = View::of(status, measured, counted_at, clock::now());
    if caller.tenant.is_some() {
        view.governor = view.governor.map(GovernorView::without_problems);
    }
    view
}

/// Returns the answer that shows a throttle.
pub fn answer(view: View) -> impl IntoResponse {
    (
        AppendHeaders([(ETAG, format!("\"{}\"", view.seq))]),
        Json(view),
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn every_knob_that_may_be_set_is_in_the_document() {
        let document = serde_json::to_value(KnobsEdit::schema()).unwrap();
        let reported: BTreeSet<&str> = document["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();

        assert_eq!(
            reported,
            settable().into_iter().chain(["by", "why"]).collect()
        );
    }
}
