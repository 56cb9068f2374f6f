//! Traces: the place of an attempt in the trace of its producer, and spans for those who collect
//! them.
//!
//! A job keeps its producer's `traceparent` ([`parent`]); each attempt is a child of it, whether or
//! not anything is collected. Spans ([`span`]) exist only while a [`Tracer`] is on, which decides
//! with a [`Sampler`] and hands each ended span to a [`SpanSink`]: with the feature `otel` that is
//! the exporter ([`otlp`]), otherwise there is none.
//!
//! Left out: `tracestate`, which jobs do not keep, and spans of reads.

#[cfg(feature = "otel")]
pub mod otlp;
pub mod parent;
pub mod sampler;
pub mod span;
pub mod tracer;

pub use parent::TraceParent;
pub use sampler::Sampler;
pub use span::{EndedSpan, SpanRole, SpanSink, SpanValue};
pub use tracer::{OpenSpan, Tracer};
