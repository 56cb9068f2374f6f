//! Tokens for programs in any language: the runner's requests to the throttle store, over HTTP.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::{Instant, sleep, timeout};

use super::caller_knobs::knobs_of;
use super::knobs::name_of;
use super::state::ThrottlesState;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::remaining::remaining;
use crate::api::jobs::input::{COST_MAX, KEY_BYTES_MAX};
use crate::api::waiting;
use crate::throttle::on_demand::KnobTexts;
use crate::throttle::{
    self, AcquireRequest, AcquireResponse, GUEST, Grant, Holder, LaneRequest, Limit, RateLimit,
    Store, check_wanted,
};

/// The most units of one request.
pub(in crate::api) const WANT_MAX: i64 = 100_000;

/// The most jobs that one holder may hold.
pub(in crate::api) const HELD_MAX: i64 = 1_000_000;

/// The longest name of a holder, in bytes.
pub(in crate::api) const HOLDER_BYTES_MAX: usize = 200;

/// The longest time for which a holder's report is valid, in seconds.
pub(in crate::api) const TTL_S_MAX: f64 = 120.0;

/// The time for which a holder's report is valid if the request does not set one, in seconds.
const TTL_S: f64 = 30.0;

/// The longest wait of a request for its tokens, in milliseconds: below the timeouts of most
/// proxies.
pub(in crate::api) const WAIT_MS_MAX: i64 = 30_000;

/// The longest pause before a waiting request asks again, because a person may raise the knob
/// meanwhile.
const NAP_MAX: Duration = Duration::from_secs(1);

/// The shortest pause before a waiting request asks again: clocks that differ slightly must not
/// cause a busy loop.
const NAP_MIN: Duration = Duration::from_millis(2);

/// The refusals, each at the end of the wait that the one before told, after which a request begins
/// with one token.
const TURNS_LOST: u32 = 3;

/// The requests for one token that follow a refusal of all. Others who wait ask once when the next
/// token comes, and whoever asks twice then is always too late.
const TRIES_WITH_ONE: u32 = 20;

/// The tokens wanted: `tokens`, all or nothing, or up to `want` units of `cost` tokens each.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct AcquireBody {
    /// The rate-limit key; empty for none.
    key: Option<String>,
    /// Tokens wanted, all or nothing; in place of `cost` and `want`.
    tokens: Option<f64>,
    /// Another name of `tokens`, for callers that know it from LimitLion.
    requested_tokens: Option<f64>,
    /// Tokens that one unit costs; 1 if absent.
    cost: Option<f64>,
    /// Units of work wanted, 0 to 100,000; 1 if absent. 0 with a `holder` only reports the jobs
    /// that it holds.
    want: Option<u32>,
    /// Milliseconds that the server may wait until it grants something, up to 30,000; 0 if absent.
    /// Not for peek.
    wait_ms: Option<u32>,
    /// A name of your own, unique for each start of a process. With it each unit is a job that
    /// counts towards the limits of concurrency until you report otherwise; without it those limits
    /// do not apply.
    holder: Option<String>,
    /// Jobs of this throttle that the holder runs now; 0 if absent. At most the number granted to
    /// it counts.
    held: Option<u32>,
    /// Jobs of this key that the holder runs now; 0 if absent. At most the number granted to it
    /// counts.
    key_held: Option<u32>,
    /// Seconds after which the holder's report expires, up to 120; 30 if absent.
    ttl_s: Option<f64>,
    /// The rate with which the throttle is made if it does not exist, in tokens per second. Knobs
    /// set in the store take precedence.
    rps: Option<f64>,
    /// The burst for that, in windows; only with `rps`.
    burst: Option<f64>,
    /// The window for that, in seconds; only with `rps`.
    window: Option<f64>,
    /// The rate of each key for that, in tokens per second; only with `rps`.
    key_rps: Option<f64>,
    /// The burst of each key for that, in windows; only with `rps`.
    key_burst: Option<f64>,
    /// The rolling windows for that, such as `10/1 1000/3600`; only with `rps`.
    windows: Option<String>,
    /// The rolling windows of each key for that; only with `rps`.
    key_windows: Option<String>,
}

/// The answer to a request for tokens.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Granted {
    /// True if everything wanted is granted.
    allowed: bool,
    /// Units of work that may be done now, 0 to `want`; with `tokens` 1 or 0.
    granted: u32,
    /// Whole tokens that are left in the level that holds the fewest. `null` where nothing limits,
    /// or while Redis does not answer.
    remaining: Option<u32>,
    /// Milliseconds until the next unit fits; 0 if everything was granted.
    retry_after_ms: u64,
    /// The same wait in seconds.
    wait_s: f64,
    /// The time at which the wait ends, by the store's clock; `null` if it is unknown.
    until: Option<Timestamp>,
    /// The level that limits: `tier`, `throttle`, `key`, `learned`, `probing`, `concurrency`,
    /// `holders`, `paused`, `stopped`, `unknown` or `store_lost`, with its facts. `null` if
    /// everything was granted.
    #[schema(value_type = Option<Object>)]
    limit: Option<Limit>,
    /// The limit in one sentence.
    reason: Option<String>,
    /// The throttle's rate in force, in tokens per second; -1 is unlimited.
    #[schema(value_type = f64)]
    effective_rps: RateLimit,
    /// True if a limit of concurrency applies, so that a holder must report when it holds fewer
    /// jobs.
    limits_concurrency: bool,
}

/// Takes tokens.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/acquire", operation_id = "acquire_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = AcquireBody,
    responses((status = 200, body = Granted)))]
pub async fn acquire(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Granted>, Problem> {
    let (ask, wait, knobs) = read(&state, &caller, name, request, true).await?;
    let take = async || {
        if wait.is_zero() {
            state.throttles.acquire(&ask).await
        } else {
            wait_for(&state, &caller, &ask, wait).await
        }
    };
    let mut answer = take().await;
    if declare_again(&state, &ask, knobs.as_ref(), &answer).await? {
        answer = take().await;
    }
    for (lane, grant) in ask.lanes.iter().zip(&answer.lanes) {
        // A request for nothing only reports what its holder runs.
        if lane.want > 0 && !grant.says_unknown(&ask.throttle) {
            let (tokens, throttle) = (&state.tokens, ask.throttle.as_str());
            let is_allowed = grant.granted > 0;
            match answer.at_us {
                0 => tokens.note_unanswered(throttle, &lane.key, is_allowed),
                _ => tokens.note(throttle, &lane.key, is_allowed),
            }
        }
    }
    granted(&state, &caller, &ask, answer, false)
        .await
        .map(Json)
}

/// Returns the answer that acquire would give, and takes nothing.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/peek", operation_id = "peek_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = AcquireBody,
    responses((status = 200, body = Granted)))]
pub async fn peek(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Granted>, Problem> {
    let (ask, _, knobs) = read(&state, &caller, name, request, false).await?;
    let mut answer = state.throttles.peek(&ask).await;
    if declare_again(&state, &ask, knobs.as_ref(), &answer).await? {
        answer = state.throttles.peek(&ask).await;
    }
    granted(&state, &caller, &ask, answer, true).await.map(Json)
}

/// Makes the throttle of the knobs that the caller brings, if there is none.
async fn declare(
    state: &ThrottlesState,
    ask: &AcquireRequest,
    knobs: Option<&KnobTexts>,
) -> Result<(), Problem> {
    let Some(knobs) = knobs else {
        return Ok(());
    };
    let declared = state
        .caller_knobs
        .declare(
            &*state.throttles,
            &ask.throttle,
            knobs,
            state.throttles_created_max,
        )
        .await;
    match declared {
        // While the store cannot be reached, the throttle's knob for its loss decides on the grant.
        Ok(()) | Err(throttle::Error::Lost(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes the throttle again if it was deleted since it was made; returns true if it was.
async fn declare_again(
    state: &ThrottlesState,
    ask: &AcquireRequest,
    knobs: Option<&KnobTexts>,
    answer: &AcquireResponse,
) -> Result<bool, Problem> {
    if knobs.is_none()
        || !answer
            .lanes
            .iter()
            .any(|grant| grant.says_unknown(&ask.throttle))
    {
        return Ok(false);
    }
    state.caller_knobs.forget(&ask.throttle);
    declare(state, ask, knobs).await?;
    Ok(true)
}

/// Reads the tokens wanted and the time for which the server may wait for them, and makes the
/// throttle of the knobs that the caller brings, if there is none.
async fn read(
    state: &ThrottlesState,
    caller: &Caller,
    name: String,
    request: Request,
    may_wait: bool,
) -> Result<(AcquireRequest, Duration, Option<KnobTexts>), Problem> {
    let throttle = name_of(name)?;
    let mut errors = Errors::default();
    let (mut lane, mut holder, mut wait, mut cost_field) =
        (LaneRequest::default(), None, Duration::ZERO, "cost");
    let value = body::json_or_empty(request, body::ONE_BYTES_MAX).await?;
    let allowed = [
        "key",
        "tokens",
        "requested_tokens",
        "cost",
        "want",
        "holder",
        "held",
        "key_held",
        "ttl_s",
        "rps",
        "burst",
        "window",
        "key_rps",
        "key_burst",
        "windows",
        "key_windows",
        "wait_ms",
    ];
    let mut knobs = None;
    let allowed = if may_wait {
        &allowed[..]
    } else {
        &allowed[..allowed.len() - 1]
    };
    if let Some(mut fields) = ObjectReader::open(value, "", allowed, &mut errors) {
        lane.key = fields.text("key", 0..=KEY_BYTES_MAX).unwrap_or_default();
        let named = ["tokens", "requested_tokens"].map(|name| fields.has(name));
        let tokens_field = if named[1] {
            "requested_tokens"
        } else {
            "tokens"
        };
        if named == [true, true] {
            fields.wrong(
                tokens_field,
                "is another name of tokens; allowed: one of the two",
            );
        }
        if named.contains(&true) && (fields.has("cost") || fields.has("want")) {
            fields.wrong(tokens_field, "tokens are wanted all or nothing; allowed: tokens alone, or cost and want without tokens");
        }
        let cost = fields.positive("cost", COST_MAX, " tokens");
        let tokens = fields.positive(tokens_field, COST_MAX, " tokens");
        cost_field = if tokens.is_some() {
            tokens_field
        } else {
            "cost"
        };
        lane.cost = tokens.or(cost).unwrap_or(1.0);
        lane.want = fields
            .whole("want", 0..=WANT_MAX, "")
            .and_then(|want| u32::try_from(want).ok())
            .unwrap_or(1);
        let wait_ms = fields
            .whole("wait_ms", 0..=WAIT_MS_MAX, " milliseconds")
            .and_then(|wait_ms| u64::try_from(wait_ms).ok());
        wait = Duration::from_millis(wait_ms.unwrap_or(0));
        let mut held = |field| {
            fields
                .whole(field, 0..=HELD_MAX, " jobs")
                .and_then(|held| u32::try_from(held).ok())
                .unwrap_or(0)
        };
        let (all, of_key) = (held("held"), held("key_held"));
        knobs = knobs_of(&mut fields, caller, &throttle);
        lane.held = of_key;
        let ttl = Duration::from_secs_f64(
            fields
                .positive("ttl_s", TTL_S_MAX, " seconds")
                .unwrap_or(TTL_S),
        );
        holder = fields
            .text("holder", 1..=HOLDER_BYTES_MAX)
            .map(|id| Holder {
                id: holder_id(caller.tenant.as_deref(), &id),
                ttl,
                held: all,
            });
    }
    if !errors.is_empty() {
        return Err(Problem::fields(Code::InvalidFields, errors));
    }
    let ask = AcquireRequest {
        throttle,
        lanes: vec![lane],
        holder,
    };
    declare(state, &ask, knobs.as_ref()).await?;
    // Most requests ask for one token. For them the check is skipped: a throttle that limits a job
    // to less charges less.
    let cost = ask.lanes[0].cost;
    if cost > 1.0 {
        match check_wanted(&*state.throttles, &ask.throttle, cost_field, cost).await {
            // While the store cannot be read, the throttle's knob for the loss of Redis decides on
            // the grant.
            Err(throttle::Error::Lost(_)) => {}
            checked => checked?,
        }
    }
    Ok((ask, wait, knobs))
}

/// Returns the name under which a limit of concurrency counts the jobs of a holder. Holders of one
/// tenant never count as those of another, because no name of a tenant has the separator.
fn holder_id(tenant: Option<&str>, id: &str) -> String {
    format!("{GUEST}{}|{id}", tenant.unwrap_or_default())
}

/// Takes tokens, and waits for them up to `wait`.
///
/// Only the first of the requests that wait for one lane asks the store; the others queue behind
/// it. So a thousand waiting requests cost Redis as much as one, and a request for many tokens is
/// not overtaken forever by requests for few. Requests for other keys overtake it a few times.
async fn wait_for(
    state: &ThrottlesState,
    caller: &Caller,
    ask: &AcquireRequest,
    wait: Duration,
) -> AcquireResponse {
    let began = Instant::now();
    let throttles = &state.throttles;
    let (key, tenant) = (&ask.lanes[0].key, caller.tenant.as_ref());
    let Some(line) = state.lines.join(&ask.throttle, key, tenant) else {
        return throttles.acquire(ask).await;
    };
    let turn = tokio::select! {
        turn = timeout(wait, line.turn()) => turn.ok(),
        () = state.cancel.cancelled() => None,
    };
    let (mut turns_lost, mut tries) = (0, 0);
    let mut short_until: Option<Instant> = None;
    loop {
        let answer = take_turn(&**throttles, ask, turns_lost, &mut tries).await;
        let left = wait.saturating_sub(began.elapsed());
        let is_over = turn.is_none() || left.is_zero() || state.cancel.is_cancelled();
        let Some(reported) = answer
            .lanes
            .first()
            .and_then(|grant| retry_wait(ask, grant))
            .filter(|_| !is_over)
        else {
            return answer;
        };
        let now = Instant::now();
        // Tokens that others take move the end with each answer, so the first one counts.
        if answer.at_us == 0 {
            // A lost store charges nothing later.
            turns_lost = 0;
        } else if is_short(&answer) && short_until.is_none_or(|end| end <= now) {
            turns_lost += 1;
            short_until = Some(now + reported.min(wait));
        }
        tokio::select! {
            () = sleep(reported.clamp(NAP_MIN, NAP_MAX).min(left)) => {}
            () = state.cancel.cancelled() => {}
        }
    }
}

/// Returns true if a throttle has fewer tokens than wanted. Rolling windows are exact, and allow
/// nothing to be charged later.
fn is_short(answer: &AcquireResponse) -> bool {
    let limit = answer.lanes.first().and_then(|grant| grant.limit.as_ref());
    matches!(limit, Some(Limit::Throttle | Limit::Tier { .. })) && !answer.has_windows
}

/// Takes what a request asks for, or one token if it has lost its turns and is short of others. Its
/// windows and the limits of its key have room for all of it then, by the last refusal of all;
/// `tries` are the requests for one token that are left until the next.
async fn take_turn(
    throttles: &dyn Store,
    ask: &AcquireRequest,
    turns_lost: u32,
    tries: &mut u32,
) -> AcquireResponse {
    let begins = turns_lost >= TURNS_LOST && ask.lanes[0].cost > 1.0;
    if !begins || *tries == 0 {
        let answer = throttles.acquire(ask).await;
        let is_refused = answer.lanes.iter().all(|grant| grant.granted == 0);
        if !(begins && is_refused && is_short(&answer)) {
            return answer;
        }
        *tries = TRIES_WITH_ONE;
    }
    let answer = begin_with_one(throttles, ask).await;
    *tries = match is_short(&answer) {
        true => *tries - 1,
        false => 0,
    };
    answer
}

/// Takes one token of one unit, and charges the rest of it, for which all then wait: what others
/// take one by one is never enough for many.
async fn begin_with_one(throttles: &dyn Store, ask: &AcquireRequest) -> AcquireResponse {
    let lane = &ask.lanes[0];
    let one = AcquireRequest {
        lanes: vec![LaneRequest {
            want: 1,
            cost: 1.0,
            ..lane.clone()
        }],
        ..ask.clone()
    };
    let answer = throttles.acquire(&one).await;
    let is_charged = answer.at_us > 0 && answer.lanes.iter().any(|grant| grant.granted > 0);
    // At once it would have been charged no more than this.
    let rest = lane.cost.min(answer.max_cost) - 1.0;
    if is_charged
        && rest > 0.0
        && let Err(error) = throttles
            .settle_many(&ask.throttle, &[(lane.key.as_str(), rest)])
            .await
    {
        tracing::debug!(throttle.name = %ask.throttle, %error, "charging the rest failed");
    }
    answer
}

/// Returns the wait of a caller that got nothing; `None` if there is nothing to wait for.
fn retry_wait(ask: &AcquireRequest, grant: &Grant) -> Option<Duration> {
    (grant.granted == 0 && ask.lanes[0].want > 0 && !grant.says_unknown(&ask.throttle))
        .then_some(grant.wait)
}

/// Builds the answer for one lane. A peek does not subtract its grant from the remaining tokens.
async fn granted(
    state: &ThrottlesState,
    caller: &Caller,
    ask: &AcquireRequest,
    mut answer: AcquireResponse,
    is_peek: bool,
) -> Result<Granted, Problem> {
    if !caller.sees(ask.throttle.as_str()) {
        waiting::without_texts(&mut answer);
    }
    let Some(grant) = answer.lanes.into_iter().next() else {
        return Err(Problem::new(
            Code::Internal,
            "the throttle store answered without a grant",
        ));
    };
    // A request for nothing is refused by no limit, and a throttle that is missing grants nothing.
    if ask.lanes[0].want == 0
        && answer.effective_rps.is_stopped()
        && matches!(state.throttles.status(&ask.throttle).await, Ok(None))
    {
        return Err(Problem::throttle_not_found(&ask.throttle));
    }
    match &grant.limit {
        Some(Limit::Unknown { name }) if *name == ask.throttle => {
            // A Redis key that is not a hash is not a throttle, but an operator still has to remove
            // it.
            let wrong = state
                .throttles
                .status(name)
                .await
                .ok()
                .flatten()
                .and_then(|status| status.problems.into_iter().next());
            let not_found = Problem::throttle_not_found(name);
            return Err(wrong.map_or(not_found, |wrong| {
                Problem::new(Code::ThrottleNotFound, wrong.message)
            }));
        }
        Some(Limit::StoreLost) if grant.granted == 0 => {
            let what = answer.server_error.map_or_else(
                || "Redis does not answer".to_owned(),
                |server_error| format!("Redis refuses ({server_error})"),
            );
            return Err(Problem::new(
                Code::ThrottlesUnavailable,
                format!("{what}, and this throttle then grants nothing"),
            )
            .retry_after(1));
        }
        _ => {}
    }
    let lane = &ask.lanes[0];
    let remaining = match answer.at_us {
        0 => None,
        _ if grant.granted < lane.want
            && lane.cost <= 1.0
            && !matches!(grant.limit, Some(Limit::Concurrency { .. })) =>
        {
            Some(0)
        }
        _ => {
            remaining(
                &*state.throttles,
                &ask.throttle,
                LaneRequest {
                    want: if is_peek { grant.granted } else { 0 },
                    ..lane.clone()
                },
            )
            .await
        }
    };
    let until = i64::try_from(grant.wait.as_micros())
        .ok()
        .filter(|wait_us| *wait_us > 0 && answer.at_us > 0)
        .and_then(|wait_us| Timestamp::from_microsecond(answer.at_us.checked_add(wait_us)?).ok());
    let sentence = |limit| {
        waiting::sentence(
            ask.throttle.as_str(),
            &lane.key,
            answer.effective_rps,
            limit,
            grant.by_windows,
        )
    };
    Ok(Granted {
        allowed: grant.granted == lane.want,
        granted: grant.granted,
        remaining,
        retry_after_ms: grant.wait.as_micros().div_ceil(1000) as u64,
        wait_s: grant.wait.as_secs_f64(),
        until,
        reason: grant.limit.as_ref().map(sentence),
        limit: grant.limit,
        effective_rps: answer.effective_rps,
        limits_concurrency: answer.limits_concurrency,
    })
}

#[cfg(test)]
#[path = "acquire_tests.rs"]
mod tests;
