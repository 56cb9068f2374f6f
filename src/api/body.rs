//! Reading a request's body: as JSON, up to a limit, within a time.

use std::time::Duration;

use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use futures_util::StreamExt as _;
use serde_json::Value;

use super::json;
use super::problem::{Code, Problem};

/// The largest body of one job or one edit, in bytes: arguments of 256 KiB, with room for escapes.
pub const ONE_BYTES_MAX: usize = 1024 * 1024;
/// The largest body of a batch, in bytes.
pub const BATCH_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The most that is read and thrown away so that a client that is still sending hears why it was refused.
const DRAINED_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The longest that a body may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// The body as JSON, or why not.
pub async fn json(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    let (parts, body) = request.into_parts();
    media(&parts.headers)?;
    Ok(json::parse(&bytes(&parts.headers, body, bytes_max).await?)?)
}

/// The body as it is.
pub async fn raw(request: Request, bytes_max: usize) -> Result<axum::body::Bytes, Problem> {
    let (parts, body) = request.into_parts();
    bytes(&parts.headers, body, bytes_max).await
}

/// As [`json`], with an empty body read as an empty object.
pub async fn json_or_empty(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    if request.body().is_end_stream() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    json(request, bytes_max).await
}

/// As [`json_or_empty`], with `null` read as an empty object as well; for changes that need no field.
pub async fn json_or_nothing(request: Request, bytes_max: usize) -> Result<Value, Problem> {
    let value = json_or_empty(request, bytes_max).await?;
    Ok(if value.is_null() { Value::Object(serde_json::Map::new()) } else { value })
}

/// Only a body that says it is JSON is read: a page of another site cannot send that without the browser asking first.
fn media(headers: &HeaderMap) -> Result<(), Problem> {
    let named = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = named.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if let Some(coding) = headers.get(CONTENT_ENCODING).filter(|coding| *coding != "identity") {
        let coding = String::from_utf8_lossy(coding.as_bytes()).into_owned();
        let detail = format!("the body is encoded as {:?}; send it plain", super::fields::clipped(&coding));
        return Err(Problem::new(Code::UnsupportedMediaType, detail));
    }
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let said = if essence.is_empty() { "no content type".to_owned() } else { format!("{:?}", super::fields::clipped(&essence)) };
    let detail = format!("the body is sent with {said}; allowed: application/json (curl: -H 'content-type: application/json')");
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

async fn bytes(headers: &HeaderMap, body: Body, bytes_max: usize) -> Result<axum::body::Bytes, Problem> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > bytes_max) {
        // A client that asked first has sent nothing yet; the others are heard out, or the answer would be lost in a
        // reset connection.
        if !headers.contains_key(EXPECT) {
            drain(body).await;
        }
        return Err(too_large(announced, bytes_max));
    }
    match tokio::time::timeout(READ_TIMEOUT, to_bytes(body, bytes_max)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_limit(&error) => Err(too_large(None, bytes_max)),
        Ok(Err(_)) => Err(Problem::new(Code::BadRequest, "the body did not arrive whole")),
        Err(_) => Err(Problem::new(Code::RequestTimeout, format!("the body did not arrive within {} s", READ_TIMEOUT.as_secs()))),
    }
}

fn is_limit(error: &axum::Error) -> bool {
    std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source())
        .any(|error| error.to_string().contains("length limit"))
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
    let _ = tokio::time::timeout(READ_TIMEOUT, discard).await;
}

fn too_large(announced: Option<usize>, bytes_max: usize) -> Problem {
    let size = announced.map_or_else(|| "the body".to_owned(), |bytes| format!("the body of {bytes} bytes"));
    let mib = bytes_max / (1024 * 1024);
    Problem::new(
        Code::TooLarge,
        format!(
            "{size} is larger than this route allows: at most {bytes_max} bytes ({mib} MiB); the arguments of a job at most 262144 bytes (256 KiB)"
        ),
    )
}
