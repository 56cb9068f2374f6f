//! The beginning and the end of spans; reads the clock.

use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::span::{EndedSpan, SpanAttributes, SpanRole, SpanSink, SpanValue};
use super::{Sampler, TraceParent};

/// The maker of spans; off unless spans are collected.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<Collection>>);

struct Collection {
    sampler: Sampler,
    sink: Box<dyn SpanSink>,
}

impl Tracer {
    /// Returns a tracer that hands recorded spans to a sink.
    pub fn new(sampler: Sampler, sink: impl SpanSink) -> Self {
        Self(Some(Arc::new(Collection {
            sampler,
            sink: Box::new(sink),
        })))
    }

    /// Returns true if spans are collected.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span below `parent`, or a new trace; `None` without a parent while the tracer is
    /// off. A span that is not recorded hands on its place in the trace nevertheless.
    pub fn open(
        &self,
        parent: Option<TraceParent>,
        role: SpanRole,
        name: impl FnOnce() -> String,
    ) -> Option<OpenSpan> {
        let Some(on) = &self.0 else {
            let context = parent?.child(rand::random());
            return Some(OpenSpan {
                context,
                recorded: None,
            });
        };
        let span_id = rand::random();
        let context = match parent {
            Some(parent) => parent.child(span_id),
            None => TraceParent::root(rand::random(), span_id),
        };
        let is_sampled = on.sampler.samples(parent, context.trace_id);
        let recorded = is_sampled.then(|| Recorded {
            collection: on.clone(),
            parent: parent.map(|parent| parent.span_id),
            name: name(),
            role,
            began_ns: unix_ns(),
            began: Instant::now(),
            attributes: SpanAttributes::new(),
        });
        Some(OpenSpan {
            context: context.sampled(is_sampled),
            recorded,
        })
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "on" } else { "off" })
    }
}

/// A span that has begun. One that is dropped without an end is not recorded.
pub struct OpenSpan {
    /// The span within its trace, the parent of what it calls.
    pub context: TraceParent,
    recorded: Option<Recorded>,
}

struct Recorded {
    collection: Arc<Collection>,
    parent: Option<u64>,
    name: String,
    role: SpanRole,
    began_ns: u64,
    began: Instant,
    attributes: SpanAttributes,
}

impl OpenSpan {
    /// Adds attributes, which are made only if the span is recorded.
    pub fn note(&mut self, attributes: impl FnOnce() -> Vec<(&'static str, SpanValue)>) {
        if let Some(recorded) = &mut self.recorded {
            recorded.attributes.extend(attributes());
        }
    }

    /// Returns the begin of a recorded span, in nanoseconds of unix time.
    pub fn began_ns(&self) -> Option<u64> {
        Some(self.recorded.as_ref()?.began_ns)
    }

    /// Ends the span.
    pub fn end(self, is_error: bool) {
        let Some(recorded) = self.recorded else {
            return;
        };
        let took = u64::try_from(recorded.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        recorded.collection.sink.take(EndedSpan {
            context: self.context,
            parent: recorded.parent,
            name: recorded.name,
            role: recorded.role,
            began_ns: recorded.began_ns,
            ended_ns: recorded.began_ns.saturating_add(took),
            attributes: recorded.attributes,
            is_error,
        });
    }
}

/// Returns the unix time in nanoseconds.
#[allow(
    clippy::disallowed_methods,
    reason = "spans of several programs are put on one line of time by the clocks of their machines"
)]
fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<EndedSpan>>>);

    impl SpanSink for Kept {
        fn take(&self, span: EndedSpan) {
            self.0.lock().push(span);
        }
    }

    #[test]
    fn a_tracer_that_is_off_hands_a_trace_on_and_begins_none() {
        let parent = TraceParent::root(5, 6).sampled(true);
        let off = Tracer::default();
        assert!(off.open(None, SpanRole::Consumer, String::new).is_none());
        let span = off.open(Some(parent), SpanRole::Consumer, String::new);
        let context = span.unwrap().context;
        assert_eq!((context.trace_id, context.is_sampled()), (5, true));
        assert_ne!(context.span_id, 6);
    }

    #[test]
    fn a_recorded_span_has_its_parent_and_one_that_is_not_sampled_is_not_recorded() {
        let kept = Kept::default();
        let tracer = Tracer::new(Sampler::default(), kept.clone());
        let parent = TraceParent::root(5, 6).sampled(true);

        let mut span = tracer
            .open(Some(parent), SpanRole::Consumer, || "process mail".into())
            .unwrap();
        span.note(|| vec![("messaging.system", SpanValue::Text("flyball".into()))]);
        let context = span.context;
        span.end(true);
        let silent = tracer.open(Some(parent.sampled(false)), SpanRole::Client, String::new);
        assert!(!silent.as_ref().unwrap().context.is_sampled());
        silent.unwrap().end(false);

        let spans = kept.0.lock();
        assert_eq!(spans.len(), 1);
        assert_eq!((spans[0].context, spans[0].parent), (context, Some(6)));
        assert!(spans[0].is_error && spans[0].ended_ns >= spans[0].began_ns);
    }

    #[test]
    fn a_trace_that_begins_here_has_ids_of_its_own() {
        let kept = Kept::default();
        let tracer = Tracer::new(Sampler::default(), kept.clone());
        for _ in 0..2 {
            let span = tracer.open(None, SpanRole::Server, String::new).unwrap();
            span.end(false);
        }
        let spans = kept.0.lock();
        assert_ne!(spans[0].context.trace_id, spans[1].context.trace_id);
        assert_eq!(spans[0].parent, None);
    }
}
