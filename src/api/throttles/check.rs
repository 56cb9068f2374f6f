//! The check of one request of another API against its limits.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::api::http::body;
use crate::api::http::caller::digest_of;
use crate::api::http::fields::{Errors, ObjectReader};
use crate::api::http::gate::{Gate, ORIGINAL_URI, is_of_proxy, set_rate_limit_headers};
use crate::api::http::limits::RateLimitPolicy;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::remaining::take_token;
use crate::api::jobs::input::KEY_BYTES_MAX;
use crate::throttle::api_limit::limit_of;
use crate::throttle::{ApiLimit, Grant, LaneRequest, Limit, Name, OWN_API, Store};

/// The longest method and the longest path, in bytes.
pub const METHOD_BYTES_MAX: usize = 32;
pub const PATH_BYTES_MAX: usize = 8192;
/// The longest name of an API, in bytes.
pub const API_BYTES_MAX: usize = 64;

/// The key of requests without one, which share a limit.
const ANONYMOUS: &str = "anonymous";

/// The headers of a proxy that asks without a body.
const ORIGINAL_METHOD: &str = "x-original-method";
const KEY: &str = "x-limit-key";
const CUSTOMER: &str = "x-limit-customer";
const API: &str = "x-limit-api";

/// A request of another API.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct CheckedRequest {
    /// The method.
    method: String,
    /// The path; a query is ignored.
    path: String,
    /// The API key, or its identifier; requests without one share a limit.
    key: Option<String>,
    /// The customer that owns the key; absent for no limit of all its keys together.
    customer: Option<String>,
    /// The API, as the settings name it; absent for limits without one.
    api: Option<String>,
}

/// The answer to the check of a request.
#[derive(Serialize, utoipa::ToSchema)]
pub struct CheckResult {
    /// True if the request is within its limits; it has then been counted.
    allowed: bool,
    /// The limit that holds the request; `null` if none does.
    limit: Option<String>,
    /// The level that refuses: `key`, `customer`, or `limit` for neither of them alone, where the
    /// limit of all is used up or paused, or Redis does not answer; `null` if the request is
    /// allowed.
    level: Option<&'static str>,
    /// Requests that are left now, at the level with fewer; `null` where nothing limits or while
    /// Redis does not answer.
    remaining: Option<u32>,
    /// Seconds until the next request is allowed; 0 if this one is.
    reset_s: f64,
}

/// The request to check, by a body or by headers.
#[derive(Default)]
struct CheckFields {
    method: String,
    path: String,
    key: String,
    customer: String,
    api: String,
}

/// The outcome of a check, with the throttle whose limits the headers report.
struct CheckOutcome {
    result: CheckResult,
    throttle: Option<Name>,
    /// True if a limit of all keys refuses, and not one of the key.
    is_of_all: bool,
}

/// Checks a request of another API against the limits in the settings, and counts it.
///
/// A proxy asks without a body: the headers `X-Original-Method`, `X-Original-URI`, `X-Limit-Key`,
/// `X-Limit-Customer` and `X-Limit-Api` describe the request, and the answer is 204 or 403.
#[utoipa::path(post, path = "/api/v1/check", operation_id = "check_request", tag = "throttles",
    request_body = CheckedRequest,
    responses((status = 200, body = CheckResult)))]
pub async fn check(
    State(gate): State<Arc<Gate>>,
    State(store): State<Arc<dyn Store>>,
    request: Request,
) -> Result<Response, Problem> {
    let by_headers = of_headers(request.headers());
    let is_proxy = by_headers.is_some();
    let asked = match by_headers {
        Some(asked) => asked,
        None => of_body(request).await?,
    };
    let limit = limit_of(&gate.limits, &asked.api, &asked.method, &asked.path);
    let outcome = match limit {
        Some(limit) => take(&*store, &gate, limit, &asked).await?,
        None => CheckOutcome {
            result: CheckResult {
                allowed: true,
                limit: None,
                level: None,
                remaining: None,
                reset_s: 0.0,
            },
            throttle: None,
            is_of_all: false,
        },
    };
    let (allowed, wait_s) = (outcome.result.allowed, outcome.result.reset_s.ceil() as u64);
    let left = outcome.result.remaining;
    let mut response = match (is_proxy, allowed) {
        (true, true) => StatusCode::NO_CONTENT.into_response(),
        (true, false) => StatusCode::FORBIDDEN.into_response(),
        (false, _) => Json(outcome.result).into_response(),
    };
    if let Some(throttle) = outcome.throttle {
        let wait_s = if allowed { 0 } else { wait_s.max(1) };
        let promise = gate.promise(&throttle).await;
        let is_total = match allowed {
            true => promise.as_ref().is_some_and(RateLimitPolicy::is_total),
            false => outcome.is_of_all,
        };
        let standing =
            left.map(|left| RateLimitPolicy::rate_limit_header(&throttle, is_total, left, wait_s));
        set_rate_limit_headers(&mut response, promise, standing);
        if !allowed && let Ok(wait) = wait_s.to_string().parse() {
            response.headers_mut().insert("retry-after", wait);
        }
    }
    Ok(response)
}

/// Returns true if a refusal concerns one key of a throttle, and not all of them.
fn is_of_one(limit: Option<&Limit>) -> bool {
    matches!(
        limit,
        Some(
            Limit::Key
                | Limit::Learned
                | Limit::Paused { name: None, .. }
                | Limit::Probing { key: true, .. }
                | Limit::Concurrency { key: true, .. }
        )
    )
}

/// Takes a token of the key and one of its customer, both or none.
async fn take(
    store: &dyn Store,
    gate: &Gate,
    limit: &ApiLimit,
    asked: &CheckFields,
) -> Result<CheckOutcome, Problem> {
    let internal =
        |error: crate::throttle::name::InvalidName| Problem::new(Code::Internal, error.to_string());
    let of_keys = limit.of_keys().map_err(internal)?;
    let of_customers = limit.of_customers().map_err(internal)?;
    let refused = |level, throttle, grant: &Grant| CheckOutcome {
        result: CheckResult {
            allowed: false,
            limit: Some(limit.name.clone()),
            level: Some(match is_of_one(grant.limit.as_ref()) {
                true => level,
                false => "limit",
            }),
            remaining: Some(0),
            reset_s: grant.wait.as_secs_f64(),
        },
        throttle: Some(throttle),
        is_of_all: matches!(grant.limit, Some(Limit::Throttle | Limit::Stopped { .. })),
    };
    let note = |throttle: &Name, key: &str, is_allowed| {
        gate.tokens.note(throttle.as_str(), key, is_allowed);
    };
    let (by_key, mut left, limits_keys) = one(store, gate, &of_keys, &asked.key).await;
    if by_key.granted == 0 {
        note(&of_keys, &asked.key, false);
        return Ok(refused("key", of_keys, &by_key));
    }
    let mut throttle = of_keys.clone();
    if !asked.customer.is_empty() {
        let (by_customer, of_all, limits_customers) =
            one(store, gate, &of_customers, &asked.customer).await;
        if limits_customers {
            note(&of_customers, &asked.customer, by_customer.granted > 0);
        }
        if by_customer.granted == 0 {
            // The request was not served, so it counts in no window either. A token that cannot be
            // given back comes back by itself.
            let _ = store.settle_many(&of_keys, &[(&asked.key, -1.0)]).await;
            return Ok(refused("customer", of_customers, &by_customer));
        }
        if let Some(fewer) = of_all.filter(|all| left.is_none_or(|own| *all < own)) {
            (left, throttle) = (Some(fewer), of_customers);
        }
    }
    // One that its customer's limit refuses counts there alone.
    if limits_keys {
        note(&of_keys, &asked.key, true);
    }
    Ok(CheckOutcome {
        result: CheckResult {
            allowed: true,
            limit: Some(limit.name.clone()),
            level: None,
            remaining: left,
            reset_s: 0.0,
        },
        throttle: Some(throttle),
        is_of_all: false,
    })
}

/// Takes one token of a key; returns what is left as well, and true unless the throttle limits
/// nothing: one that was deleted, or that the store has never reported to this process.
async fn one(
    store: &dyn Store,
    gate: &Gate,
    throttle: &Name,
    key: &str,
) -> (Grant, Option<u32>, bool) {
    let wanted = LaneRequest {
        key: key.to_owned(),
        ..LaneRequest::default()
    };
    let (answer, mut left) = take_token(store, throttle, wanted).await;
    let was_asked = answer.at_us > 0;
    let mut grant = answer.lanes.into_iter().next().unwrap_or_default();
    // A missing parent is no missing limit: it stops this throttle like any other.
    let is_unknown = grant.says_unknown(throttle);
    if was_asked {
        gate.note_answer(throttle, !is_unknown);
    }
    let is_unreported = grant.limit == Some(Limit::StoreLost) && !gate.knows(throttle);
    let limits = !is_unknown && !is_unreported;
    if !limits {
        (grant.granted, grant.limit, left) = (1, None, None);
    }
    (grant, left, limits)
}

/// Reads the headers of a proxy; `None` if there are none.
///
/// Any bytes are accepted: the client chooses them, and a proxy that gets an error lets the request
/// through.
fn of_headers(headers: &HeaderMap) -> Option<CheckFields> {
    if !is_of_proxy(headers) {
        return None;
    }
    let bytes = |name: &str| headers.get(name).map_or(&[][..], HeaderValue::as_bytes);
    let text = |name: &str| String::from_utf8_lossy(bytes(name)).into_owned();
    // The key that a proxy passes on is a secret, so only its digest is stored and shown.
    let key = match bytes(KEY) {
        [] => ANONYMOUS.to_owned(),
        key => digest_of(key),
    };
    let customer = match str::from_utf8(bytes(CUSTOMER)) {
        Ok(customer) if customer.len() <= KEY_BYTES_MAX => customer.to_owned(),
        _ => digest_of(bytes(CUSTOMER)),
    };
    Some(CheckFields {
        method: match text(ORIGINAL_METHOD) {
            method if method.is_empty() => "GET".to_owned(),
            method => method,
        },
        path: text(ORIGINAL_URI),
        key,
        customer,
        api: text(API),
    })
}

async fn of_body(request: Request) -> Result<CheckFields, Problem> {
    let mut errors = Errors::default();
    let value = body::json_or_empty(request, body::ONE_BYTES_MAX).await?;
    let mut asked = CheckFields::default();
    let allowed = ["method", "path", "key", "customer", "api"];
    if let Some(mut fields) = ObjectReader::open(value, "", &allowed, &mut errors) {
        for required in ["method", "path"] {
            if !fields.has(required) {
                fields.missing(required, "a text");
            }
        }
        let mut text = |name: &str, bytes: std::ops::RangeInclusive<usize>| {
            fields.text(name, bytes).unwrap_or_default()
        };
        asked = CheckFields {
            method: text("method", 1..=METHOD_BYTES_MAX),
            path: text("path", 1..=PATH_BYTES_MAX),
            key: text("key", 0..=KEY_BYTES_MAX),
            customer: text("customer", 0..=KEY_BYTES_MAX),
            api: text("api", 0..=API_BYTES_MAX),
        };
        if asked.key.is_empty() {
            ANONYMOUS.clone_into(&mut asked.key);
        }
        if asked.api == OWN_API {
            fields.wrong(
                "api",
                "must be the name of another API; flyball limits its own requests by itself"
                    .to_owned(),
            );
        }
    }
    if errors.is_empty() {
        Ok(asked)
    } else {
        Err(Problem::fields(Code::InvalidFields, errors))
    }
}
