//! An index behind Elasticsearch's or OpenSearch's `_bulk` as a sink.
//!
//! The status 200 of a bulk request says little: each document has a status of its own, and a busy
//! node answers 429 (`es_rejected_execution_exception`) for some documents of a request and stores
//! the others.

use std::time::Duration;

use futures_util::future::BoxFuture;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use super::alias::{actions, others};
use super::{Sink, WriteError, WriteOutcome};
use crate::outbound::{self, retry_after::retry_after};
use crate::reindex::document::{Action, Document};
use crate::reindex::hidden;
use crate::reindex::sink_args::Elastic;

/// Limits the answer to the fields that are read, which keeps the answer to 500 documents small.
const FILTER: &str =
    "filter_path=took,errors,items.*.status,items.*.error.type,items.*.error.reason";
/// Longest answer to a bulk request, in bytes.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Longest id of a document in Elasticsearch and OpenSearch, in bytes.
const ID_BYTES_MAX: usize = 512;

/// Types of the error of an index that does not exist.
const NO_INDEX: [&str; 2] = ["index_not_found_exception", "IndexMissingException"];

/// Beginning of the names of actions that write documents, in refusals of a missing right.
const WRITE_ACTION: &str = "[indices:data/write/";
/// Names of the actions that make an index that does not exist.
const CREATE_ACTIONS: [&str; 2] = ["[indices:admin/auto_create]", "[indices:admin/create]"];

/// The refusal of a document whose index cannot be made, because the cluster has as many shards as
/// it may have.
const NO_SHARDS: &str = "Validation Failed: 1: this action would add [";

/// A pipeline's refusal of a document before Elasticsearch 7.5, as the status 500 shows it.
const WRAPPED_REFUSAL: &str = "500 exception: java.lang.IllegalArgumentException";

/// The refusal of a document whose pipeline does not exist.
const MISSING_PIPELINE: &str = "400 illegal_argument_exception: pipeline with id [";

/// Shortest hold of an index that accepts nothing now; a shorter requested delay is raised to it.
const SHORTEST_HOLD: Duration = Duration::from_secs(1);

/// Writes to one index over HTTP.
pub struct ElasticSink {
    client: Client,
    bulk_url: String,
    asked: Elastic,
}

impl ElasticSink {
    /// Creates a sink for the job's index. The client follows no redirects and retries nothing by
    /// itself.
    pub fn new(client: Client, asked: Elastic) -> Self {
        let pipeline = asked
            .pipeline
            .as_ref()
            .map_or_else(String::new, |name| format!("&pipeline={name}"));
        let path = asked.bulk_path.replace("{index}", &asked.index);
        let bulk_url = format!("{}{path}?{FILTER}{pipeline}", asked.url);
        Self {
            client,
            bulk_url,
            asked,
        }
    }

    async fn send(&self, documents: &[Document]) -> Result<Vec<WriteOutcome>, WriteError> {
        let body = lines(documents, self.asked.creates);
        let bytes = body.len();
        let request = self
            .client
            .post(&self.bulk_url)
            .header(CONTENT_TYPE, "application/x-ndjson")
            .body(body);
        let sent = self.authorized(request)?.send().await;
        let response = sent.map_err(|error| match error.is_timeout() && !error.is_connect() {
            true => WriteError::Late { bytes },
            false => lost(error),
        })?;
        let status = response.status();
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            return Err(WriteError::TooLarge { bytes });
        }
        // If the answer has no `Date`, a date to wait for counts as the shortest wait, because this
        // process's clock is not used.
        let retry_after = retry_after(&outbound::headers(response.headers()), i64::MAX)
            .map(|wait| wait.max(SHORTEST_HOLD));
        let text = read(response).await?;
        if !status.is_success() {
            return Err(refusal(status, &text, retry_after));
        }
        verdicts(&text, documents.len(), self.asked.creates)
    }

    /// Adds the `authorization` header, whose text is read each time, so that it can be replaced
    /// while a job runs.
    fn authorized(&self, request: RequestBuilder) -> Result<RequestBuilder, WriteError> {
        let Some(secret) = &self.asked.authorization else {
            return Ok(request);
        };
        let text = hidden::authorization(secret, &self.asked.url)?;
        let mut value = HeaderValue::from_str(&text).map_err(|_| {
            WriteError::Wrong(format!(
                "{} contains characters that are not allowed in a header",
                hidden::describe_secret(secret)
            ))
        })?;
        value.set_sensitive(true);
        Ok(request.header(AUTHORIZATION, value))
    }

    /// Asks for something else than `_bulk`; `None` for an answer 404.
    async fn call(&self, request: RequestBuilder) -> Result<Option<Value>, WriteError> {
        let response = self.authorized(request)?.send().await.map_err(lost)?;
        let status = response.status();
        let text = read(response).await?;
        if status == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !status.is_success() {
            return Err(refusal(status, &text, None));
        }
        let garbled = |_| WriteError::Lost(format!("its answer is not JSON: {}", brief(&text)));
        serde_json::from_str(&text).map(Some).map_err(garbled)
    }

    /// Returns the unique number of the index.
    async fn uuid(&self) -> Option<String> {
        let Elastic { url, index, .. } = &self.asked;
        let settings = self.client.get(format!("{url}/{index}/_settings"));
        let settings = self.call(settings).await.ok()??;
        // The name of a data stream or an alias stands for other indexes, which change.
        let uuid = settings.get(index)?["settings"]["index"]["uuid"].as_str();
        uuid.map(str::to_owned)
    }

    /// Returns the server's answer that names the indexes with the alias.
    async fn holders(&self, alias: &str) -> Result<Value, WriteError> {
        // An answer 404 means that no index has the alias; before version 5 it was 200 and empty.
        let found = self
            .client
            .get(format!("{}/_alias/{alias}", self.asked.url));
        Ok(self.call(found).await?.unwrap_or_default())
    }

    /// Describes the documents that the alias shows in other indexes; `None` if it shows none.
    async fn shown_by(&self, alias: &str) -> Result<Option<String>, WriteError> {
        let found = self.holders(alias).await?;
        let others = others(&self.asked.index, &found);
        if others.is_empty() {
            return Ok(None);
        }
        let uncounted = |why: &str| {
            format!(
                "the source has no documents, and those of the alias {alias} could not be counted: {why}"
            )
        };
        let counted = self
            .client
            .get(format!("{}/{alias}/_count", self.asked.url));
        let counted = self.call(counted).await.map_err(|error| match error {
            WriteError::Lost(why) => WriteError::Lost(uncounted(&why)),
            WriteError::Wrong(why) => WriteError::Wrong(uncounted(&why)),
            other => other,
        })?;
        // If the alias was removed meanwhile, the next attempt finds no holder.
        let counted = counted.ok_or_else(|| WriteError::Lost(uncounted("404")))?;
        let count = counted["count"].as_u64().unwrap_or(0);
        let shards = &counted["_shards"];
        // Without an answer of each shard, none found does not mean that there are none.
        if count == 0 && !(shards["total"].is_u64() && shards["successful"] == shards["total"]) {
            let why = uncounted("not all of its shards answered");
            return Err(WriteError::Lost(why));
        }
        Ok((count > 0).then(|| {
            let holders = brief(&others.join(", "));
            format!("the alias {alias} shows {count} documents of {holders}")
        }))
    }

    /// Makes all documents searchable, then moves the alias to the index in one step, so that no
    /// search finds the alias without an index or with two.
    async fn move_alias(&self, alias: &str) -> Result<(), WriteError> {
        let Elastic { url, index, .. } = &self.asked;
        let refresh = self.client.post(format!("{url}/{index}/_refresh"));
        if self.call(refresh).await?.is_none() {
            return Err(WriteError::Gone(format!("there is no index {index}")));
        }
        let found = self.holders(alias).await?;
        let actions = actions(index, alias, &found).map_err(WriteError::Wrong)?;
        let moved = self
            .client
            .post(format!("{url}/_aliases"))
            .header(CONTENT_TYPE, "application/json")
            .body(json!({"actions": actions}).to_string());
        match self.call(moved).await? {
            Some(_) => Ok(()),
            None => Err(WriteError::Lost(
                "an index was deleted while its alias was moved".to_owned(),
            )),
        }
    }
}

impl Sink for ElasticSink {
    fn prepare(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async { Ok(()) })
    }

    fn identity(&self) -> BoxFuture<'_, Option<String>> {
        Box::pin(self.uuid())
    }

    fn shown(&self) -> BoxFuture<'_, Result<Option<String>, WriteError>> {
        Box::pin(async {
            match &self.asked.alias {
                Some(alias) => self.shown_by(alias).await,
                None => Ok(None),
            }
        })
    }

    fn publish(&self) -> BoxFuture<'_, Result<(), WriteError>> {
        Box::pin(async {
            match &self.asked.alias {
                Some(alias) => self.move_alias(alias).await,
                None => Ok(()),
            }
        })
    }

    fn write<'a>(
        &'a self,
        documents: &'a [Document],
    ) -> BoxFuture<'a, Result<Vec<WriteOutcome>, WriteError>> {
        Box::pin(async {
            let refusals: Vec<Option<WriteOutcome>> = documents.iter().map(refused_id).collect();
            if refusals.iter().all(Option::is_none) {
                return self.send(documents).await;
            }
            let pairs = documents.iter().zip(&refusals);
            let fit: Vec<Document> = pairs
                .filter(|(_, refusal)| refusal.is_none())
                .map(|(document, _)| document.clone())
                .collect();
            let mut written = match fit.is_empty() {
                true => Vec::new(),
                false => self.send(&fit).await?,
            }
            .into_iter();
            let outcomes = refusals.into_iter();
            Ok(outcomes
                .filter_map(|refusal| refusal.or_else(|| written.next()))
                .collect())
        })
    }
}

/// Returns the refusal of a document whose id the index cannot hold. The index would refuse the
/// whole request because of it, and with it all other documents.
fn refused_id(document: &Document) -> Option<WriteOutcome> {
    let bytes = document.id.as_ref()?.len();
    (bytes == 0 || bytes > ID_BYTES_MAX).then(|| {
        WriteOutcome::Refused(format!(
            "400: its id has {bytes} bytes; the index allows 1 to {ID_BYTES_MAX}"
        ))
    })
}

/// Returns the error of an answer other than success.
fn refusal(status: StatusCode, text: &str, retry_after: Option<Duration>) -> WriteError {
    let reason = format!("{} {}", status.as_u16(), brief(text));
    match status.as_u16() {
        429 | 503 => WriteError::Busy {
            retry_after,
            reason,
        },
        404 if NO_INDEX.iter().any(|kind| text.contains(kind)) => WriteError::Gone(reason),
        403 if names_create_action(text) => WriteError::Absent(reason),
        // A missing right may be granted and a proxy may recover, so a retry may help.
        401 | 403 | 407 | 408 | 500..=599 => WriteError::Lost(reason),
        _ => WriteError::Wrong(reason),
    }
}

/// Returns two lines for each document, the action and the document; only the first for a delete.
fn lines(documents: &[Document], creates: bool) -> String {
    let mut body = String::with_capacity(documents.iter().map(Document::bytes).sum());
    for document in documents {
        let action = match &document.action {
            Action::Delete => "delete",
            _ if creates => "create",
            _ => "index",
        };
        let id = Value::from(document.id.as_deref().unwrap_or_default());
        let routing = document.routing.as_ref().map_or_else(String::new, |text| {
            format!(",\"routing\":{}", Value::from(text.as_str()))
        });
        body += &format!("{{\"{action}\":{{\"_id\":{id}{routing}}}}}\n");
        if let Action::Store(json) = &document.action {
            body += json;
            body.push('\n');
        }
    }
    body
}

#[derive(Deserialize)]
struct BulkResponse {
    #[serde(default)]
    errors: bool,
    items: Option<Vec<Value>>,
}

/// Parses the answer to `count` documents.
fn verdicts(text: &str, count: usize, creates: bool) -> Result<Vec<WriteOutcome>, WriteError> {
    let answer: BulkResponse = serde_json::from_str(text).map_err(|_| {
        WriteError::Lost(format!(
            "its answer is not a _bulk response: {}",
            brief(text)
        ))
    })?;
    let items = answer.items.unwrap_or_default();
    if items.len() != count {
        return Err(WriteError::Lost(format!(
            "it answered for {} of {count} documents",
            items.len()
        )));
    }
    let verdicts = items.iter().map(|item| verdict(item, creates));
    let written: Vec<_> = verdicts.collect::<Result<_, _>>()?;
    // An answer that contradicts itself is not trusted; the documents are sent again, which does no
    // harm.
    if answer.errors && !creates && written.iter().all(|w| *w == WriteOutcome::Stored) {
        return Err(WriteError::Lost(
            "it reported errors but listed none".to_owned(),
        ));
    }
    Ok(written)
}

/// Returns the outcome of one document, or the error that all have without an index or pipeline.
fn verdict(item: &Value, creates: bool) -> Result<WriteOutcome, WriteError> {
    let (action, outcome) = item
        .as_object()
        .and_then(|o| o.iter().next())
        .map_or(("", &Value::Null), |(action, outcome)| {
            (action.as_str(), outcome)
        });
    let status = outcome["status"].as_u64().unwrap_or(0);
    // Before version 2 the error is a text: ClusterBlockException[blocked by: …].
    let text = outcome["error"].as_str();
    let kind = match (text, outcome["error"]["type"].as_str()) {
        (Some(text), _) => text.split(['[', ';']).next().unwrap_or_default(),
        (None, Some(kind)) => kind,
        (None, None) => "no reason given",
    };
    let reason = || match text {
        Some(text) => brief(&format!("{status} {text}")),
        None => brief(&format!(
            "{status} {kind}: {}",
            outcome["error"]["reason"].as_str().unwrap_or_default()
        )),
    };
    Ok(match status {
        200..300 => WriteOutcome::Stored,
        // Without an index no document can be stored, and none counts as deleted.
        404 if NO_INDEX.contains(&kind) => return Err(WriteError::Gone(reason())),
        // Without the pipeline that the job names, each document is refused until the pipeline is
        // made.
        400 if reason().starts_with(MISSING_PIPELINE) => return Err(WriteError::Wrong(reason())),
        // The index does not exist, and none can be made.
        400 if reason().starts_with(&format!("400 {kind}: {NO_SHARDS}")) => {
            return Err(WriteError::Gone(reason()));
        }
        // The document to delete does not exist.
        404 if action == "delete" && outcome["error"].is_null() => WriteOutcome::Stored,
        // The document exists: an earlier request whose answer was lost stored it, or another
        // writer did.
        409 if creates => WriteOutcome::Stored,
        429 => WriteOutcome::Rejected(reason()),
        // A blocked index, for instance one with a full disk (403 before Elasticsearch 7.7), opens
        // again.
        403 if matches!(kind, "cluster_block_exception" | "ClusterBlockException") => {
            WriteOutcome::Busy(reason())
        }
        // So does an index that is closed, for instance to change its analyzers.
        400 | 403 if matches!(kind, "index_closed_exception" | "IndexClosedException") => {
            WriteOutcome::Busy(reason())
        }
        // Without the right to write, or to make an index that does not exist, all documents would
        // be refused until it is granted. Only the right to extend the mapping concerns single
        // documents.
        403 if kind == "security_exception" && names_create_action(&reason()) => {
            return Err(WriteError::Absent(reason()));
        }
        403 if kind == "security_exception" && reason().contains(WRITE_ACTION) => {
            return Err(WriteError::Lost(reason()));
        }
        // A pipeline that refuses a document does so each time. Before version 7.5 the exception is
        // within another one.
        500 if kind == "fail_processor_exception" || reason().contains(WRAPPED_REFUSAL) => {
            WriteOutcome::Refused(reason())
        }
        // 409 cannot come from `index` without a version; 5xx and a missing status are the node's
        // trouble.
        0 | 408 | 500.. => WriteOutcome::Busy(reason()),
        _ => WriteOutcome::Refused(reason()),
    })
}

fn names_create_action(text: &str) -> bool {
    CREATE_ACTIONS.iter().any(|action| text.contains(action))
}

async fn read(mut response: Response) -> Result<String, WriteError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(lost)? {
        if bytes.len() + chunk.len() > MAX_ANSWER_BYTES {
            return Err(WriteError::Lost(format!(
                "its answer was longer than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the whole chain of causes, without the address, which may be long and is known to the
/// operator.
fn lost(error: reqwest::Error) -> WriteError {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(c) = cause {
        text += &format!(": {c}");
        cause = c.source();
    }
    WriteError::Lost(text)
}

fn brief(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(200)
        .collect()
}

#[cfg(test)]
#[path = "elastic_tests.rs"]
mod tests;
