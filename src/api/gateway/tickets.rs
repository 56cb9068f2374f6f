//! Tickets: a browser opens one connection with each, so that no token is in a URL or on a page.

use std::sync::Arc;

use aws_lc_rs::digest;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use super::identity::GatewayIdentity;
use super::state::GatewayState;
use crate::api::gates::check::tenant_of;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, ObjectReader, must_be};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::http::token_scope::TokenScope;
use crate::api::tenants::NAME_BYTES_MAX;
use crate::gateway::channel_name::CHANNEL_FORM;
use crate::gateway::limits::TICKET_TTL;
use crate::gateway::postgres::issue_ticket;
use crate::input::patterns::is_channel_pattern;
use crate::providers::{Channel, Recipient};
use crate::recipient::new_recipient::ID_BYTES;

/// The most channels and patterns of a ticket.
pub const CHANNELS_MAX: usize = 100;

const FIELDS: [&str; 4] = ["channels", "recipient", "publish", "tenant"];

/// The rights of a ticket.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewTicket {
    /// The channels that the connection may use; a name that ends with `*` stands for all that
    /// begin so. None if absent.
    channels: Option<Vec<String>>,
    /// The recipient who connects; its inbox is the channel `$inbox`.
    recipient: Option<String>,
    /// True if the connection may publish to these channels; false if absent.
    publish: Option<bool>,
    /// The tenant, for operators; their own channels if absent.
    tenant: Option<String>,
}

/// A ticket.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Ticket {
    /// The ticket, for the parameter `ticket` of `GET /api/v1/ws`. It opens one connection.
    ticket: String,
    /// The seconds for which it is valid.
    expires_in_s: u64,
}

/// Issues a ticket that opens one connection of the gateway within 30 seconds.
#[utoipa::path(post, path = "/api/v1/ws/tickets", operation_id = "create_ticket", tag = "channels", request_body = NewTicket,
    responses((status = 201, body = Ticket)))]
pub async fn create_ticket(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let value = body::json_or_nothing(request, body::ONE_BYTES_MAX).await?;
    let mut errors = Errors::default();
    let read = ObjectReader::open(value, "", &FIELDS, &mut errors)
        .map(|fields| read(&mut fields.null_is_absent()));
    let Some(asked) = read.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    if asked.publish && !caller.leave.has(TokenScope::ChannelsPublish) {
        let detail = format!(
            "publish: token {} lacks the scope {}",
            caller.token_name(),
            TokenScope::ChannelsPublish.as_str()
        );
        return Err(Problem::new(Code::ScopeMissing, detail));
    }
    let tenant = tenant_of(&caller, asked.tenant.as_deref())?;
    let identity = GatewayIdentity {
        tenant: tenant.as_str().into(),
        can_publish: asked.publish,
        channels: Some(asked.channels.into()),
        recipient: asked.recipient.map(Into::into),
        reads_inboxes: false,
        expires_at: caller.expires_at,
        session: caller.session.clone(),
    };
    let secret = format!(
        "{:032x}{:032x}",
        rand::random::<u128>(),
        rand::random::<u128>()
    );
    let (grant, ttl_s) = (identity.grant(), TICKET_TTL.as_secs_f64());
    let digest = digest_of_ticket(&secret);
    let issued = issue_ticket(&state.gateway.db, digest.as_ref(), &grant, ttl_s);
    with_timeout(ROW_TIMEOUT, issued).await?;
    let ticket = Ticket {
        ticket: secret,
        expires_in_s: TICKET_TTL.as_secs(),
    };
    Ok((StatusCode::CREATED, Json(ticket)))
}

/// Takes a ticket; `None` if it is unknown, used or too old.
pub async fn take(state: &GatewayState, ticket: &str) -> Result<Option<GatewayIdentity>, Problem> {
    let digest = digest_of_ticket(ticket);
    let taken = state.gateway.take_ticket(digest.as_ref());
    let grant = with_timeout(ROW_TIMEOUT, taken).await?;
    Ok(grant.as_ref().and_then(GatewayIdentity::of_grant))
}

fn digest_of_ticket(secret: &str) -> digest::Digest {
    digest::digest(&digest::SHA256, secret.as_bytes())
}

struct AskedTicket {
    channels: Vec<String>,
    recipient: Option<String>,
    publish: bool,
    tenant: Option<String>,
}

fn read(fields: &mut ObjectReader<'_>) -> AskedTicket {
    let channels = channels(fields);
    let recipient = fields.text("recipient", 1..=ID_BYTES);
    let sound = recipient
        .as_deref()
        .map(|id| Recipient::parse(Channel::InApp, id));
    // No message comes to an inbox of another id, and the page would wait for one in vain.
    if let Some(Err(message)) = sound {
        fields.wrong("recipient", message);
    }
    AskedTicket {
        channels,
        recipient,
        publish: fields.flag("publish").unwrap_or(false),
        tenant: fields.text("tenant", 0..=NAME_BYTES_MAX),
    }
}

fn channels(fields: &mut ObjectReader<'_>) -> Vec<String> {
    let Some(value) = fields.take("channels").filter(|value| !value.is_null()) else {
        return Vec::new();
    };
    let Some(items) = value.as_array().filter(|items| items.len() <= CHANNELS_MAX) else {
        let form = format!("a list of at most {CHANNELS_MAX} channels and patterns");
        fields.refuse("channels", &form, &value);
        return Vec::new();
    };
    let mut found = Vec::new();
    for (nth, item) in items.iter().enumerate() {
        match item.as_str().filter(|text| is_channel_pattern(text)) {
            Some(text) => found.push(text.to_owned()),
            None => {
                let form = format!("{CHANNEL_FORM}, and * at the end");
                fields.wrong_below("channels", &format!("/{nth}"), must_be(&form, item));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::input::Issue;

    fn wrong(channels: Value) -> Vec<Issue> {
        let mut issues: Vec<Issue> = Vec::new();
        let body = json!({ "channels": channels });
        let fields = ObjectReader::open(body, "", &FIELDS, &mut issues);
        read(&mut fields.unwrap());
        issues
    }

    #[test]
    fn each_wrong_channel_of_a_ticket_has_its_place() {
        assert!(wrong(json!(["orders", "news-*", "*"])).is_empty());
        let form = format!("must be {CHANNEL_FORM}, and * at the end");
        assert_eq!(
            wrong(json!(["orders", "acme:x", 7])),
            [
                Issue::new("/channels/1", format!("{form}, not \"acme:x\"")),
                Issue::new("/channels/2", format!("{form}, not 7"))
            ]
        );
        assert_eq!(
            wrong(json!(vec!["a"; CHANNELS_MAX + 1])),
            [Issue::new(
                "/channels",
                "must be a list of at most 100 channels and patterns, not a list of 101"
            )]
        );
    }
}
