//! Spans of the requests that enqueue, if spans are collected.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;

use crate::trace::{SpanRole, SpanValue, TraceParent, Tracer, parent};

/// The routes whose jobs belong to the trace of the request.
const ROUTES: [&str; 5] = [
    "/api/v1/jobs",
    "/api/v1/jobs/batch",
    "/api/v1/groups",
    "/api/v1/notifications",
    "/api/v1/notifications/batch",
];

/// Makes a span of a request that enqueues, and puts its jobs below that span. Callers that may not
/// enqueue do not get here.
pub async fn measure(State(tracer): State<Tracer>, mut request: Request, next: Next) -> Response {
    if !tracer.is_on() || request.method() != Method::POST {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>();
    let Some(route) = route.and_then(|path| ROUTES.into_iter().find(|one| *one == path.as_str()))
    else {
        return next.run(request).await;
    };
    let header = request.headers().get(parent::HEADER);
    let parent = header.and_then(|value| TraceParent::parse(value.to_str().ok()?));
    let span = tracer.open(parent, SpanRole::Server, || format!("POST {route}"));
    let Some(mut span) = span else {
        return next.run(request).await;
    };
    if let Ok(value) = HeaderValue::try_from(span.context.to_string()) {
        request.headers_mut().insert(parent::HEADER, value);
    }
    let response = next.run(request).await;
    let status = response.status().as_u16();
    span.note(|| {
        vec![
            ("http.request.method", SpanValue::Text("POST".into())),
            ("http.route", SpanValue::Text(route.into())),
            (
                "http.response.status_code",
                SpanValue::Number(status.into()),
            ),
            ("messaging.system", SpanValue::Text("flyball".into())),
            ("messaging.operation.type", SpanValue::Text("send".into())),
            (
                "messaging.operation.name",
                SpanValue::Text("enqueue".into()),
            ),
        ]
    });
    span.end(status >= 500);
    response
}
