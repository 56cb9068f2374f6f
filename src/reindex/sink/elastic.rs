//! An index behind Elasticsearch's or OpenSearch's `_bulk` as a sink.
//!
//! A bulk request that was answered 200 says little: each document has a status of its own, and a busy node answers 429
//! (`es_rejected_execution_exception`) for some documents of a request and stores the others.

use std::time::Duration;

use futures_util::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;

use super::{Sink, Trouble, Written};
use crate::outbound::{self, retry_after::retry_after};
use crate::reindex::Document;

/// Asks for nothing but what is read, which keeps the answer to 500 documents small.
const FILTER: &str = "filter_path=took,errors,items.*.status,items.*.error.type,items.*.error.reason";
/// An answer longer than this is not an answer to a bulk request.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// An index that wants nothing now is not asked again before this, whatever it says.
const SHORTEST_HOLD: Duration = Duration::from_secs(1);

/// Writes to one index over HTTP.
pub struct ElasticSink {
    client: Client,
    bulk_url: String,
    authorization_env: Option<String>,
}

impl ElasticSink {
    /// A sink for `index` at `url`. The client follows no redirects and retries nothing by itself.
    pub fn new(client: Client, url: &str, index: &str, authorization_env: Option<String>) -> Self {
        Self { client, bulk_url: format!("{url}/{index}/_bulk?{FILTER}"), authorization_env }
    }

    async fn send(&self, documents: &[Document]) -> Result<Vec<Written>, Trouble> {
        let body = lines(documents);
        let bytes = body.len();
        let mut request = self.client.post(&self.bulk_url).header(CONTENT_TYPE, "application/x-ndjson").body(body);
        if let Some(variable) = &self.authorization_env {
            let value = std::env::var(variable)
                .map_err(|_| Trouble::Lost(format!("the environment variable {variable} is not set on this worker")))?;
            request = request.header(AUTHORIZATION, value);
        }
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            return Err(Trouble::TooLarge { bytes });
        }
        // Where the answer bears no date of its own, a date to wait for counts as the shortest wait: this process's clock is not asked.
        let retry_after = retry_after(&outbound::headers(response.headers()), i64::MAX).map(|wait| wait.max(SHORTEST_HOLD));
        let text = read(response).await?;
        if !status.is_success() {
            let reason = format!("{} {}", status.as_u16(), brief(&text));
            return Err(match status.as_u16() {
                429 | 503 => Trouble::Busy { retry_after, reason },
                // A right that is missing may be granted, a proxy may heal: later may help.
                401 | 403 | 407 | 408 | 500..=599 => Trouble::Lost(reason),
                _ => Trouble::Wrong(reason),
            });
        }
        verdicts(&text, documents.len())
    }
}

impl Sink for ElasticSink {
    fn prepare(&self) -> BoxFuture<'_, Result<(), Trouble>> {
        Box::pin(async { Ok(()) })
    }

    fn write<'a>(&'a self, documents: &'a [Document]) -> BoxFuture<'a, Result<Vec<Written>, Trouble>> {
        Box::pin(self.send(documents))
    }
}

/// Two lines for each document: what to do, and the document.
fn lines(documents: &[Document]) -> String {
    let mut body = String::with_capacity(documents.iter().map(Document::bytes).sum());
    for document in documents {
        let id = Value::from(document.id.as_deref().unwrap_or_default());
        body += &format!("{{\"index\":{{\"_id\":{id}}}}}\n");
        body += &document.json;
        body.push('\n');
    }
    body
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: bool,
    items: Option<Vec<Value>>,
}

/// Reads the answer to `count` documents.
fn verdicts(text: &str, count: usize) -> Result<Vec<Written>, Trouble> {
    let answer: Answer =
        serde_json::from_str(text).map_err(|_| Trouble::Lost(format!("its answer was not that of _bulk: {}", brief(text))))?;
    let items = answer.items.unwrap_or_default();
    if items.len() != count {
        return Err(Trouble::Lost(format!("it answered for {} of {count} documents", items.len())));
    }
    let written: Vec<_> = items.iter().map(verdict).collect();
    // An answer that contradicts itself is not trusted; the documents are sent again, which does no harm.
    if answer.errors && written.iter().all(|w| *w == Written::Stored) {
        return Err(Trouble::Lost("it answered with errors but named none".to_owned()));
    }
    Ok(written)
}

fn verdict(item: &Value) -> Written {
    let outcome = item.as_object().and_then(|o| o.values().next()).unwrap_or(&Value::Null);
    let status = outcome["status"].as_u64().unwrap_or(0);
    let kind = outcome["error"]["type"].as_str().unwrap_or("no reason given");
    let reason = || brief(&format!("{status} {kind}: {}", outcome["error"]["reason"].as_str().unwrap_or_default()));
    match status {
        200..300 => Written::Stored,
        // 409 cannot come from `index` without a version; 5xx and a missing status are the node's trouble.
        0 | 408 | 429 | 500.. => Written::Busy(reason()),
        _ => Written::Refused(reason()),
    }
}

async fn read(mut response: Response) -> Result<String, Trouble> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(Trouble::Lost(format!("its answer was longer than {MAX_ANSWER_BYTES} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The whole chain of causes, without the address: it may be long, and the operator knows it.
fn lost(error: reqwest::Error) -> Trouble {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(c) = cause {
        text += &format!(": {c}");
        cause = c.source();
    }
    Trouble::Lost(text)
}

fn brief(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_document_becomes_two_lines_whatever_its_id() {
        let document = Document { key: Arc::from(["1".to_owned()]), id: Some("a\"\n".into()), json: Arc::from("{\"x\": 1}") };

        assert_eq!(lines(&[document]), "{\"index\":{\"_id\":\"a\\\"\\n\"}}\n{\"x\": 1}\n");
    }

    #[test]
    fn a_200_is_read_document_by_document() {
        let text = r#"{"took":3,"errors":true,"items":[{"index":{"status":201}},
            {"index":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"queue full"}}},
            {"index":{"status":400,"error":{"type":"mapper_parsing_exception","reason":"failed to parse [x]"}}},
            {"index":{"status":503}}]}"#;

        let written = verdicts(text, 4).unwrap();

        assert_eq!(written[0], Written::Stored);
        assert_eq!(written[1], Written::Busy("429 es_rejected_execution_exception: queue full".into()));
        assert_eq!(written[2], Written::Refused("400 mapper_parsing_exception: failed to parse [x]".into()));
        assert!(matches!(written[3], Written::Busy(_)));
    }

    #[test]
    fn an_answer_that_is_not_one_is_trouble_and_never_success() {
        for text in ["", "{}", "<html>", r#"{"items":[]}"#, r#"{"errors":true,"items":[{"index":{"status":200}}]}"#] {
            assert!(matches!(verdicts(text, 1), Err(Trouble::Lost(_))), "{text}");
        }
        assert!(matches!(verdicts(r#"{"items":[{"index":{}}]}"#, 1).unwrap()[0], Written::Busy(_)));
    }
}
