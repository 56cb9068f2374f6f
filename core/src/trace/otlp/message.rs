//! The messages of OTLP that carry spans, with the fields that Flyball sets. Pure.
//!
//! The numbers of the fields are those of `opentelemetry/proto/trace/v1/trace.proto`. The tests
//! decode what is sent with the published crate `opentelemetry-proto`.

use prost::Message;

use crate::trace::{EndedSpan, SpanRole, SpanValue};

/// The name of the instrumentation.
const SCOPE: &str = "flyball";

/// The statuses of a span that Flyball sets.
const STATUS_ERROR: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "WireValue", tags = "1, 3, 4")]
    value: Option<WireValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum WireValue {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
    #[prost(double, tag = "4")]
    Float(f64),
}

/// Encodes a request with these spans of a program with these attributes.
pub fn encode(resource: &[(String, String)], spans: Vec<EndedSpan>) -> Vec<u8> {
    let resource = resource
        .iter()
        .map(|(name, value)| pair(name, WireValue::Text(value.clone())));
    let request = ExportRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: resource.collect(),
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: SCOPE.to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                spans: spans.into_iter().map(span).collect(),
            }],
        }],
    };
    request.encode_to_vec()
}

fn span(span: EndedSpan) -> WireSpan {
    let value = |value: SpanValue| match value {
        SpanValue::Text(text) => WireValue::Text(text.into_owned()),
        SpanValue::Number(number) => WireValue::Number(number),
        SpanValue::Float(number) => WireValue::Float(number),
    };
    WireSpan {
        trace_id: span.context.trace_id.to_be_bytes().to_vec(),
        span_id: span.context.span_id.to_be_bytes().to_vec(),
        parent_span_id: span
            .parent
            .map(|id| id.to_be_bytes().to_vec())
            .unwrap_or_default(),
        name: span.name,
        kind: match span.role {
            SpanRole::Server => 2,
            SpanRole::Client => 3,
            SpanRole::Consumer => 5,
        },
        start_time_unix_nano: span.began_ns,
        end_time_unix_nano: span.ended_ns,
        attributes: span
            .attributes
            .into_iter()
            .map(|(name, one)| pair(name, value(one)))
            .collect(),
        status: span.is_error.then_some(Status { code: STATUS_ERROR }),
        // Only recorded spans are sent.
        flags: 1,
    }
}

fn pair(name: &str, value: WireValue) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
}
