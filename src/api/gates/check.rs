//! The state of a recipient: its caps, quiet hours, preference and open digests.

use axum::extract::{Query as Pairs, State};
use axum::{Extension, Json};

use crate::api::http::caller::Caller;
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::notifications::suppressions::RECIPIENT_BYTES_MAX;
use crate::api::tenants::{NAME_BYTES_MAX, only};
use crate::notify::args::CATEGORY_BYTES;
use crate::providers::{Channel, Recipient};
use crate::recipient::check::RecipientCheck;
use crate::recipient::fields::GATE_FIELD_BYTES;
use crate::recipient::postgres::CheckedMessage;
use crate::recipient::service::Gates;

/// Checks whether a recipient may get a message now, by every cap and gate, and uses nothing.
#[utoipa::path(get, path = "/api/v1/recipients/check", operation_id = "check_recipient", tag = "notifications",
    params(
        ("channel" = String, Query, description = "The channel."),
        ("to" = Option<String>, Query, description = "The address; needed without `recipient`."),
        ("recipient" = Option<String>, Query, description = "The id of the recipient; needed without `to`."),
        ("category" = Option<String>, Query, description = "The category of the message; `transactional` if absent."),
        ("actor" = Option<String>, Query, description = "The person or thing whose action the message reports, for its caps."),
        ("template_id" = Option<String>, Query, description = "The template, for preferences and digests."),
        ("tenant" = Option<String>, Query, description = "The tenant whose recipient it is, for operators; empty for their own.")),
    responses((status = 200, body = RecipientCheck)))]
pub async fn check(
    State(gates): State<Gates>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<RecipientCheck>, Problem> {
    let names = [
        "channel",
        "to",
        "recipient",
        "category",
        "actor",
        "template_id",
        "tenant",
    ];
    let mut query = Query::open(pairs, &names);
    let channel = query.choice("channel", &Channel::WORDS);
    if channel.is_none() && query.errors.is_empty() {
        let words = Channel::WORDS.map(|(word, _)| word).join(", ");
        query.wrong("channel", format!("must be given: one of {words}"));
    }
    let to = query.text("to", RECIPIENT_BYTES_MAX);
    let recipient = query.text("recipient", GATE_FIELD_BYTES);
    if to.is_none() && recipient.is_none() && query.errors.is_empty() {
        query.wrong("to", "must be given, or the recipient's id as recipient");
    }
    if let (Some(channel), Some(to)) = (channel, &to)
        && let Err(message) = Recipient::parse(channel, to)
    {
        query.wrong("to", message);
    }
    let category = query.text("category", CATEGORY_BYTES);
    let actor = query.text("actor", GATE_FIELD_BYTES);
    let template = query.text("template_id", GATE_FIELD_BYTES);
    let tenant = query.text("tenant", NAME_BYTES_MAX);
    let Some(channel) = channel.filter(|_| query.errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    };
    let asked = CheckedMessage {
        tenant: tenant_of(&caller, tenant.as_deref())?,
        channel,
        to,
        recipient,
        category,
        actor,
        template,
    };
    let checked = with_timeout(ROW_TIMEOUT, gates.check(&asked)).await?;
    Ok(Json(checked))
}

/// Returns the tenant whose recipient a request is about: that of the caller, or the one that
/// operators name.
pub fn tenant_of(caller: &Caller, named: Option<&str>) -> Result<String, Problem> {
    let tenant = only(caller, named).map_err(|_| {
        let detail = format!(
            "token {} is bound to another tenant; leave tenant out",
            caller.token_name()
        );
        Problem::new(Code::NotAllowed, detail)
    })?;
    Ok(tenant.unwrap_or_default().to_owned())
}
