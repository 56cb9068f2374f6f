//! Throttles: how they stand, and turning their knobs.

use std::collections::BTreeMap;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::HeaderMap;
use axum::http::header::ETAG;
use axum::response::{AppendHeaders, IntoResponse};
use axum::{Extension, Json};
use futures_util::{StreamExt as _, stream};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::audit::{self, Entry};
use super::auth::Caller;
use super::fields::{Errors, Fields, Place};
use super::operate::{BY_BYTES_MAX, WHY_BYTES_MAX};
use super::problem::{Code, Problem};
use super::query::{PAGE_MAX, Query};
use super::sample::Sample;
use super::state::{App, Decision};
use super::throttle_view::{View, explain};
use super::within::{ONE, within};
use super::{body, clock, limits};
use crate::throttle::rules::{Knob, knob, settable};
use crate::throttle::{Change, Name, Status};

/// Questions to the throttle store at a time.
const ASKED_AT_ONCE: usize = 32;

/// All throttles.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Throttles {
    /// When this was said.
    at: Timestamp,
    /// In the order of their names.
    throttles: Vec<View>,
}

/// Why a throttle runs at its rate.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Why {
    /// Its name.
    throttle: String,
    /// One sentence.
    #[schema(
        example = "34.2 rps, held by search-load 1.96 of 2.00 (sample 14 s old); would be 51 by mongo-load; grew 3 %/min."
    )]
    sentence: String,
    /// The last decisions, newest first.
    decisions: Vec<Decision>,
}

/// An edit of knobs; a field that is left out keeps its value, `null` gives it its default back.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct Edit {
    /// Tokens per second; 0 stops, -1 is unlimited.
    rps: Option<f64>,
    /// Windows' worth of tokens that may be spent at once after a quiet time.
    burst: Option<f64>,
    /// Seconds.
    window: Option<f64>,
    /// `auto`, `manual`, `shadow` or `off`.
    mode: Option<String>,
    /// Unix milliseconds at which the mode manual ends; the throttle then goes back to the mode before.
    manual_until_ms: Option<i64>,
    /// Lowest rate that the governor may set.
    min: Option<f64>,
    /// Highest rate that the governor may set.
    max: Option<f64>,
    /// Rate when `rps` cannot be read or its lease has lapsed.
    safe_rps: Option<f64>,
    /// What stands behind the throttle can bear now; no rate in force is above it. -1 is no limit.
    capacity: Option<f64>,
    /// Rate of each key; -1 is unlimited.
    key_rps: Option<f64>,
    /// As `burst`, for each key.
    key_burst: Option<f64>,
    /// The throttle that this one draws from as well.
    parent: Option<String>,
    /// `true` stops the throttle and keeps its knobs.
    paused: Option<bool>,
    /// `closed`, `open` or `local`.
    on_store_loss: Option<String>,
    /// `true` lets it take what its parent has to spare beyond its own rate.
    borrow: Option<bool>,
    /// `active-informed`, `active-naive`, `passive-informed` or `passive-naive`.
    on_429: Option<String>,
    /// The most that a receiver's answer may slow down: `key`, `throttle` or `account`.
    trust_scope: Option<String>,
    /// The longest pause that a refusal may lead to, in seconds; `null` for what is usual.
    max_pause: Option<f64>,
    /// Jobs that may run at once over all processes; 0 lets none run, -1 is no limit.
    concurrency: Option<i64>,
    /// Jobs of one key that may run at once over all processes; -1 is no limit.
    key_concurrency: Option<i64>,
    /// Share of a worker's slots beside other throttles.
    weight: Option<f64>,
    /// `wait`, `drop` or `merge`.
    over_limit: Option<String>,
    /// The highest cost of one job, in tokens.
    max_cost: Option<f64>,
    /// Jobs of one lane that may wait before `on_backlog` acts.
    max_backlog: Option<u64>,
    /// `signal` or `reject`.
    on_backlog: Option<String>,
    /// Who turns the knob; for the audit log.
    by: Option<String>,
    /// Why; for the audit log.
    why: Option<String>,
}

/// Lists all throttles, and the names that only jobs know.
#[utoipa::path(get, path = "/api/v1/throttles", operation_id = "list_throttles", tag = "throttles", responses((status = 200, body = Throttles)))]
pub async fn list(State(app): State<App>) -> Result<Json<Throttles>, Problem> {
    let names = app.deps.throttles.names().await?;
    let statuses: Vec<_> = stream::iter(names)
        .map(|name| {
            let app = app.clone();
            async move { app.deps.throttles.status(&name).await }
        })
        .buffered(ASKED_AT_ONCE)
        .collect()
        .await;
    let sample = app.deps.live.sample();
    let mut views = BTreeMap::new();
    for status in statuses {
        // One that went away since its name was read is not there any more.
        if let Some(status) = status? {
            views.insert(status.name.to_string(), view(&status, sample.as_deref()));
        }
    }
    if let Some((sample, counted_at)) = sample
        .as_deref()
        .and_then(|sample| Some((sample, sample.counted_at?)))
    {
        for (name, measured) in sample
            .throttles
            .iter()
            .filter(|(_, measured)| measured.status.is_none() && !sample.is_store_lost)
        {
            views
                .entry(name.clone())
                .or_insert_with(|| View::parked(name, &measured.depth, counted_at, clock::now()));
        }
    }
    Ok(Json(Throttles {
        at: clock::now(),
        throttles: views.into_values().collect(),
    }))
}

/// Shows one throttle.
#[utoipa::path(get, path = "/api/v1/throttles/{name}", operation_id = "show_throttle", tag = "throttles",
    params(("name" = String, Path, description = "Its name, percent-encoded where it holds a slash.")),
    responses((status = 200, body = View, headers(("ETag" = String, description = "The knobs' `seq`, for `If-Match`.")))))]
pub async fn show(
    State(app): State<App>,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Problem> {
    let status = status(&app, &name_of(name)?).await?;
    Ok(answer(view(&status, app.deps.live.sample().as_deref())))
}

/// Explains why a throttle runs at its rate.
#[utoipa::path(get, path = "/api/v1/throttles/{name}/why", operation_id = "explain_throttle", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("limit" = Option<i64>, Query, description = "At most so many decisions, 1 to 1000; 20 if absent.")),
    responses((status = 200, body = Why)))]
pub async fn why(
    State(app): State<App>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Why>, Problem> {
    let mut query = Query::open(pairs, &["limit"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(20);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let status = status(&app, &name_of(name)?).await?;
    let sentence = within(ONE, app.deps.decisions.why(&status))
        .await?
        .unwrap_or_else(|| explain(&status));
    let decisions = within(
        ONE,
        app.deps.decisions.recent(Some(status.name.as_str()), limit),
    )
    .await?;
    Ok(Json(Why {
        throttle: status.name.to_string(),
        sentence,
        decisions,
    }))
}

/// Turns knobs.
#[utoipa::path(patch, path = "/api/v1/throttles/{name}", operation_id = "edit_throttle", tag = "throttles",
    params(
        ("name" = String, Path, description = "Its name."),
        ("create" = Option<bool>, Query, description = "`true` makes the throttle if there is none."),
        ("If-Match" = Option<String>, Header, description = "Refuse unless the knobs' `seq` is this.")),
    request_body = Edit,
    responses((status = 200, body = View)))]
pub async fn edit(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let name = name_of(name)?;
    let mut query = Query::open(pairs, &["create"]);
    let create = query
        .word(
            "create",
            &[("true", true), ("false", false), ("1", true), ("0", false)],
        )
        .unwrap_or(false);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    let if_seq = if_match(request.headers())?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let mut change = change(&app, &name, value)
        .map_err(|errors| Problem::fields(Code::InvalidFields, errors))?;
    if let Some(parent) = change
        .fields
        .get("parent")
        .and_then(Option::as_deref)
        .filter(|parent| limits::is_of_the_api(parent))
        && !caller.leave.is_admin()
    {
        let detail = format!(
            "throttle {parent} limits the API itself; only a token with the scope admin may let others draw from it"
        );
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    change.if_seq = if_seq;
    change.create = create;
    if change.by.is_empty() {
        change.by = caller.who().to_owned();
    }

    let (before, after) = app.deps.throttles.set(&name, &change).await?;

    let entry = Entry::turned("throttle.set", &change, before.as_ref(), &after).by(&caller);
    let mut view = view(&after, app.deps.live.sample().as_deref());
    view.warnings.extend(audit::note(&app, &entry).await);
    Ok(answer(view))
}

/// Reads an edit, or lists everything that is wrong with it.
fn change(app: &App, name: &Name, value: Value) -> Result<Change, Errors> {
    let mut errors = Errors::default();
    let mut change = Change::default();
    let knobs: BTreeMap<String, Value> = {
        let allowed = [settable(), vec!["by", "why"]].concat();
        let Some(mut fields) = Fields::open(value, "", &allowed, &mut errors) else {
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
    match (app.deps.check_knobs)(&knobs) {
        Ok(fields) => change.fields = fields,
        Err(problems) => {
            for problem in problems {
                errors.body(super::fields::pointer("", &problem.field), problem.message);
            }
        }
    }
    if knobs.get("parent").and_then(Value::as_str) == Some(name.as_str()) {
        errors.body(
            "/parent",
            "a throttle cannot draw from itself; allowed: the name of another throttle, or null",
        );
    }
    let ends = knobs.get("manual_until_ms").and_then(Value::as_f64);
    if ends.is_some_and(|ends| ends <= clock::now().as_millisecond() as f64) && errors.is_empty() {
        errors.body(
            "/manual_until_ms",
            "is in the past; allowed: unix milliseconds that are still to come, or null for no end",
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
                super::fields::clipped(text)
            );
            Problem::at(Code::InvalidHeader, Place::Header, "If-Match", message)
        })
}

/// The name in a path, checked.
pub fn name_of(text: String) -> Result<Name, Problem> {
    Name::new(text)
        .map_err(|error| Problem::at(Code::InvalidPath, Place::Path, "name", error.to_string()))
}

/// The status of a throttle that must exist.
pub async fn status(app: &App, name: &Name) -> Result<Status, Problem> {
    app.deps
        .throttles
        .status(name)
        .await?
        .ok_or_else(|| Problem::throttle_not_found(name))
}

/// The throttle as the API shows it.
pub fn view(status: &Status, sample: Option<&Sample>) -> View {
    let measured = sample.and_then(|sample| sample.throttles.get(status.name.as_str()));
    View::of(
        status,
        measured,
        sample.and_then(|sample| sample.counted_at),
        clock::now(),
    )
}

/// The answer that shows a throttle.
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
    fn every_knob_that_may_be_set_is_told_in_the_document() {
        let document = serde_json::to_value(Edit::schema()).unwrap();
        let told: BTreeSet<&str> = document["properties"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();

        assert_eq!(told, settable().into_iter().chain(["by", "why"]).collect());
    }
}
