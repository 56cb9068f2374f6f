//! Tokens for programs in any language: what the runner asks of the throttle store, over HTTP.

use std::time::Duration;

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
use crate::throttle::{Ask, Holder, LaneAsk, Limit};

/// The most units of one ask.
const WANT_MAX: i64 = 100_000;

/// The most jobs that one holder may hold.
const HELD_MAX: i64 = 1_000_000;

/// The longest name of a holder, in bytes.
const HOLDER_BYTES_MAX: usize = 200;

/// The longest that a holder's word may stand, in seconds.
const TTL_S_MAX: f64 = 3600.0;

/// How long a holder's word stands if it does not say.
const TTL_S: f64 = 30.0;

/// What is wanted.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "it describes the body; the fields are checked one by one")]
pub struct Wanted {
    /// The rate-limit key; empty for none.
    key: Option<String>,
    /// Tokens that one unit costs; 1 if absent.
    cost: Option<f64>,
    /// Units of work wanted, 0 to 100,000; 1 if absent. 0 with a `holder` only tells what it holds.
    want: Option<u32>,
    /// A name of your own, unique for each start of a process. With it each unit is a job that the limits of concurrency count
    /// until you say otherwise; without it they do not concern you.
    holder: Option<String>,
    /// Jobs of this throttle that the holder runs now; 0 if absent.
    held: Option<u32>,
    /// Jobs of this key that the holder runs now; 0 if absent.
    key_held: Option<u32>,
    /// Seconds after which what the holder said no longer counts, up to 3600; 30 if absent.
    ttl_s: Option<f64>,
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
    /// The level that limits: `tier`, `throttle`, `key`, `concurrency`, `paused`, `stopped`, `unknown` or `store_lost`, with
    /// its facts.
    #[schema(value_type = Option<Object>)]
    limit: Option<Limit>,
    /// The same in one sentence.
    reason: Option<String>,
    /// The throttle's rate in force; -1 is unlimited.
    effective_rps: f64,
    /// There is a limit of concurrency, so that a holder must say when it holds less.
    limits_concurrency: bool,
}

/// Takes tokens.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/acquire", operation_id = "acquire_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = Wanted,
    responses((status = 200, body = Granted)))]
pub async fn acquire(State(app): State<App>, Path(name): Path<String>, request: Request) -> Result<Json<Granted>, Problem> {
    let name = name_of(name)?;
    let mut errors = Errors::default();
    let (mut lane, mut holder) = (LaneAsk::default(), None);
    let value = body::json_or_empty(request, body::ONE_BYTES_MAX).await?;
    if let Some(mut fields) =
        Fields::open(value, "", &["key", "cost", "want", "holder", "held", "key_held", "ttl_s"], &mut errors)
    {
        lane.key = fields.text("key", 0..=KEY_BYTES_MAX).unwrap_or_default();
        lane.cost = fields.positive("cost", COST_MAX, " tokens").unwrap_or(1.0);
        lane.want = fields.whole("want", 0..=WANT_MAX, "").and_then(|want| u32::try_from(want).ok()).unwrap_or(1);
        let mut held = |field| fields.whole(field, 0..=HELD_MAX, " jobs").and_then(|held| u32::try_from(held).ok()).unwrap_or(0);
        let (all, of_key) = (held("held"), held("key_held"));
        lane.held = of_key;
        let ttl = Duration::from_secs_f64(fields.positive("ttl_s", TTL_S_MAX, " seconds").unwrap_or(TTL_S));
        holder = fields.text("holder", 1..=HOLDER_BYTES_MAX).map(|id| Holder { id, ttl, held: all });
    }
    if !errors.is_empty() {
        return Err(Problem::fields(Code::InvalidFields, errors));
    }
    let ask = Ask { throttle: name, lanes: vec![lane], holder };
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
        limits_concurrency: answer.limits_concurrency,
    }))
}
