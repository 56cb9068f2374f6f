//! Tokens for programs in any language: what the runner asks of the throttle store, over HTTP.

use axum::Json;
use axum::extract::{Path, Request, State};
use jiff::Timestamp;
use serde::Serialize;

use super::body;
use super::fields::{Errors, Fields};
use super::jobs_input::{COST_MAX, KEY_BYTES_MAX};
use super::problem::{Code, Problem};
use super::state::App;
use super::throttles::name_of;
use super::waiting;
use crate::throttle::{Ask, LaneAsk, Limit};

/// The most units of one ask.
const WANT_MAX: i64 = 100_000;

/// What is wanted.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it describes the body; the fields are checked one by one")]
pub struct Wanted {
    /// The rate-limit key; empty for none.
    key: Option<String>,
    /// Tokens that one unit costs; 1 if absent.
    cost: Option<f64>,
    /// Units of work wanted, 1 to 100,000; 1 if absent.
    want: Option<u32>,
}

/// What is granted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Granted {
    /// Units of work that may be done now, 0 to `want`.
    granted: u32,
    /// Seconds until the next unit fits; 0 if all was granted.
    wait_s: f64,
    /// The same as a time by the store's clock, where it is known.
    until: Option<Timestamp>,
    /// The level that limits: `tier`, `throttle`, `key`, `paused`, `stopped`, `unknown` or `store_lost`, with its facts.
    #[schema(value_type = Option<Object>)]
    limit: Option<Limit>,
    /// The same in one sentence.
    reason: Option<String>,
    /// The throttle's rate in force; -1 is unlimited.
    effective_rps: f64,
}

/// Takes tokens.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/acquire", operation_id = "acquire_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = Wanted,
    responses((status = 200, body = Granted)))]
pub async fn acquire(State(app): State<App>, Path(name): Path<String>, request: Request) -> Result<Json<Granted>, Problem> {
    let name = name_of(name)?;
    let mut errors = Errors::default();
    let mut lane = LaneAsk { key: String::new(), want: 1, cost: 1.0 };
    let value = body::json_or_empty(request, body::ONE_BYTES_MAX).await?;
    if let Some(mut fields) = Fields::open(value, "", &["key", "cost", "want"], &mut errors) {
        lane.key = fields.text("key", 0..=KEY_BYTES_MAX).unwrap_or_default();
        lane.cost = fields.positive("cost", COST_MAX, " tokens").unwrap_or(1.0);
        lane.want = fields.whole("want", 1..=WANT_MAX, "").and_then(|want| u32::try_from(want).ok()).unwrap_or(1);
    }
    if !errors.is_empty() {
        return Err(Problem::fields(Code::InvalidFields, errors));
    }
    let ask = Ask { throttle: name, lanes: vec![lane] };
    let answer = app.deps.throttles.acquire(&ask).await;
    let Some(grant) = answer.lanes.into_iter().next() else {
        return Err(Problem::new(Code::Internal, "the throttle store answered without a grant"));
    };
    match &grant.limit {
        Some(Limit::Unknown { name }) if *name == ask.throttle => return Err(Problem::throttle_not_found(name)),
        Some(Limit::StoreLost) if grant.granted == 0 => {
            return Err(
                Problem::new(Code::ThrottlesLost, "Redis does not answer, and this throttle grants nothing then").retry_after(1)
            );
        }
        _ => {}
    }
    let until = i64::try_from(grant.wait.as_micros())
        .ok()
        .filter(|wait_us| *wait_us > 0 && answer.at_us > 0)
        .and_then(|wait_us| Timestamp::from_microsecond(answer.at_us.checked_add(wait_us)?).ok());
    let key = &ask.lanes[0].key;
    let reason = grant.limit.as_ref().map(|limit| waiting::sentence(ask.throttle.as_str(), key, answer.effective_rps, limit));
    Ok(Json(Granted {
        granted: grant.granted,
        wait_s: grant.wait.as_secs_f64(),
        until,
        limit: grant.limit,
        reason,
        effective_rps: answer.effective_rps,
    }))
}
