//! Reads what a collector of traces gets, with the published messages of OTLP.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use prost::Message as _;

use crate::crypt::hex;

/// The status of a span that failed.
const STATUS_ERROR: i32 = 2;

/// A span as it was collected; ids are in hexadecimal.
#[derive(Clone, Debug)]
pub struct CollectedSpan {
    pub trace_id: String,
    pub span_id: String,
    /// The id of the span above it; empty for the first of a trace.
    pub parent: String,
    pub name: String,
    /// The number of the role: 2 server, 3 client, 5 consumer.
    pub kind: i32,
    pub is_error: bool,
    pub took_ns: u64,
    pub attributes: BTreeMap<String, String>,
    /// The attributes of the program.
    pub resource: BTreeMap<String, String>,
}

/// Decodes the body of an export; `None` if it is not one.
pub fn decode(body: &[u8]) -> Option<Vec<CollectedSpan>> {
    let request = ExportTraceServiceRequest::decode(body).ok()?;
    let mut spans = Vec::new();
    for of_resource in request.resource_spans {
        let resource = of_resource.resource.unwrap_or_default();
        let resource = named(&resource.attributes);
        let found = of_resource.scope_spans.into_iter();
        for span in found.flat_map(|scope| scope.spans) {
            spans.push(CollectedSpan {
                trace_id: hex(&span.trace_id),
                span_id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                kind: span.kind,
                is_error: span
                    .status
                    .is_some_and(|status| status.code == STATUS_ERROR),
                took_ns: span.end_time_unix_nano - span.start_time_unix_nano,
                attributes: named(&span.attributes),
                resource: resource.clone(),
            });
        }
    }
    Some(spans)
}

fn named(pairs: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &AnyValue| match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    pairs
        .iter()
        .map(|pair| {
            let value = pair.value.as_ref().map(text);
            (pair.key.clone(), value.unwrap_or_default())
        })
        .collect()
}
