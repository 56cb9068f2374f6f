//! The limits of a tenant in the headers of every answer about its messages.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

use super::accept::AdmissionState;
use super::known_usage::KnownUsage;
use crate::admission::{AdmissionUsage, LevelUsage};
use crate::api::clock;
use crate::api::http::caller::Caller;

/// The routes of messages.
const ROUTES: &str = "/api/v1/notifications";

/// Adds the usage of the caller's tenant and module to answers of the routes of messages, refusals
/// included. A caller without a tenant has no limits.
pub async fn add_limits(
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
        let usage = match response.extensions().get::<KnownUsage>().copied() {
            Some(KnownUsage::Whole(usage)) => usage,
            known => {
                let waits = known.map(|_| false);
                let admission = &state.admission;
                admission.quota_usage(&tenant, &module, now_s, waits).await
            }
        };
        set(response.headers_mut(), &usage);
    }
    response
}

fn set(headers: &mut HeaderMap, usage: &AdmissionUsage) {
    let mut set = |name: &'static str, text: String| {
        if let Ok(value) = HeaderValue::try_from(text) {
            headers.insert(name, value);
        }
    };
    let levels = [("tenant", usage.tenant), ("module", usage.module)];
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
    set("x-ratelimit-reset", usage.resets_at_s().to_string());
    let list = |one: &dyn Fn(&str, LevelUsage) -> String| -> String {
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
            let left_s = (level.resets_at_s - usage.now_s).max(0);
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
            Some(LevelUsage {
                limit,
                span_s: 60.0,
                used: limit - remaining,
                remaining,
                next_at_s: 1_744_714_242,
                resets_at_s,
            })
        };
        let mut headers = HeaderMap::new();
        let usage = AdmissionUsage {
            now_s: 1_744_714_242,
            tenant: level(100, 43, 1_744_714_260),
            module: level(50, 17, 1_744_714_250),
        };
        set(&mut headers, &usage);
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
