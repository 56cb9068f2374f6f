//! The span of an attempt, and the name of its trace on log lines.

use tracing::Span;

use crate::jobs::{Job, JobInfo};
use crate::trace::{OpenSpan, SpanRole, SpanValue, TraceParent, Tracer};

/// Begins the span of an attempt below the producer's; `None` for a job without a trace, unless
/// spans are collected.
pub(super) fn open(tracer: &Tracer, job: &Job) -> Option<OpenSpan> {
    let parent = job.traceparent.as_deref().and_then(TraceParent::parse);
    tracer.open(parent, SpanRole::Consumer, || {
        format!("process {}", job.throttle)
    })
}

/// Returns the span of the attempt's log lines.
pub(super) fn of_lines(open: &OpenSpan, job: &Job) -> Span {
    let trace_id = format_args!("{:032x}", open.context.trace_id);
    // At the highest level, so that no filter for levels removes it.
    tracing::error_span!("attempt", job_id = job.id, %trace_id)
}

/// Ends the span of an attempt with its outcome. The key and the tenant stay out, because they tell
/// for whom a job is.
pub(super) fn end(mut span: OpenSpan, job: &JobInfo, outcome: &'static str) {
    let Some(began_ns) = span.began_ns() else {
        return;
    };
    let age_ns = i128::from(began_ns) - job.created_at.as_nanosecond();
    span.note(|| {
        let text = |text: &str| SpanValue::Text(text.to_owned().into());
        vec![
            ("messaging.system", SpanValue::Text("flyball".into())),
            (
                "messaging.operation.type",
                SpanValue::Text("process".into()),
            ),
            (
                "messaging.operation.name",
                SpanValue::Text("process".into()),
            ),
            ("messaging.destination.name", text(&job.throttle)),
            ("messaging.message.id", text(&job.id.to_string())),
            ("flyball.job.kind", text(&job.kind)),
            ("flyball.job.attempt", SpanValue::Number(job.attempt.into())),
            (
                "flyball.job.age_s",
                SpanValue::Float(age_ns.max(0) as f64 / 1e9),
            ),
            ("flyball.job.outcome", SpanValue::Text(outcome.into())),
        ]
    });
    span.end(matches!(outcome, "failed" | "ambiguous" | "dead"));
}
