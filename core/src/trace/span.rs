//! A span that ended, as its collector gets it. Pure.

use std::borrow::Cow;

use super::TraceParent;

/// The part that a span plays between programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanRole {
    /// A request that this process answers.
    Server,
    /// A request that this process sends.
    Client,
    /// An attempt at a job.
    Consumer,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum SpanValue {
    /// A text. Never an address, an argument or a body.
    Text(Cow<'static, str>),
    /// A whole number.
    Number(i64),
    /// A number, such as seconds.
    Float(f64),
}

/// The attributes of a span, by their names.
pub type SpanAttributes = Vec<(&'static str, SpanValue)>;

/// A span that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedSpan {
    /// The span within its trace.
    pub context: TraceParent,
    /// The id of the span above it; `None` for the first of a trace.
    pub parent: Option<u64>,
    /// The name of the span, of which there are few.
    pub name: String,
    /// The part that the span plays.
    pub role: SpanRole,
    /// The begin, in nanoseconds of unix time.
    pub began_ns: u64,
    /// The end, in nanoseconds of unix time.
    pub ended_ns: u64,
    /// The attributes.
    pub attributes: SpanAttributes,
    /// True if the work failed.
    pub is_error: bool,
}

/// A taker of ended spans, which must not wait.
pub trait SpanSink: Send + Sync + 'static {
    /// Takes a span, or drops it if there is no room.
    fn take(&self, span: EndedSpan);
}
