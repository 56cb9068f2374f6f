//! Reading of request bodies: as JSON, with limits of size, memory and time.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use futures_util::StreamExt as _;
use serde_json::Value;

use super::budget::{self, BudgetPermit};
use super::problem::{Code, Problem};
use crate::input::json::{self, JsonBudget, JsonReadError};

/// The largest body of a job or an edit, in bytes: arguments of 256 KiB, with room for escapes.
pub const ONE_BYTES_MAX: usize = 1024 * 1024;
/// The largest body of a batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The most items of an array.
const ITEMS_MAX: usize = crate::api::jobs::input::BATCH_MAX;
/// The most memory that the parsed body of one job or one edit may take, in bytes.
const ONE_VALUE_MAX: usize = 16 * 1024 * 1024;
/// The most memory that the parsed body of a batch may take, in bytes.
pub const BATCH_VALUE_MAX: usize = 128 * 1024 * 1024;
/// The size above which a body is parsed on a blocking thread, in bytes.
pub const APART_BYTES: usize = 256 * 1024;
/// The most bytes that are read and discarded so that a client that is still sending receives the
/// refusal.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest time for which a body is read and discarded.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time in which a body must arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads the body as JSON.
pub async fn json(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    read_json(request, bytes_max, false).await
}

/// Reads the body as [`json`] does, and rounds integers of more than 64 bits: of what has happened
/// already, nothing is refused for its precision.
pub async fn json_rounded(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    read_json(request, bytes_max, true).await
}

async fn read_json(request: Request, bytes_max: usize, rounds: bool) -> Result<Value, Problem> {
    let (parts, body) = request.into_parts();
    media(&parts.headers)?;
    let text = bytes(&parts.headers, body, bytes_max).await?;
    let value_max = if bytes_max > ONE_BYTES_MAX {
        BATCH_VALUE_MAX
    } else {
        ONE_VALUE_MAX
    };
    if text.len() <= APART_BYTES {
        return Ok(parse(&text, value_max, rounds, &mut budget::take)?);
    }
    let mut held = BudgetPermit::default();
    let parsing = tokio::task::spawn_blocking(move || {
        let value = parse(&text, value_max, rounds, &mut |bytes| held.take(bytes));
        (value, held)
    });
    let (value, held) = parsing
        .await
        .map_err(|_| Problem::new(Code::Internal, "the body could not be read"))?;
    budget::hold_until_answered(held);
    Ok(value?)
}

fn parse(
    text: &[u8],
    value_max: usize,
    rounds: bool,
    room: &mut (dyn FnMut(usize) -> bool + Send),
) -> Result<Value, JsonReadError> {
    let budget = JsonBudget::new(ITEMS_MAX, value_max, room);
    let budget = match rounds {
        true => budget.rounding(),
        false => budget,
    };
    json::parse(text, budget)
}

/// Reads the body as bytes.
pub async fn raw(request: Request, bytes_max: usize) -> Result<axum::body::Bytes, Problem> {
    let (parts, body) = request.into_parts();
    bytes(&parts.headers, body, bytes_max).await
}

/// Reads the body as [`json`] does, with an empty body read as an empty object.
pub async fn json_or_empty(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    if request.body().is_end_stream() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    json(request, bytes_max).await
}

/// Reads the body as [`json_or_empty`] does, with `null` read as an empty object as well; for
/// changes that need no field.
pub async fn json_or_nothing(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    let value = json_or_empty(request, bytes_max).await?;
    Ok(if value.is_null() {
        Value::Object(serde_json::Map::new())
    } else {
        value
    })
}

/// Accepts only a body whose content type is JSON: a page of another site cannot send that without
/// a preflight request of the browser.
fn media(headers: &HeaderMap) -> Result<(), Problem> {
    let named = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = named
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    if let Some(coding) = headers
        .get(CONTENT_ENCODING)
        .filter(|coding| *coding != "identity")
    {
        let coding = String::from_utf8_lossy(coding.as_bytes()).into_owned();
        let detail = format!(
            "the body is encoded as {:?}; send it plain",
            super::fields::clipped(&coding)
        );
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
    {
        return Ok(());
    }
    let answer = if essence.is_empty() {
        "no content type".to_owned()
    } else {
        format!("{:?}", super::fields::clipped(&essence))
    };
    let detail = format!(
        "the body is sent with {answer}; allowed: application/json (curl: -H 'content-type: application/json')"
    );
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

async fn bytes(
    headers: &HeaderMap,
    body: Body,
    bytes_max: usize,
) -> Result<axum::body::Bytes, Problem> {
    let announced = headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        // A client that sent `Expect` has sent nothing yet, and a very large body is not waited
        // for. Other bodies are drained for a moment, because the answer would be lost in a reset
        // connection.
        if !headers.contains_key(EXPECT)
            && announced.is_some_and(|length| length <= DRAINED_BYTES_MAX)
        {
            drain(body).await;
        }
        return Err(too_large(announced, bytes_max));
    }
    match tokio::time::timeout(READ_TIMEOUT, collect(body, bytes_max)).await {
        Ok(read) => read,
        Err(_) => Err(Problem::new(
            Code::RequestTimeout,
            format!(
                "the body did not arrive within {} s",
                READ_TIMEOUT.as_secs()
            ),
        )),
    }
}

/// Collects the body while the memory budget has room for it.
async fn collect(body: Body, bytes_max: usize) -> Result<axum::body::Bytes, Problem> {
    let (mut stream, mut bytes) = (body.into_data_stream(), Vec::new());
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| Problem::new(Code::BadRequest, "the body is incomplete"))?;
        if bytes.len() + chunk.len() > bytes_max {
            return Err(too_large(None, bytes_max));
        }
        if !budget::take(chunk.len()) {
            return Err(JsonReadError::NoRoom.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.into())
}

async fn drain(body: Body) {
    let mut rest = body.into_data_stream();
    let discard = async {
        let mut read = 0;
        while let Some(Ok(chunk)) = rest.next().await {
            read += chunk.len();
            if read > DRAINED_BYTES_MAX {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, discard).await;
}

fn too_large(announced: Option<usize>, bytes_max: usize) -> Problem {
    let size = announced.map_or_else(
        || "the body".to_owned(),
        |bytes| format!("the body of {bytes} bytes"),
    );
    let most = match bytes_max / (1024 * 1024) {
        0 => format!("({} KiB)", bytes_max / 1024),
        mib => format!("({mib} MiB); the arguments of a job at most 262144 bytes (256 KiB)"),
    };
    Problem::new(
        Code::TooLarge,
        format!("{size} is larger than this route allows: at most {bytes_max} bytes {most}"),
    )
}
