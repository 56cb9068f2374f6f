//! Answers in Elasticsearch's format.

use serde_json::{Value, json};

use super::bulk::{Action, Verb};

/// The outcome of one action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Stored as a new document.
    Created,
    /// Replaced an older document with the same id.
    Updated,
    Deleted,
    /// Found no document to remove.
    NotFound,
    /// Not stored, because `create` found a document with the same id.
    Exists,
    /// Rejected, because the queue is full.
    Rejected,
    /// Not stored, because the document cannot be indexed.
    Unusable(String),
    /// Not done, because the engine failed.
    Failed(String),
}

/// Builds one item of the answer to a bulk request, and a flag that is true if it is an error.
pub(super) fn item(action: &Action, id: &str, done: &Done) -> (Value, bool) {
    let (status, result, error) = match done {
        Done::Created => (201, "created", None),
        Done::Updated => (200, "updated", None),
        Done::Deleted => (200, "deleted", None),
        Done::NotFound => (404, "not_found", None),
        Done::Exists => (
            409,
            "",
            Some((
                "version_conflict_engine_exception",
                "document already exists",
            )),
        ),
        Done::Rejected => (
            429,
            "",
            Some((
                "es_rejected_execution_exception",
                "rejected execution: the queue is full",
            )),
        ),
        Done::Unusable(reason) => (400, "", Some(("mapper_parsing_exception", reason.as_str()))),
        Done::Failed(reason) => (503, "", Some(("engine_failed_exception", reason.as_str()))),
    };
    let mut body = json!({"_index": action.index, "_id": id, "status": status});
    match error {
        Some((kind, reason)) => body["error"] = json!({"type": kind, "reason": reason}),
        None => body["result"] = result.into(),
    }
    let name = action.verb.name();
    (
        json!({ name: body }),
        error.is_some() && action.verb != Verb::Delete,
    )
}

/// Builds the error of a whole request.
pub(super) fn error(status: u16, kind: &str, reason: &str) -> Value {
    json!({"error": {"type": kind, "reason": reason}, "status": status})
}

/// Builds the page of metrics in Prometheus' text format.
pub(super) fn metrics(
    load: f64,
    running_and_queued: u32,
    busy_s: f64,
    stored: u64,
    rejected: u64,
    cores: u32,
) -> String {
    let mut page = String::new();
    for (name, kind, help, value) in [
        (
            "search_store_load",
            "gauge",
            "Running and queued bulk requests, averaged over 5 seconds.",
            load,
        ),
        (
            "search_store_requests",
            "gauge",
            "Running and queued bulk requests.",
            f64::from(running_and_queued),
        ),
        (
            "search_store_cores",
            "gauge",
            "Engine connections; each runs one bulk request.",
            f64::from(cores),
        ),
        (
            "search_store_documents_total",
            "counter",
            "Documents indexed since the store started.",
            stored as f64,
        ),
        (
            "search_store_rejected_total",
            "counter",
            "Documents rejected because the queue was full.",
            rejected as f64,
        ),
        (
            "search_store_busy_seconds_total",
            "counter",
            "Total working time of the engine connections, in seconds.",
            busy_s,
        ),
    ] {
        page += &format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::super::bulk::StoredDocument;
    use super::*;

    #[test]
    fn a_full_queue_is_said_per_item_as_elasticsearch_says_it() {
        let action = Action {
            verb: Verb::Index,
            index: "docs".into(),
            id: None,
            document: Ok(StoredDocument::default()),
        };

        let (item, is_error) = item(&action, "7", &Done::Rejected);

        assert!(is_error);
        assert_eq!(item["index"]["status"], 429);
        assert_eq!(
            item["index"]["error"]["type"],
            "es_rejected_execution_exception"
        );
    }
}
