use std::sync::Arc;

use super::*;

#[test]
fn a_document_becomes_two_lines_whatever_its_id() {
    let document = Document {
        key: Arc::from(["1".to_owned()]),
        id: Some("a\"\n".into()),
        routing: None,
        action: Action::Store(Arc::from("{\"x\": 1}")),
    };
    let routed = Document {
        routing: Some("t\"1".into()),
        ..document.clone()
    };

    assert_eq!(
        lines(&[document], false),
        "{\"index\":{\"_id\":\"a\\\"\\n\"}}\n{\"x\": 1}\n"
    );
    assert_eq!(
        lines(&[routed], true),
        "{\"create\":{\"_id\":\"a\\\"\\n\",\"routing\":\"t\\\"1\"}}\n{\"x\": 1}\n"
    );
    let deleted = Document {
        key: Arc::from(["1".to_owned()]),
        id: Some("7".into()),
        routing: None,
        action: Action::Delete,
    };
    assert_eq!(lines(&[deleted], true), "{\"delete\":{\"_id\":\"7\"}}\n");
}

#[test]
fn a_200_is_read_document_by_document() {
    let text = r#"{"took":3,"errors":true,"items":[{"index":{"status":201}},
        {"index":{"status":429,"error":{"type":"es_rejected_execution_exception","reason":"queue full"}}},
        {"index":{"status":400,"error":{"type":"mapper_parsing_exception","reason":"failed to parse [x]"}}},
        {"index":{"status":503}}]}"#;

    let written = verdicts(text, 4, false).unwrap();

    assert_eq!(written[0], WriteOutcome::Stored);
    assert_eq!(
        written[1],
        WriteOutcome::Rejected("429 es_rejected_execution_exception: queue full".into())
    );
    assert_eq!(
        written[2],
        WriteOutcome::Refused("400 mapper_parsing_exception: failed to parse [x]".into())
    );
    assert!(matches!(written[3], WriteOutcome::Busy(_)));
}

#[test]
fn a_block_of_the_index_and_a_closed_index_are_waited_for() {
    for (status, kind) in [
        (403, "cluster_block_exception"),
        (400, "index_closed_exception"),
        (403, "index_closed_exception"),
    ] {
        let text = format!(
            r#"{{"errors":true,"items":[{{"index":{{"status":{status},"error":{{"type":"{kind}","reason":"no"}}}}}}]}}"#
        );
        assert!(
            matches!(verdicts(&text, 1, false).unwrap()[0], WriteOutcome::Busy(_)),
            "{text}"
        );
    }
}

#[test]
fn a_missing_right_to_write_is_no_fault_of_the_documents() {
    let written = |reason: &str| {
        let text = format!(
            r#"{{"errors":true,"items":[{{"index":{{"status":403,"error":{{"type":"security_exception","reason":"{reason}"}}}}}}]}}"#
        );
        verdicts(&text, 1, false)
    };

    for reason in [
        "action [indices:data/write/bulk[s]] is unauthorized for user [x] on indices [a]",
        "no permissions for [indices:data/write/bulk[s]] and User [name=x]",
    ] {
        assert!(
            matches!(written(reason), Err(WriteError::Lost(why)) if why.starts_with("403 ")),
            "{reason}"
        );
    }
    for reason in [
        "action [indices:admin/auto_create] is unauthorized for user [x] on indices [a]",
        "action [indices:admin/create] is unauthorized for user [x]",
    ] {
        assert!(
            matches!(written(reason), Err(WriteError::Absent(why)) if why.starts_with("403 ")),
            "{reason}"
        );
        let whole = refusal(StatusCode::FORBIDDEN, reason, None);
        assert!(matches!(whole, WriteError::Absent(_)), "{whole:?}");
    }
    // Only documents with a new field meet this one.
    let mapping = "action [indices:admin/mapping/auto_put] is unauthorized for user [x]";
    assert!(matches!(
        written(mapping).unwrap()[0],
        WriteOutcome::Refused(_)
    ));
}

#[test]
fn a_document_that_its_pipeline_refuses_is_not_sent_again() {
    let written = |kind: &str, reason: &str| {
        let text = format!(
            r#"{{"errors":true,"items":[{{"index":{{"status":500,"error":{{"type":"{kind}","reason":"{reason}"}}}}}}]}}"#
        );
        verdicts(&text, 1, false).unwrap().remove(0)
    };

    for (kind, reason) in [
        ("fail_processor_exception", "without a price"),
        ("exception", "java.lang.IllegalArgumentException: no IP"),
    ] {
        assert!(matches!(written(kind, reason), WriteOutcome::Refused(_)));
    }
    assert!(matches!(
        written("exception", "java.io.IOException: disk"),
        WriteOutcome::Busy(_)
    ));
}

#[test]
fn an_index_that_is_gone_ends_the_job_and_counts_nothing_as_deleted() {
    for (action, error) in [
        (
            "index",
            r#"{"type":"index_not_found_exception","reason":"no such index [a]"}"#,
        ),
        (
            "delete",
            r#"{"type":"index_not_found_exception","reason":"no such index [a]"}"#,
        ),
        ("delete", r#""IndexMissingException[[a] missing]""#),
    ] {
        let item = format!(r#"{{"{action}":{{"status":404,"error":{error}}}}}"#);
        let text = format!(r#"{{"errors":true,"items":[{{"index":{{"status":201}}}},{item}]}}"#);
        let wrong = verdicts(&text, 2, false).unwrap_err();
        assert!(
            matches!(&wrong, WriteError::Gone(why) if why.starts_with("404 ")),
            "{wrong:?}"
        );
    }
    let whole = r#"{"error":{"type":"index_not_found_exception","reason":"no such index [a]"},"status":404}"#;
    let of = |text: &str| refusal(StatusCode::NOT_FOUND, text, None);
    assert!(matches!(of(whole), WriteError::Gone(_)));
    assert!(matches!(of("no such page"), WriteError::Wrong(_)));
}

#[test]
fn a_pipeline_that_is_gone_ends_the_job_and_refuses_no_document() {
    let written = |reason: &str| {
        let error = format!(r#"{{"type":"illegal_argument_exception","reason":"{reason}"}}"#);
        let item = format!(r#"{{"index":{{"status":400,"error":{error}}}}}"#);
        verdicts(&format!(r#"{{"errors":true,"items":[{item}]}}"#), 1, false)
    };

    let gone = written("pipeline with id [p] does not exist").unwrap_err();
    assert!(matches!(&gone, WriteError::Wrong(why) if why.ends_with("[p] does not exist")));
    // A document that quotes it ends nothing.
    let quoted = written("failed to parse 'pipeline with id [p] does not exist'").unwrap();
    assert!(matches!(quoted[0], WriteOutcome::Refused(_)));
}

#[test]
fn an_index_that_cannot_be_made_ends_the_job_and_refuses_no_document() {
    let written = |kind: &str, reason: &str| {
        let error = format!(r#"{{"type":"{kind}","reason":"{reason}"}}"#);
        let item = format!(r#"{{"index":{{"status":400,"error":{error}}}}}"#);
        verdicts(&format!(r#"{{"errors":true,"items":[{item}]}}"#), 1, false)
    };
    let full = "Validation Failed: 1: this action would add [2] shards, but this cluster \
                currently has [1000]/[1000] maximum normal shards open;";

    for kind in ["validation_exception", "illegal_argument_exception"] {
        let wrong = written(kind, full).unwrap_err();
        assert!(
            matches!(&wrong, WriteError::Gone(why) if why.starts_with("400 ")),
            "{wrong:?}"
        );
    }
    // A document that quotes it ends nothing.
    let quoted = written(
        "mapper_parsing_exception",
        &format!("failed to parse '{full}'"),
    );
    assert!(matches!(quoted.unwrap()[0], WriteOutcome::Refused(_)));
}

#[test]
fn errors_of_old_versions_are_read_as_well() {
    let item = |action: &str, status: u16, error: &str| {
        let text =
            format!(r#"{{"items":[{{"{action}":{{"status":{status},"error":"{error}"}}}}]}}"#);
        verdicts(&text, 1, false).unwrap().remove(0)
    };

    assert_eq!(
        item(
            "index",
            429,
            "EsRejectedExecutionException[rejected execution (queue capacity 50)]"
        ),
        WriteOutcome::Rejected(
            "429 EsRejectedExecutionException[rejected execution (queue capacity 50)]".into()
        )
    );
    assert!(matches!(
        item(
            "index",
            403,
            "ClusterBlockException[blocked by: [FORBIDDEN/8/index write (api)];]"
        ),
        WriteOutcome::Busy(_)
    ));
    assert!(matches!(
        item("index", 400, "MapperParsingException[failed to parse [x]]"),
        WriteOutcome::Refused(_)
    ));
    let text = r#"{"items":[{"delete":{"status":404,"found":false}}]}"#;
    assert_eq!(verdicts(text, 1, false).unwrap(), [WriteOutcome::Stored]);
}

#[test]
fn a_document_that_is_made_only_once_is_stored_if_it_is_there_already() {
    let text = r#"{"errors":true,"items":[{"create":{"status":409,"error":{"type":"version_conflict_engine_exception"}}}]}"#;

    assert_eq!(verdicts(text, 1, true).unwrap(), [WriteOutcome::Stored]);
    assert!(matches!(
        verdicts(&text.replace("create", "index"), 1, false).unwrap()[0],
        WriteOutcome::Refused(_)
    ));
}

#[test]
fn an_answer_that_is_not_one_is_trouble_and_never_success() {
    for text in [
        "",
        "{}",
        "<html>",
        r#"{"items":[]}"#,
        r#"{"errors":true,"items":[{"index":{"status":200}}]}"#,
    ] {
        assert!(
            matches!(verdicts(text, 1, false), Err(WriteError::Lost(_))),
            "{text}"
        );
    }
    assert!(matches!(
        verdicts(r#"{"items":[{"index":{}}]}"#, 1, false).unwrap()[0],
        WriteOutcome::Busy(_)
    ));
}
