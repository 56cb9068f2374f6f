//! The routes of recipients: each reads and changes those of one tenant.
//!
//! The tenant is that of the token; operators name it in the query, and without it mean their own
//! recipients. No error and no line of the log shows an address.

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use super::view::{RecipientDefaults, RecipientSummary, RecipientView};
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::FieldLocation;
use crate::api::http::lagging::read_list;
use crate::api::http::link::{encoded, next_link};
use crate::api::http::operate::{from_body, signed_of_query};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};
use crate::api::http::timeout::{LIST_TIMEOUT, ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::tenants::{NAME_BYTES_MAX, only};
use crate::jobs::Queue;
use crate::recipient::new_recipient::{
    DEFAULTS_FIELDS, ID_BYTES, NewRecipient, check_id, take_profile, take_recipients,
};
use crate::recipient::postgres::{ErasedRecipient, PutRecipients, RecipientProfiles};
use crate::recipient::profile::PROFILE_FIELDS;
use crate::throttle::admission::throttle_of;

/// A profile.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewProfile {
    /// The address on each channel, in any spelling.
    #[schema(value_type = Object)]
    addresses: Option<serde_json::Value>,
    /// The IANA name of the time zone.
    time_zone: Option<String>,
    /// The IANA name of the time zone of the device, which counts first for pushes.
    device_time_zone: Option<String>,
    /// The quiet hours on each channel.
    #[schema(value_type = Object)]
    quiet_hours: Option<serde_json::Value>,
    /// The wanted and unwanted messages: `all`, `categories` and `templates`, each `true`, `false`
    /// or one of these for each channel.
    #[schema(value_type = Object)]
    preferences: Option<serde_json::Value>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// The defaults of a tenant.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewDefaults {
    /// The IANA name of the time zone of recipients without one.
    time_zone: Option<String>,
    /// The quiet hours on each channel.
    #[schema(value_type = Object)]
    quiet_hours: Option<serde_json::Value>,
    /// The wanted and unwanted messages.
    #[schema(value_type = Object)]
    preferences: Option<serde_json::Value>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// Recipients to import.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewRecipients {
    /// The recipients: an `id`, and the fields of a profile.
    #[schema(value_type = Vec<Object>)]
    recipients: Vec<serde_json::Value>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the change, for the audit log.
    why: Option<String>,
}

/// A page of recipients.
#[derive(Serialize, utoipa::ToSchema)]
pub struct RecipientList {
    /// The recipients, in the order of their ids.
    recipients: Vec<RecipientSummary>,
    /// The URL of the next page; also in the Link header.
    next: Option<String>,
}

/// Lists the recipients of a tenant, with masked addresses.
#[utoipa::path(get, path = "/api/v1/recipients", operation_id = "list_recipients", tag = "notifications",
    params(
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("after" = Option<String>, Query, description = "The cursor: the last id of the page before."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = RecipientList, headers(("Link" = String, description = "The next page, rel=\"next\".")))))]
pub async fn list_recipients(
    State(queue): State<Queue>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<impl IntoResponse, Problem> {
    let mut query = Query::open(pairs, &["limit", "after", "tenant"]);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let after = query.text("after", ID_BYTES).unwrap_or_default();
    let tenant = tenant(query, &caller)?;
    let (of, behind) = (tenant.as_str(), after.as_str());
    let read = |queue: Queue| async move {
        RecipientProfiles::new(queue.pool)
            .list(of, behind, limit)
            .await
    };
    let found = read_list(&queue, read).await?;
    let last = found.last().filter(|_| found.len() as i64 >= limit);
    let next = last.map(|last| {
        let named = match &caller.tenant {
            None if !tenant.is_empty() => format!("&tenant={}", encoded(&tenant)),
            _ => String::new(),
        };
        let after = encoded(&last.id);
        format!("/api/v1/recipients?limit={limit}&after={after}{named}")
    });
    let page = RecipientList {
        recipients: found.into_iter().map(RecipientSummary::from).collect(),
        next,
    };
    Ok((next_link(page.next.as_deref()), Json(page)))
}

/// Sets the profiles of up to 1,000 recipients, all or none.
#[utoipa::path(post, path = "/api/v1/recipients", operation_id = "import_recipients", tag = "notifications", request_body = NewRecipients,
    params(("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = PutRecipients)))]
pub async fn import_recipients(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<Json<PutRecipients>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let value = body::json(request, body::BATCH_BYTES_MAX).await?;
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        take_recipients(fields, "recipients")
    };
    let (recipients, signed) = from_body(value, &caller, &["recipients"], read)?;
    let put = profiles.put(&tenant, &recipients, &signed);
    Ok(Json(with_timeout(LIST_TIMEOUT, put).await?))
}

/// Returns a recipient; its addresses are masked unless the token has `notify:send`.
#[utoipa::path(get, path = "/api/v1/recipients/{recipient}", operation_id = "show_recipient", tag = "notifications",
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = RecipientView)))]
pub async fn show_recipient(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<RecipientView>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let id = id_of(id)?;
    view(&profiles, &caller, &tenant, &id).await
}

/// Sets the profile of a recipient, in place of the one that it had.
#[utoipa::path(put, path = "/api/v1/recipients/{recipient}", operation_id = "set_recipient", tag = "notifications", request_body = NewProfile,
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses(
        (status = 201, body = RecipientView, description = "The recipient is new."),
        (status = 200, body = RecipientView, description = "The recipient was known.")))]
pub async fn set_recipient(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let id = id_of(id)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        take_profile(fields, &PROFILE_FIELDS)
    };
    let (profile, signed) = from_body(value, &caller, &PROFILE_FIELDS, read)?;
    let new = [NewRecipient { id, profile }];
    let put = with_timeout(ROW_TIMEOUT, profiles.put(&tenant, &new, &signed)).await?;
    let status = match put.created {
        0 => StatusCode::OK,
        _ => StatusCode::CREATED,
    };
    let [NewRecipient { id, .. }] = new;
    Ok((status, view(&profiles, &caller, &tenant, &id).await?))
}

/// Erases a recipient with everything that is kept about it.
#[utoipa::path(delete, path = "/api/v1/recipients/{recipient}", operation_id = "delete_recipient", tag = "notifications",
    params(
        ("recipient" = String, Path, description = "The id of the recipient."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = ErasedRecipient)))]
pub async fn delete_recipient(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<ErasedRecipient>, Problem> {
    let mut query = Query::open(pairs, &["by", "why", "tenant"]);
    let signed = signed_of_query(&mut query, &caller);
    let tenant = tenant(query, &caller)?;
    let id = id_of(id)?;
    let erase = profiles.erase(&tenant, &id, &signed);
    Ok(Json(with_timeout(LIST_TIMEOUT, erase).await?))
}

/// Returns the defaults of a tenant.
#[utoipa::path(get, path = "/api/v1/recipient-defaults", operation_id = "show_recipient_defaults", tag = "notifications",
    params(("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = RecipientDefaults)))]
pub async fn show_defaults(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<RecipientDefaults>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    defaults(&profiles, &tenant).await
}

/// Sets the defaults of a tenant, in place of those that it had.
#[utoipa::path(put, path = "/api/v1/recipient-defaults", operation_id = "set_recipient_defaults", tag = "notifications", request_body = NewDefaults,
    params(("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 200, body = RecipientDefaults)))]
pub async fn set_defaults(
    State(profiles): State<RecipientProfiles>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<Json<RecipientDefaults>, Problem> {
    let tenant = tenant(Query::open(pairs, &["tenant"]), &caller)?;
    let value = body::json(request, body::ONE_BYTES_MAX).await?;
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        take_profile(fields, &DEFAULTS_FIELDS)
    };
    let (profile, signed) = from_body(value, &caller, &DEFAULTS_FIELDS, read)?;
    let set = profiles.set_defaults(&tenant, &profile, &signed);
    with_timeout(ROW_TIMEOUT, set).await?;
    defaults(&profiles, &tenant).await
}

async fn defaults(
    profiles: &RecipientProfiles,
    tenant: &str,
) -> Result<Json<RecipientDefaults>, Problem> {
    let stored = with_timeout(ROW_TIMEOUT, profiles.defaults(tenant)).await?;
    Ok(Json(stored.into()))
}

async fn view(
    profiles: &RecipientProfiles,
    caller: &Caller,
    tenant: &str,
    id: &str,
) -> Result<Json<RecipientView>, Problem> {
    let found = with_timeout(ROW_TIMEOUT, profiles.find(tenant, id)).await?;
    let stored = found.ok_or_else(|| {
        let detail = "there is no such recipient; GET /api/v1/recipients lists them";
        Problem::new(Code::RecipientNotFound, detail)
    })?;
    let masked = !caller.leave.has(TokenScope::NotifySend);
    Ok(Json(RecipientView::of(stored, masked)))
}

/// Reads the tenant from a query whose other parameters were taken: that of the token, or the one
/// that an operator names.
pub(super) fn tenant(mut query: Query, caller: &Caller) -> Result<String, Problem> {
    let named = query.text("tenant", NAME_BYTES_MAX);
    if named
        .as_deref()
        .is_some_and(|name| throttle_of(name).is_none())
    {
        let form = "must be the name of a tenant: letters, digits or any of . _ - / : { }";
        query.wrong("tenant", form);
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    match only(caller, named.as_deref()) {
        Ok(tenant) => Ok(tenant.unwrap_or_default().to_owned()),
        Err(_) => {
            let detail = format!(
                "token {} is bound to its own tenant; leave out tenant",
                caller.token_name()
            );
            Err(Problem::new(Code::NotAllowed, detail))
        }
    }
}

/// Checks the id of a recipient in a path.
pub(super) fn id_of(id: String) -> Result<String, Problem> {
    let refused =
        |message| Problem::at(Code::InvalidPath, FieldLocation::Path, "recipient", message);
    check_id(&id).map_err(refused)?;
    Ok(id)
}
