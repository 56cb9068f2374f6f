//! Pause and resumption of one key of a throttle.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::{Extension, Json};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::admission::{is_author, tenant_author};
use crate::api::audit::entry::AuditEntry;
use crate::api::audit::log;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, FieldLocation, ObjectReader};
use crate::api::http::operate::{BY_BYTES_MAX, Reason, WHY_BYTES_MAX, signed};
use crate::api::http::problem::{Code, Problem};
use crate::api::throttles::knobs::{name_of, status};
use crate::api::throttles::pause::paused_by_operators;
use crate::api::throttles::state::ThrottlesState;
use crate::throttle::tenant::{is_made_by, tenant_of};
use crate::throttle::{MAX_PAUSE, Name, check_key};

/// A new pause.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct KeyPause {
    /// The duration of the pause from now, in seconds, above 0 and at most 30 days. A longer pause
    /// in force stays.
    seconds: f64,
    /// The reason, shown to people.
    why: Option<String>,
    /// The author of the change, for the audit log.
    by: Option<String>,
}

/// A pause in force.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KeyPaused {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// The end of the pause.
    until: Option<Timestamp>,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// A pause that has ended.
#[derive(Serialize, utoipa::ToSchema)]
pub struct KeyResumed {
    /// The throttle.
    throttle: String,
    /// The key.
    key: String,
    /// False if the key was neither paused nor on trial after a refusal.
    resumed: bool,
    /// Warnings about side effects that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<String>,
}

/// Pauses a key. In a throttle that limits a tenant, a token of the tenant pauses no key that
/// operators have paused.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/keys/{key}/pause", operation_id = "pause_key", tag = "throttles",
    params(("name" = String, Path, description = "The throttle."), ("key" = String, Path, description = "The key, percent-encoded; `-` stands for jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more.")),
    request_body = KeyPause,
    responses((status = 200, body = KeyPaused)))]
pub async fn pause(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path((name, key)): Path<(String, String)>,
    request: Request,
) -> Result<Json<KeyPaused>, Problem> {
    let (name, key) = (name_of(name)?, key_of(key)?);
    let mut errors = Errors::default();
    let mut seconds = None;
    let (mut why, mut by) = (String::new(), caller.who().to_owned());
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    if let Some(mut fields) = ObjectReader::open(value, "", &["seconds", "why", "by"], &mut errors)
    {
        match fields.take("seconds") {
            Some(value) => {
                seconds = fields.positive_of(
                    "seconds",
                    &value,
                    MAX_PAUSE.as_secs_f64(),
                    " seconds (30 days)",
                )
            }
            None => {
                let most = MAX_PAUSE.as_secs();
                fields.wrong(
                    "seconds",
                    format!("is missing: it must be a number above 0 and at most {most} (30 days)"),
                );
            }
        }
        why = fields
            .text_or_null("why", 0..=WHY_BYTES_MAX)
            .unwrap_or_default();
        by = fields.text_or_null("by", 1..=BY_BYTES_MAX).unwrap_or(by);
    }
    let Some(seconds) = seconds.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    let found = status(&state, &name).await?;
    let name = found.name;
    let (mut delay, mut reason) = (Duration::from_secs_f64(seconds), why.clone());
    let earlier = pause_in_limit(&state, &name, &key).await?;
    if caller.tenant.is_some() {
        refuse_operators_pause(&name, &key, earlier.as_ref())?;
        if let Some(tenant) = limited_tenant(&name) {
            reason = tenant_author(tenant, &why);
        }
    } else if let Some(earlier) = earlier.filter(|earlier| earlier.is_tenants) {
        // The longer of two pauses stays with its reason, by which the tenant could end this one.
        delay = delay.max(earlier.left(found.at_us) + Duration::from_millis(1));
    }

    let until_ms = state
        .throttles
        .pause_key(&name, &key, delay, &reason)
        .await?;

    let until = Timestamp::from_millisecond(until_ms).ok();
    let mut entry = AuditEntry::now(by, "key.pause", name.to_string(), why).by(&caller);
    entry.after = Some(json!({"key": key, "seconds": seconds, "until": until}));
    let warnings = log::note(&state.queue, &entry).await.into_iter().collect();
    Ok(Json(KeyPaused {
        throttle: name.to_string(),
        key,
        until,
        warnings,
    }))
}

/// Ends the pause of a key. In a throttle that limits a tenant, a token of the tenant resumes only
/// what one of its tenant's tokens has paused.
#[utoipa::path(post, path = "/api/v1/throttles/{name}/keys/{key}/resume", operation_id = "resume_key", tag = "throttles",
    params(("name" = String, Path, description = "The throttle."), ("key" = String, Path, description = "The key, percent-encoded; `-` stands for jobs without a key, and a key of only minuses, or of one or two dots and minuses, gets one more.")),
    request_body = Reason,
    responses((status = 200, body = KeyResumed)))]
pub async fn resume(
    State(state): State<Arc<ThrottlesState>>,
    Extension(caller): Extension<Caller>,
    Path((name, key)): Path<(String, String)>,
    request: Request,
) -> Result<Json<KeyResumed>, Problem> {
    let (name, key) = (name_of(name)?, key_of(key)?);
    let ((), signed) = signed(request, &caller, &["why", "by"], |_| ()).await?;
    let name = status(&state, &name).await?.name;
    if caller.tenant.is_some() {
        let earlier = pause_in_limit(&state, &name, &key).await?;
        refuse_operators_pause(&name, &key, earlier.as_ref())?;
    }

    let known = state
        .throttles
        .look(&name, std::slice::from_ref(&key))
        .await?;
    let on_trial = known.first().is_some_and(|state| state.probing);
    let resumed = state.throttles.resume_key(&name, &key).await? || on_trial;

    let mut entry =
        AuditEntry::now(signed.by, "key.resume", name.to_string(), signed.why).by(&caller);
    entry.after = Some(json!({"key": key, "resumed": resumed}));
    let warnings = log::note(&state.queue, &entry).await.into_iter().collect();
    Ok(Json(KeyResumed {
        throttle: name.to_string(),
        key,
        resumed,
        warnings,
    }))
}

/// A pause in force of a key in a throttle that limits a tenant.
struct PauseInLimit {
    /// Its end, unix milliseconds.
    until_ms: i64,
    /// True if a token of the tenant made it.
    is_tenants: bool,
}

impl PauseInLimit {
    /// Returns the time until its end.
    fn left(&self, now_us: i64) -> Duration {
        let left_ms = self.until_ms.saturating_sub(now_us.div_euclid(1000));
        Duration::from_millis(u64::try_from(left_ms).unwrap_or(0))
    }
}

/// Returns the tenant that a throttle of the operators limits.
fn limited_tenant(name: &Name) -> Option<&str> {
    tenant_of(name.as_str()).filter(|tenant| !is_made_by(name.as_str(), tenant))
}

/// Returns the pause in force of a key; `None` if there is none, or if the throttle limits no
/// tenant.
async fn pause_in_limit(
    state: &ThrottlesState,
    name: &Name,
    key: &str,
) -> Result<Option<PauseInLimit>, Problem> {
    let Some(tenant) = limited_tenant(name) else {
        return Ok(None);
    };
    let found = state.throttles.look(name, &[key.to_owned()]).await?.pop();
    Ok(found.and_then(|found| {
        Some(PauseInLimit {
            until_ms: found.paused_until_ms?,
            is_tenants: is_author(tenant, &found.why),
        })
    }))
}

/// Refuses a tenant's change of a pause that is not its own. One that it made longer would be its
/// own.
fn refuse_operators_pause(
    name: &Name,
    key: &str,
    earlier: Option<&PauseInLimit>,
) -> Result<(), Problem> {
    match earlier {
        Some(earlier) if !earlier.is_tenants => {
            let what = format!("key {key:?} of throttle {name}");
            Err(paused_by_operators(&what))
        }
        _ => Ok(()),
    }
}

/// Parses the key of a path.
pub fn key_of(part: String) -> Result<String, Problem> {
    let key = key_of_part(part);
    check_key(&key)
        .map_err(|message| Problem::at(Code::InvalidPath, FieldLocation::Path, "key", message))?;
    Ok(key)
}

/// Decodes the key of a path. A path cannot hold an empty part, and clients remove a part of one or
/// two dots. Such a key is written with a minus at its end; one that ends in minuses already gets
/// one more.
pub fn key_of_part(mut part: String) -> String {
    if part.ends_with('-') && matches!(part.trim_end_matches('-'), "" | "." | "..") {
        part.pop();
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_can_be_written_in_a_path() {
        for (part, key) in [
            ("-", ""),
            ("--", "-"),
            ("---", "--"),
            (".-", "."),
            ("..-", ".."),
            ("..--", "..-"),
            ("...-", "...-"),
            ("a", "a"),
            ("-a", "-a"),
            ("a-", "a-"),
        ] {
            assert_eq!(key_of(part.to_owned()).unwrap(), key);
        }
        assert!(
            key_of("-".repeat(513)).is_ok()
                && key_of("-".repeat(514)).is_err()
                && key_of("a\0".to_owned()).is_err()
        );
    }
}
