//! Suppressions: recipients that no longer get messages on a channel. They are stored as digests;
//! no list shows an address.

use axum::extract::{Query as Pairs, Request, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::http::caller::Caller;
use crate::api::http::lagging::read_list;
use crate::api::http::link::next_page;
use crate::api::http::operate::{WHY_BYTES_MAX, signed, signed_of_query};
use crate::api::http::problem::{Code, Problem};
use crate::api::http::query::{PAGE_MAX, Query};

use crate::api::http::timeout::{ROW_TIMEOUT, with_timeout};
use crate::jobs::Queue;
use crate::notify::{Deliveries, Suppression};
use crate::providers::{Channel, Recipient};

/// The longest recipient, in bytes.
pub(in crate::api) const RECIPIENT_BYTES_MAX: usize = 4096;

/// The longest cursor, in bytes.
pub(in crate::api) const CURSOR_BYTES_MAX: usize = 100;

/// The number of hexadecimal digits of a digest.
const DIGEST_DIGITS: usize = 64;

/// A recipient that must not get messages.
#[derive(utoipa::ToSchema)]
#[expect(
    dead_code,
    reason = "it describes the body; the fields are checked one by one"
)]
pub struct NewSuppression {
    /// The channel.
    #[schema(value_type = String)]
    channel: Channel,
    /// The number, address, device token, chat or URL, in any spelling.
    recipient: String,
    /// The reason, shown with messages that are not sent.
    reason: Option<String>,
    /// The author of the change, for the audit log.
    by: Option<String>,
    /// The reason for the audit log, if it differs from `reason`.
    why: Option<String>,
}

/// The result of a change.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Suppressed {
    /// True if the recipient gets no messages now.
    suppressed: bool,
    /// False if the state was the same before.
    changed: bool,
}

/// A page of recipients that get no messages.
#[derive(Serialize, utoipa::ToSchema)]
pub struct Suppressions {
    /// The recipients, by channel and digest; with `recipient` the requested one, or none.
    suppressions: Vec<Suppression>,
    /// The URL of the next page.
    next: Option<String>,
}

/// Returns one recipient, or lists all by their digests.
#[utoipa::path(get, path = "/api/v1/suppressions", operation_id = "list_suppressions", tag = "notifications",
    params(
        ("channel" = Option<String>, Query, description = "Only this channel; needed with `recipient`."),
        ("recipient" = Option<String>, Query, description = "Only this recipient, in any spelling."),
        ("limit" = Option<i64>, Query, description = "The maximum number of entries, 1 to 1000; 100 if absent."),
        ("cursor" = Option<String>, Query, description = "The cursor, from `next`.")),
    responses((status = 200, body = Suppressions)))]
pub async fn list(
    State(deliveries): State<Deliveries>,
    State(queue): State<Queue>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Suppressions>, Problem> {
    let mut query = Query::open(pairs, &["channel", "recipient", "limit", "cursor"]);
    let channel = query.choice("channel", &Channel::WORDS);
    let recipient = query.text("recipient", RECIPIENT_BYTES_MAX);
    let limit = query.whole("limit", 1..=PAGE_MAX).unwrap_or(100);
    let cursor = query.text("cursor", CURSOR_BYTES_MAX);
    let after = cursor.as_deref().map(place);
    if after == Some(None) {
        query.wrong(
            "cursor",
            "it is not a cursor; use the value of \"next\", or omit it",
        );
    }
    if recipient.is_some() && channel.is_none() && query.errors.is_empty() {
        query.wrong(
            "channel",
            format!(
                "it is needed with a recipient; allowed: one of {}",
                Channel::WORDS.map(|(word, _)| word).join(", ")
            ),
        );
    }
    if !query.errors.is_empty() {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    }
    if let (Some(channel), Some(recipient)) = (channel, recipient) {
        let recipient = read(&mut query, channel, &recipient)?;
        let found = with_timeout(ROW_TIMEOUT, deliveries.suppression(&recipient)).await?;
        return Ok(Json(Suppressions {
            suppressions: found.into_iter().collect(),
            next: None,
        }));
    }
    let after = after.flatten();
    let read = |queue: Queue| async move {
        let deliveries = Deliveries::new(&queue.pool);
        deliveries.suppressions(channel, after, limit).await
    };
    let suppressions = read_list(&queue, read).await?;
    let is_full = i64::try_from(suppressions.len()).is_ok_and(|found| found >= limit);
    let next = suppressions.last().filter(|_| is_full).map(|last| {
        let filter = [(
            "channel",
            channel.map(|channel| channel.as_str().to_owned()),
        )];
        let cursor = format!("{}:{}", last.channel, last.recipient_digest);
        next_page("/api/v1/suppressions", &filter, limit, ("cursor", cursor))
    });
    Ok(Json(Suppressions { suppressions, next }))
}

/// Stops messages to a recipient.
#[utoipa::path(post, path = "/api/v1/suppressions", operation_id = "suppress", tag = "notifications", request_body = NewSuppression,
    responses(
        (status = 201, body = Suppressed, description = "The recipient is suppressed."),
        (status = 200, body = Suppressed, description = "The recipient was already suppressed.")))]
pub async fn add(
    State(deliveries): State<Deliveries>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let read = |fields: &mut crate::api::http::fields::ObjectReader<'_>| {
        let missing: Vec<&str> = ["channel", "recipient"]
            .into_iter()
            .filter(|name| !fields.has(name))
            .collect();
        let channel = fields.choice("channel", &Channel::WORDS);
        let recipient = fields.text_or_null("recipient", 1..=RECIPIENT_BYTES_MAX);
        let reason = fields
            .text_or_null("reason", 0..=WHY_BYTES_MAX)
            .unwrap_or_default();
        for name in missing {
            let allowed = if name == "channel" {
                "one of sms, email, push, chat, webhook, inapp"
            } else {
                "a number, address, token, chat or URL"
            };
            fields.wrong(name, format!("is missing: it must be {allowed}"));
        }
        let whom = channel
            .zip(recipient)
            .map(|(channel, text)| Recipient::parse(channel, &text));
        if let Some(Err(message)) = &whom {
            fields.wrong("recipient", *message);
        }
        (whom.and_then(Result::ok), reason)
    };
    let ((whom, reason), mut signed) =
        signed(request, &caller, &["channel", "recipient", "reason"], read).await?;
    let Some(recipient) = whom else {
        return Err(Problem::new(
            Code::Internal,
            "a recipient was neither read nor refused",
        ));
    };
    if signed.why.is_empty() {
        signed.why = reason;
    }
    let changed = with_timeout(ROW_TIMEOUT, deliveries.suppress(&recipient, &signed)).await?;
    let status = if changed {
        StatusCode::CREATED
    } else {
        StatusCode::OK
    };
    Ok((
        status,
        Json(Suppressed {
            suppressed: true,
            changed,
        }),
    ))
}

/// Allows messages to a recipient again.
#[utoipa::path(delete, path = "/api/v1/suppressions", operation_id = "unsuppress", tag = "notifications",
    params(
        ("channel" = String, Query, description = "The channel."),
        ("recipient" = String, Query, description = "The recipient, in any spelling."),
        ("by" = Option<String>, Query, description = "The author of the change, for the audit log."),
        ("why" = Option<String>, Query, description = "The reason for the change, for the audit log.")),
    responses((status = 200, body = Suppressed)))]
pub async fn remove(
    State(deliveries): State<Deliveries>,
    Extension(caller): Extension<Caller>,
    Pairs(pairs): Pairs<Vec<(String, String)>>,
) -> Result<Json<Suppressed>, Problem> {
    let mut query = Query::open(pairs, &["channel", "recipient", "by", "why"]);
    let channel = query.choice("channel", &Channel::WORDS);
    let recipient = query.text("recipient", RECIPIENT_BYTES_MAX);
    let signed = signed_of_query(&mut query, &caller);
    if query.errors.is_empty() {
        for (name, is_given) in [
            ("channel", channel.is_some()),
            ("recipient", recipient.is_some()),
        ] {
            if !is_given {
                query.wrong(name, "the parameter is missing");
            }
        }
    }
    let (Some(channel), Some(recipient), true) = (channel, recipient, query.errors.is_empty())
    else {
        return Err(Problem::fields(Code::InvalidQuery, query.errors));
    };
    let recipient = read(&mut query, channel, &recipient)?;
    let changed = with_timeout(ROW_TIMEOUT, deliveries.unsuppress(&recipient, &signed)).await?;
    Ok(Json(Suppressed {
        suppressed: false,
        changed,
    }))
}

/// Parses the recipient of a query.
fn read(query: &mut Query, channel: Channel, text: &str) -> Result<Recipient, Problem> {
    Recipient::parse(channel, text).map_err(|message| {
        query.wrong("recipient", message);
        Problem::fields(Code::InvalidQuery, std::mem::take(&mut query.errors))
    })
}

/// Splits a cursor into the channel and the digest.
fn place(cursor: &str) -> Option<(&str, &str)> {
    let is_digest = |text: &str| {
        text.len() == DIGEST_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    cursor
        .split_once(':')
        .filter(|(_, digest)| is_digest(digest))
}
