//! Reports of programs that took tokens: unused tokens, the real cost of their work, refusals by
//! other servers, and how work ended that a throttle watches.

use std::sync::Arc;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;

use super::knobs::name_of;
use super::state::ThrottlesState;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader, seconds};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::remaining::remaining;
use crate::api::jobs::input::{COST_MAX, KEY_BYTES_MAX, SPAN_MAX_S};
use crate::api::throttles::acquire::WANT_MAX;
use crate::api::work::endings::ERROR_BYTES_MAX;
use crate::throttle::{
    KeyOutcomes, LaneRequest, MAX_PAUSE, Name, Quota, SHARED_PAUSE_MAX, Scope, Status,
    UpstreamRefusal, check_cost, check_settled, first_shared,
};

/// The reason of a refusal that gives none.
const UNEXPLAINED: &str = "a program reported that its server asked to slow down";

/// Tokens that no work used.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct UnusedTokens {
    /// The rate-limit key for which the tokens were taken; empty for none.
    key: Option<String>,
    /// The number of unused tokens.
    tokens: f64,
}

/// The tokens that are returned.
#[derive(Serialize, utoipa::ToSchema)]
pub struct ReturnedTokens {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// The number of tokens returned; a full bucket stays full.
    returned: f64,
    /// Whole tokens that are left, as in the answer of acquire.
    remaining: Option<u32>,
}

/// The tokens that work was charged, and those that it really cost.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct RealCost {
    /// The rate-limit key for which the tokens were taken; empty for none.
    key: Option<String>,
    /// The tokens that were taken.
    charged: f64,
    /// The tokens that the work cost.
    cost: f64,
}

/// The difference that was settled.
#[derive(Serialize, utoipa::ToSchema)]
pub struct SettledTokens {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// The tokens that were charged in addition; below 0 for those that were returned.
    settled: f64,
    /// Whole tokens that are left, as in the answer of acquire.
    remaining: Option<u32>,
}

/// A refusal by another server, such as a 429.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct ServerRefusal {
    /// The rate-limit key of the refused work; empty for none.
    key: Option<String>,
    /// Seconds that the server asked to wait; by the throttle's own rules if absent.
    retry_after_s: Option<f64>,
    /// The work that must wait: that of the same `key` (if absent), of the whole `throttle`, or all
    /// of the `account` above it; no more than the knob `trust_scope` allows.
    scope: Option<String>,
    /// True if the server sheds load from all its callers, so that the refusal says nothing about
    /// the rate.
    overloaded: Option<bool>,
    /// The answer of the server, shown to operators.
    error: Option<String>,
}

/// The pause that a refusal caused.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RefusalPauseSet {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// The time until which other work waits too; `null` if only the refused work should wait.
    paused_until: Option<Timestamp>,
    /// Seconds after which to ask for tokens again.
    wait_s: f64,
}

/// The ends of work whose tokens were taken.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct WorkEnds {
    /// The rate-limit key; empty for none.
    key: Option<String>,
    /// Units that succeeded; 0 if absent.
    succeeded: Option<u32>,
    /// Units that failed without a refusal, or were granted and never begun; 0 if absent.
    failed: Option<u32>,
    /// The tokens of the units that succeeded; one for each if absent.
    tokens: Option<f64>,
    /// Seconds since the last of them began.
    begun_ago_s: Option<f64>,
    /// The requests that the server has left for this key, as it reported; with `reset_s`.
    remaining: Option<f64>,
    /// Seconds until these are full again; with `remaining`.
    reset_s: Option<f64>,
}

/// The ends that were noted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct NotedEnds {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// Units that succeeded.
    succeeded: u32,
    /// Units that failed.
    failed: u32,
}

/// Returns tokens that no work used.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/return", operation_id = "return_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = UnusedTokens,
    responses((status = 200, body = ReturnedTokens)))]
pub async fn give_back(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<ReturnedTokens>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| {
        if !fields.contains("tokens") {
            let allowed = format!("a number above 0 and at most {COST_MAX} tokens");
            fields.missing("tokens", &allowed);
        }
        fields.positive("tokens", COST_MAX, " tokens")
    };
    let (throttle, key, returned) = report(name, request, &["tokens"], read).await?;
    let returned = returned.unwrap_or(0.0);
    may_give_back(&state, &caller, &throttle).await?;
    // No single request can have taken more.
    check_cost(&*state.throttles, &throttle, "tokens", returned).await?;
    let remaining = correct(&state, &throttle, &key, -returned).await?;
    Ok(Json(ReturnedTokens {
        throttle: throttle.to_string(),
        key,
        returned,
        remaining,
    }))
}

/// Charges or returns the difference between the tokens that were taken and the real cost.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/settle", operation_id = "settle_tokens", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = RealCost,
    responses((status = 200, body = SettledTokens)))]
pub async fn settle(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<SettledTokens>, Problem> {
    let read = |fields: &mut ObjectReader<'_>| {
        ["charged", "cost"].map(|field| {
            if !fields.contains(field) {
                fields.missing(field, &format!("a number from 0 to {COST_MAX} tokens"));
            }
            fields.number(field, 0.0..=COST_MAX, " tokens")
        })
    };
    let (throttle, key, [charged, cost]) =
        report(name, request, &["charged", "cost"], read).await?;
    let (charged, cost) = (charged.unwrap_or(0.0), cost.unwrap_or(0.0));
    if cost < charged {
        may_give_back(&state, &caller, &throttle).await?;
    }
    // No single request can have taken more, and none can cost more.
    check_settled(&*state.throttles, &throttle, charged, cost).await?;
    let settled = cost - charged;
    let remaining = correct(&state, &throttle, &key, settled).await?;
    Ok(Json(SettledTokens {
        throttle: throttle.to_string(),
        key,
        settled,
        remaining,
    }))
}

/// Reports that another server asked to slow down: the key waits, in all processes, and learns its
/// rate.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/refused", operation_id = "report_refusal", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = ServerRefusal,
    responses((status = 200, body = RefusalPauseSet)))]
pub async fn refused(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<RefusalPauseSet>, Problem> {
    let allowed = ["retry_after_s", "scope", "overloaded", "error"];
    let (throttle, key, (delay, scope, is_overload, why)) =
        report(name, request, &allowed, |fields| {
            let longest = 0.0..=MAX_PAUSE.as_secs_f64();
            (
                seconds(fields, "retry_after_s", longest),
                fields.choice("scope", &Scope::WORDS).unwrap_or_default(),
                fields.flag("overloaded").unwrap_or(false),
                fields.text("error", 0..=ERROR_BYTES_MAX),
            )
        })
        .await?;
    let status = exists(&state, &throttle).await?;
    // Programs of one tenant must not stop a throttle for another, nor make its key slow for long.
    let is_own = caller.sees(throttle.as_str());
    let refused = UpstreamRefusal {
        key: &key,
        scope: if is_own { scope } else { Scope::Key },
        is_overload: is_overload || !is_own,
        is_untrusted: true,
        delay: delay.map(|delay| match is_own {
            true => delay,
            false => delay.min(SHARED_PAUSE_MAX),
        }),
        jitter: rand::random(),
        why: why.as_deref().unwrap_or(UNEXPLAINED),
    };
    let effect = state.throttles.refused(&throttle, &refused).await?;
    let until = Timestamp::from_millisecond(effect.until_ms).ok();
    // The pause ends by the clock of the store.
    let wait_s = match effect.alone {
        Some(alone) => alone.as_secs_f64(),
        None => (effect.until_ms as f64 / 1e3 - status.at_us as f64 / 1e6).max(0.0),
    };
    Ok(Json(RefusalPauseSet {
        throttle: throttle.to_string(),
        key,
        paused_until: until.filter(|_| effect.alone.is_none()),
        wait_s,
    }))
}

/// Reports how work ended. After a refusal this opens the key again; without it one unit goes at a
/// time.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/ended", operation_id = "report_ends", tag = "throttles",
    params(("name" = String, Path, description = "The throttle.")),
    request_body = WorkEnds,
    responses((status = 200, body = NotedEnds)))]
pub async fn ended(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<NotedEnds>, Problem> {
    let allowed = [
        "succeeded",
        "failed",
        "tokens",
        "begun_ago_s",
        "remaining",
        "reset_s",
    ];
    let (throttle, key, mut outcomes) = report(name, request, &allowed, |fields| {
        let mut units = |field| {
            fields
                .whole(field, 0..=WANT_MAX, " units")
                .and_then(|units| u32::try_from(units).ok())
                .unwrap_or(0)
        };
        let (succeeded, failed) = (units("succeeded"), units("failed"));
        if succeeded == 0 && failed == 0 {
            fields.wrong_whole("must have succeeded or failed, above 0");
        }
        if fields.has("remaining") != fields.has("reset_s") {
            fields.wrong_whole("must have both of the fields remaining and reset_s, or none");
        }
        let tokens = fields.number("tokens", 0.0..=COST_MAX, " tokens");
        let left = fields.number("remaining", 0.0..=COST_MAX, " requests");
        let reset = seconds(fields, "reset_s", 0.0..=SPAN_MAX_S);
        KeyOutcomes {
            key: "",
            succeeded,
            tokens: tokens.unwrap_or_else(|| f64::from(succeeded)),
            failed,
            begun_ago: seconds(fields, "begun_ago_s", 0.0..=SPAN_MAX_S),
            quota: left
                .zip(reset)
                .map(|(remaining, reset)| Quota { remaining, reset }),
            is_untrusted: true,
        }
    })
    .await?;
    exists(&state, &throttle).await?;
    outcomes.key = &key;
    if !caller.sees(throttle.as_str()) {
        // The next refusal would take next to nothing for what the server allows.
        outcomes.tokens = outcomes.tokens.max(f64::from(outcomes.succeeded));
        if let Some(quota) = &mut outcomes.quota {
            quota.reset = quota.reset.min(SHARED_PAUSE_MAX);
        }
    }
    let (succeeded, failed) = (outcomes.succeeded, outcomes.failed);
    state.throttles.ended(&throttle, &[outcomes]).await?;
    Ok(Json(NotedEnds {
        throttle: throttle.to_string(),
        key,
        succeeded,
        failed,
    }))
}

/// Charges tokens to a key, or returns those below 0; returns the whole tokens that are left.
async fn correct(
    state: &ThrottlesState,
    throttle: &Name,
    key: &str,
    tokens: f64,
) -> Result<Option<u32>, Problem> {
    state
        .throttles
        .settle_many(throttle, &[(key, tokens)])
        .await?;
    let lane = LaneRequest {
        key: key.to_owned(),
        want: 0,
        ..LaneRequest::default()
    };
    Ok(remaining(&*state.throttles, throttle, lane).await)
}

/// Refuses to give tokens back, for a caller bound to a tenant, to a throttle that others share, or
/// to one below it. A token that was used cannot be told from one that was not, so a tenant that
/// gives back what it used lifts the limit of all.
async fn may_give_back(
    state: &ThrottlesState,
    caller: &Caller,
    throttle: &Name,
) -> Result<(), Problem> {
    let Some(tenant) = &caller.tenant else {
        return Ok(());
    };
    let Some(name) = first_shared(&*state.throttles, throttle, tenant).await? else {
        return Ok(());
    };
    let detail = format!(
        "token {} is bound to tenant {tenant} and gives no tokens back to throttle {name}, which is not the tenant's own; allowed: throttles tenant:{tenant}/<name> without a parent that others share",
        caller.token_name()
    );
    Err(Problem::new(Code::NotAllowed, detail))
}

/// Returns the status of a throttle, or refuses one that does not exist: nothing would read what is
/// noted about its keys.
async fn exists(state: &ThrottlesState, throttle: &Name) -> Result<Status, Problem> {
    let status = state.throttles.status(throttle).await?;
    status.ok_or_else(|| Problem::throttle_not_found(throttle))
}

/// Reads a report: the throttle of its path, its key, and the fields that `read` takes.
async fn report<T>(
    name: String,
    request: Request,
    allowed: &[&str],
    read: impl FnOnce(&mut ObjectReader<'_>) -> T,
) -> Result<(Name, String, T), Problem> {
    let throttle = name_of(name)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let mut errors = Errors::default();
    let fields: Vec<&str> = ["key"].iter().chain(allowed).copied().collect();
    let found = ObjectReader::open(value, "", &fields, &mut errors).map(|mut fields| {
        let key = fields.text("key", 0..=KEY_BYTES_MAX).unwrap_or_default();
        (key, read(&mut fields))
    });
    match found.filter(|_| errors.is_empty()) {
        Some((key, own)) => Ok((throttle, key, own)),
        None => Err(Problem::fields(Code::InvalidFields, errors)),
    }
}
