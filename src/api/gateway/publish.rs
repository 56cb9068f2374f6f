//! Publications over HTTP.

use std::sync::Arc;

use axum::extract::{Path, Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;
use serde_json::Value;

use super::state::GatewayState;
use crate::api::gates::check::tenant_of;
use crate::api::http::body;
use crate::api::http::caller::Caller;
use crate::api::http::fields::{Errors, FieldLocation, ObjectReader};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::Query;
use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::api::tenants::NAME_BYTES_MAX;
use crate::gateway::channel_name::ChannelName;
use crate::gateway::client_frame::has_nul;
use crate::gateway::limits::MESSAGE_BYTES;
use crate::gateway::postgres::{NewPublication, Published};

/// The largest body: the data, escaped at its worst, and the field around it.
const BODY_BYTES_MAX: usize = 6 * MESSAGE_BYTES + 1024;

/// A message to publish.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewChannelMessage {
    /// The data, any JSON value of at most 65,536 bytes as Postgres writes it: with a space after
    /// each comma and colon, and all digits of a number.
    #[schema(value_type = Object)]
    data: Value,
}

/// A message that was accepted.
#[derive(Serialize, utoipa::ToSchema)]
pub struct AcceptedPublication {
    /// The id that subscribers see.
    id: String,
    /// The messages of the tenant that wait before it, because the tenant is at its limit.
    waiting: i64,
}

/// Publishes a message to the subscribers of a channel. It goes out within the limit of the tenant.
#[utoipa::path(post, path = "/api/v1/channels/{channel}/messages", operation_id = "publish_message", tag = "channels", request_body = NewChannelMessage,
    params(
        ("channel" = String, Path, description = "The channel."),
        ("tenant" = Option<String>, Query, description = "The tenant, for operators.")),
    responses((status = 202, body = AcceptedPublication)))]
pub async fn publish_message(
    State(state): State<Arc<GatewayState>>,
    Extension(caller): Extension<Caller>,
    Path(channel): Path<String>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let tenant = named_tenant(pairs, &[], &caller)?;
    let channel = ChannelName::parse(&channel, &tenant).map_err(|error| {
        Problem::at(
            Code::InvalidPath,
            FieldLocation::Path,
            "channel",
            error.to_string(),
        )
    })?;
    let value = body::json(request, BODY_BYTES_MAX).await?;
    let mut errors = Errors::default();
    let data = ObjectReader::open(value, "", &["data"], &mut errors).and_then(|mut fields| {
        let data = fields.take("data");
        match &data {
            None => fields.missing("data", "any JSON value"),
            Some(data) if has_nul(data) => {
                fields.wrong("data", "must not contain the character U+0000");
            }
            Some(_) => {}
        }
        data
    });
    let Some(data) = data.filter(|_| errors.is_empty()) else {
        return Err(Problem::fields(Code::InvalidFields, errors));
    };
    // Postgres writes the same data with more bytes, so that it need not measure this.
    let bytes = data.to_string().len();
    if bytes > MESSAGE_BYTES {
        return Err(too_large(bytes, "JSON"));
    }
    let message = NewPublication {
        tenant,
        channel: channel.as_str().to_owned(),
        data,
        waiting_max: i64::MAX,
    };
    match with_timeout(ROW_TIMEOUT, state.gateway.publish(message)).await? {
        Published::Accepted { id, waiting } => {
            let accepted = AcceptedPublication {
                id: id.to_string(),
                waiting,
            };
            Ok((StatusCode::ACCEPTED, Json(accepted)))
        }
        Published::TooLarge { bytes } => Err(too_large(bytes, "Postgres writes it")),
        Published::Full => {
            let detail = "as many messages of the tenant wait as may (setting tenant_queue_max); nothing was published";
            Err(Problem::new(Code::QueueFull, detail).retry_after(1))
        }
    }
}

fn too_large(bytes: usize, text: &str) -> Problem {
    let detail = format!("data has {bytes} bytes as {text}; at most {MESSAGE_BYTES} are allowed");
    Problem::new(Code::TooLarge, detail)
}

/// Returns the tenant of a request: that of the caller, or the one that operators name.
pub(super) fn named_tenant(
    pairs: Vec<(String, String)>,
    others: &[&str],
    caller: &Caller,
) -> Result<String, Problem> {
    let mut query = Query::open(pairs, &[&["tenant"], others].concat());
    let named = query.text("tenant", NAME_BYTES_MAX);
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    tenant_of(caller, named.as_deref())
}
