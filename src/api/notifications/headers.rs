//! The limits of a tenant in the headers of every answer about its messages.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::accept::AdmissionState;
use crate::admission::{LevelStanding, Standing};
use crate::api::clock;
use crate::api::http::caller::Caller;

/// The routes of messages.
const ROUTES: &str = "/api/v1/notifications";

/// The part of the standing that acceptance knows already.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KnownStanding {
    /// All of it.
    Whole(Standing),
    /// No message of the module waits.
    NoneWaits,
}

/// Adds the standing of the caller's tenant and module to answers of the routes of messages, refusals
/// included. A caller without a tenant has no limits.
pub async fn tell_limits(
    State(state): State<Arc<AdmissionState>>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_ours = path
        .strip_prefix(ROUTES)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let mut response = next.run(request).await;
    if !is_ours {
        return response;
    }
    let caller = response.extensions().get::<Caller>();
    let asks = caller.and_then(|caller| Some((caller.tenant.clone()?, caller.module.clone())));
    if let Some((tenant, module)) = asks {
        let now_s = clock::now().as_second();
        let standing = match response.extensions().get::<KnownStanding>().copied() {
            Some(KnownStanding::Whole(standing)) => standing,
            known => {
                let waits = known.map(|_| false);
                let admission = &state.admission;
                admission.standing(&tenant, &module, now_s, waits).await
            }
        };
        set(response.headers_mut(), &standing);
    }
    response
}

fn set(headers: &mut HeaderMap, standing: &Standing) {
    let mut set = |name: &'static str, text: String| {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    };
    let levels = [("tenant", standing.tenant), ("module", standing.module)];
    let names = [
        ("x-ratelimit-limit-tenant", "x-ratelimit-remaining-tenant"),
        ("x-ratelimit-limit-module", "x-ratelimit-remaining-module"),
    ];
    for ((_, level), (limit, remaining)) in levels.iter().zip(names) {
        if let Some(level) = level {
            set(limit, level.limit.to_string());
            set(remaining, level.remaining.to_string());
        }
    }
    set("x-ratelimit-reset", standing.resets_at_s().to_string());
    let list = |one: &dyn Fn(&str, LevelStanding) -> String| -> String {
        let told: Vec<String> = levels
            .iter()
            .filter_map(|(name, level)| Some(one(name, (*level)?)))
            .collect();
        told.join(", ")
    };
    set(
        "ratelimit-policy",
        list(&|name, level| format!("\"{name}\";q={};w={}", level.limit, level.span_s)),
    );
    set(
        "ratelimit",
        list(&|name, level| {
            let left_s = (level.resets_at_s - standing.now_s).max(0);
            format!("\"{name}\";r={};t={left_s}", level.remaining)
        }),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_tell_the_same() {
        let level = |limit, remaining, resets_at_s| {
            Some(LevelStanding {
                limit,
                span_s: 60.0,
                remaining,
                resets_at_s,
            })
        };
        let mut headers = HeaderMap::new();
        let standing = Standing {
            now_s: 1_744_714_242,
            tenant: level(100, 43, 1_744_714_260),
            module: level(50, 17, 1_744_714_250),
        };
        set(&mut headers, &standing);
        let told: Vec<(&str, &str)> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        assert_eq!(
            told,
            [
                ("x-ratelimit-limit-tenant", "100"),
                ("x-ratelimit-remaining-tenant", "43"),
                ("x-ratelimit-limit-module", "50"),
                ("x-ratelimit-remaining-module", "17"),
                ("x-ratelimit-reset", "1744714250"),
                (
                    "ratelimit-policy",
                    "\"tenant\";q=100;w=60, \"module\";q=50;w=60"
                ),
                ("ratelimit", "\"tenant\";r=43;t=18, \"module\";r=17;t=8"),
            ]
        );
    }
}
